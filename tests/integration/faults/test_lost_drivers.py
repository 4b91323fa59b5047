"""Drivers that are killed after each step, or stopped while another takes over; both sides hold each row once.

A driver that was stopped with SIGSTOP and is continued must not do anything any more that either side would show, and
must end with SupersededError. The new one must not wait for it: not for its locks, not for its transaction.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from sqlalchemy import Connection

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import AbortableError, FencedError
from spark_2pc_sink.ids import PreparedTxnState
from spark_2pc_sink.options import SinkOptions
from spark_2pc_sink.recipe.steps import Step
from spark_2pc_sink.sink.driver.batch_values import TransactionTicket
from spark_2pc_sink.testing import assert_same_multiset, read_topic, wait_until
from spark_2pc_sink.transactions import TransactionTool
from tests.conftest import MakeTopic
from tests.harness.driver_job import LARGE_INPUT, Job, make_rows
from tests.harness.driver_process import DriverProcess
from tests.harness.driver_rows import BAD, RowsWork, is_bad
from tests.harness.providers import Broker
from tests.harness.sql import sessions
from tests.integration.faults.conftest import MakeJob

#: The batch that is killed: not the first, so that there is a done batch before it and an empty one after it.
BATCH = 1


def each(*steps: Step) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("step", steps, ids=lambda step: step.name)


def killed_and_restarted(job: Job, step: Step) -> None:
    """Kill a driver after ``step`` of the batch, restart it, and compare both sides with the input."""
    if step is Step.RECOVER:
        job.kill_at("step:NOTE", batch=0)  # so that the one that is killed in recovery has something behind it
    killed = job.kill_at(f"step:{step.name}", batch=0 if step is Step.RECOVER else BATCH)
    assert killed.events()[-1]["event"] == "fault"
    decided = step >= Step.DECIDE
    assert job.state("status", "batch_id") == (
        ("done", 0) if not decided else ("done" if step is Step.NOTE else "decided", BATCH)
    )
    restarted = job.run()
    if step is Step.RECOVER:
        assert restarted.placements[0] == (0, "SKIP")
    else:
        assert restarted.placements[0] == (BATCH, "SKIP" if decided else "RUN")
    job.check()


@each(*Step)
def test_killed_after_a_step(step: Step, kafka_any_version: Broker, make_job: MakeJob) -> None:
    """A1, A15, A16, B3, B6, B8: any step, on transaction.version 0, 1 and 2, without two-phase commit.

    KIP-939, "Recovery recipe": a decided transaction is committed, any other one is aborted. An empty batch follows.
    """
    killed_and_restarted(make_job(kafka_any_version, primary_key=False), step)


@each(Step.PREPARE, Step.DECIDE, Step.COMPLETE)
def test_killed_after_a_step_with_two_phase_commit(step: Step, kafka: Broker, make_job: MakeJob) -> None:
    """A1, A15, B1, B3, B6, B8: the same where the broker grants enable2Pc (KIP-939)."""
    job = make_job(kafka, primary_key=False)
    killed_and_restarted(job, step)
    assert all(recovered["two_phase_commit"] for driver in job.drivers for recovered in driver.recoveries)


def test_killed_at_every_step_in_turn(kafka_without_2pc: Broker, make_job: MakeJob) -> None:
    """A1, B8, B11: one batch dies at every step, one start after the other; no start undoes what another did."""
    job = make_job(kafka_without_2pc, primary_key=False)
    for step in Step:
        # Once it is decided, the next start finishes the batch by itself: what remains to be killed is the next one.
        batch = {Step.COMPLETE: 1, Step.NOTE: 3}.get(step, 0)
        job.kill_at(f"step:{step.name}", batch=batch)
    job.ends_well()


@each(Step.BEGIN, Step.PRODUCE)
def test_killed_in_an_empty_batch_that_is_the_last(step: Step, kafka_any_version: Broker, make_job: MakeJob) -> None:
    """A16, B16: below transaction.version 2 its partitions were added, so that Kafka has a transaction to be ended.

    It must not stay open when the input ends: the sink would seem to be in doubt, until it times out.
    """
    job = make_job(kafka_any_version, sizes=(20, 0))
    job.kill_at(f"step:{step.name}", batch=1)
    job.run()
    assert job.state("status", "batch_id", "row_count") == ("done", 1, 0)
    job.check()
    job.add_batch()
    job.ends_well()


def test_kills_leave_nothing_behind(kafka_any_version: Broker, make_job: MakeJob) -> None:
    """B19, B20, C4: one transactional id, one producer of each partition, nothing open, nothing prepared."""
    job = make_job(kafka_any_version)
    for step in (Step.PRODUCE, Step.PREPARE, Step.DECIDE):
        job.kill_at(f"step:{step.name}", batch=0)
    job.ends_well()
    with TransactionTool(kafka={"bootstrap.servers": job.broker.bootstrap}) as tool:
        (only,) = (row for row in tool.list_transactions() if row.transactional_id.startswith(job.transactional_id))
        producers = [tool.describe_producers(job.topic, partition) for partition in range(3)]
    assert only.state in {"Empty", "CompleteCommit"}
    for found in producers:
        assert [(producer.producer_id, producer.start_offset) for producer in found] == [(only.producer_id, None)]
    tables = ("kafka_transaction_state", "kafka_transaction_state_actions", "kafka_transaction_state_history", "target")
    assert job.sql("SELECT relname FROM pg_stat_user_tables ORDER BY relname") == [(table,) for table in tables]
    assert job.sql("SELECT count(*) FROM kafka_transaction_state") == [(1,)]
    assert job.sql("SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()") == [(0,)]
    # A backend ends a moment after its client: those of the queries above, too.
    wait_until(lambda: sessions(job.database) == [], what="every session to end")


def test_killed_with_dead_letters_before_and_after_the_decision(
    kafka_without_2pc: Broker, make_job: MakeJob, topic: MakeTopic
) -> None:
    """A1, A26, D2: before the decision no letter is left; behind it they are sent again, from the table.

    The second batch has two bad rows, the third nothing but one; each letter is in topic and table once.
    """
    letters = topic(partitions=2, broker=kafka_without_2pc)
    options: dict[str, Any] = {"bad_rows": "dead_letter", "dead_letter_topic": letters}
    job = make_job(kafka_without_2pc, sizes=(10, 10, 0, 10), primary_key=False)
    job.write_batch(BATCH, [*make_rows(BATCH, 10), (1_000, f"{BAD} äö€ 0"), (1_001, f"{BAD} äö€ 1")])
    job.write_batch(2, [(2_000, f"{BAD} alone")])
    # The first attempt meets the bad rows, the second one has the letters.
    job.kill_at("step:PRODUCE", batch=BATCH, nth=2, **options)
    job.kill_at("step:DECIDE", batch=BATCH, **options)
    # As if the transaction had timed out: Kafka owes the batch.
    job.terminate()
    assert job.run(**options).placements[0] == (BATCH, "RESEND")
    job.check({batch: [row for row in rows if not is_bad(row)] for batch, rows in job.input().items()})
    told = [json.loads(record.value or b"") for record in read_topic(job.broker.bootstrap, letters)]
    bad = [(BATCH, 1_000), (BATCH, 1_001), (2, 2_000)]
    assert_same_multiset(
        [(letter["batch_id"], letter["row"]["id"]) for letter in told], bad, what="letters in the topic"
    )
    names = ("query_id", "batch_id", "identity", "occurrences", "reason", "sqlstate")
    in_table = job.sql(f"SELECT {', '.join(names)} FROM kafka_transaction_state_dead_letters")
    in_topic = [tuple(letter[name] for name in names) for letter in told]
    assert_same_multiset(in_table, in_topic, what="letters in the table")


#: What a new driver may take for everything, on a busy machine. All time-outs that it has are longer, so that none of
#: its waits can have ended by one: but that of the claim for the row's lock, after which it ends the older session.
TAKEN_OVER_S = 45.0
#: The deciding transactions that are open.
DECIDING = "application_name LIKE '2pc:%' AND xact_start IS NOT NULL"


def taken_over(job: Job, zombie: DriverProcess) -> DriverProcess:
    """Run a new driver to the end beside the stopped one, then continue that; returns the new one."""
    new = job.run(deadline_s=TAKEN_OVER_S)
    job.check()
    assert zombie.stopped
    job.superseded(zombie)
    job.check()
    return new


def test_stopped_after_prepare(kafka_any_version: Broker, make_job: MakeJob) -> None:
    """A12, B12, D1: the new driver aborts the prepared transaction; the old one comes too late to decide it."""
    job = make_job(kafka_any_version, primary_key=False)
    zombie = job.stop_at("step:PREPARE", batch=BATCH)
    new = taken_over(job, zombie)
    assert "aborted the open transaction" in new.actions
    assert ("DECIDE", BATCH) not in [(event["step"], event["batch"]) for event in zombie.events("step")]


def test_stopped_inside_copy(kafka_any_version: Broker, make_job: MakeJob) -> None:
    """C2, D1: the old driver's session holds rows with the keys that the new one is about to write; it is ended."""
    job = make_job(kafka_any_version, sizes=LARGE_INPUT)
    zombie = job.stop_at("copy", batch=BATCH)
    wait_until(lambda: sessions(job.database, DECIDING), what="the stopped driver's transaction")
    (held,) = job.sql(
        "SELECT count(*) FROM pg_locks WHERE relation = 'target'::regclass AND mode = 'RowExclusiveLock' AND granted"
    )
    assert held[0] == 1
    new = taken_over(job, zombie)
    assert "aborted the open transaction" in new.actions
    assert sessions(job.database, DECIDING) == []


def test_stopped_before_end_of_transaction(kafka_any_version: Broker, make_job: MakeJob) -> None:
    """B5, B12, D1: decided and not completed. The new driver commits; the old one's EndTxn must not end another one."""
    job = make_job(kafka_any_version)
    zombie = job.stop_at("end", batch=BATCH)
    new = taken_over(job, zombie)
    assert "committed" in new.actions


def test_stopped_before_end_while_the_new_one_has_a_transaction_open(
    kafka_any_version: Broker, make_job: MakeJob
) -> None:
    """B5: the old driver's EndTxn(commit) comes while the next transaction of the id is open, and must not end that."""
    job = make_job(kafka_any_version)
    zombie = job.stop_at("end", batch=0)
    new = job.stop_at("step:PRODUCE", batch=BATCH)
    job.superseded(zombie)
    assert job.describe().state == "Ongoing"
    job.ends_well(new)


def test_stopped_before_init_producer_id_that_aborts_a_decided_transaction(
    kafka_any_version: Broker, make_job: MakeJob
) -> None:
    """B12, B28, D1: the old driver's InitProducerId aborts what the new one has decided a moment ago.

    The claim cannot prevent it, because Kafka does not know of claims. The batch is owed, and sent again.
    """
    job = make_job(kafka_any_version)
    job.kill_at("step:PRODUCE", batch=BATCH)
    zombie = job.stop_at("init", batch=BATCH)
    new = job.stop_at("step:DECIDE", batch=BATCH)
    job.superseded(zombie)
    job.ends_well(new)
    assert "noted that Kafka is owed batch 1" in new.actions


@pytest.mark.parametrize("reached", [pytest.param("BEGIN", marks=pytest.mark.thorough), "PRODUCE"])
def test_a_task_that_outlives_its_driver(reached: str, kafka_any_version: Broker, make_job: MakeJob) -> None:
    """A4, B5, B12: a dead driver's task still has its pair, and has not sent anything yet.

    Kafka shows nothing open then, so it is only the new pair of every recovery that keeps the task's records out of
    the new driver's transaction: it must be refused before and after the new one has written to the partitions.
    """
    job = make_job(kafka_any_version)
    job.kill_at("step:BEGIN", batch=BATCH)
    orphans_pair = job.describe().producer
    assert orphans_pair is not None
    new = job.stop_at(f"step:{reached}", batch=BATCH)
    ticket = TransactionTicket(
        transactional_id=job.transactional_id,
        producer=orphans_pair,
        version=kafka_any_version.transaction_version,
        kafka_only=True,
    )
    orphan = RowsWork(SinkOptions.parse(**job.sink()), make_rows(BATCH, 20), half_copied=lambda: None)
    with pytest.raises((FencedError, AbortableError)):
        orphan.produce(ticket, _no_database)
    job.ends_well(new)


def _no_database() -> Connection:
    raise AssertionError("a task has no part in the deciding transaction")


def test_several_drivers_at_once(kafka_any_version: Broker, make_job: MakeJob) -> None:
    """A12, C3: the very first start of a sink, three times at once: one table, one row, one driver that is the last.

    The others are superseded, or find that the checkpoint which they read is behind the row; whatever they did before
    is part of the result.
    """
    job = make_job(kafka_any_version, sizes=(20,) * 6, primary_key=False)
    drivers = [job.start() for _ in range(3)]
    outcomes = [driver.outcome() for driver in drivers]
    assert {outcome.error for outcome in outcomes} <= {"", "SupersededError", "HaltError"}, outcomes
    job.ends_well()


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_a_late_end_of_one_transaction_leaves_the_next_alone(
    kafka_each_version: Broker, make_job: MakeJob, commit: bool
) -> None:
    """B5, B36: a batch has an epoch of its own at each transaction.version, so the pair before it names nothing."""
    job = make_job(kafka_each_version)
    driver = job.stop_at("step:PREPARE", batch=BATCH)
    before = PreparedTxnState(job.state("prepared_transaction_state")[0]).producer
    assert before is not None
    with job.coordinator() as client:
        opened = client.describe()
        assert opened.state == "Ongoing"
        answer = client.end(before, commit=commit)
        assert answer.code != Code.NONE
        assert client.describe() == opened
    job.ends_well(driver)
