"""The driver is killed with SIGKILL after each step; after a restart both sides hold the input, each row once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spark_2pc_sink.recipe.steps import Step
from spark_2pc_sink.testing import assert_same_multiset, read_topic, wait_until
from spark_2pc_sink.transactions import TransactionTool
from tests.conftest import MakeTopic
from tests.harness.driver_job import Job, make_rows
from tests.harness.driver_rows import BAD, is_bad
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
    wait_until(lambda: sessions(job.database) == [], deadline_s=30, what="every session to end")


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
