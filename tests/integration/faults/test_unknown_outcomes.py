"""Answers that never come, servers that die, prepared transactions that are kept: found out, never guessed.

The driver lives on in most of these. COMMIT's outcome is settled by claiming again on a new connection, EndTxn's by
sending the same request again or, when that fails too, by looking at both sides. No released Kafka keeps prepared
transactions (KIP-939, keepPreparedTxn): the reference coordinator does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import make_url

from spark_2pc_sink import PreparedTxnState
from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import HaltCause
from spark_2pc_sink.ids import ProducerIdAndEpoch
from spark_2pc_sink.recovery.report import Action
from spark_2pc_sink.testing import ReferenceCoordinator, TcpProxy, kafka_request, postgres_query, wait_until
from tests.conftest import StartKafka
from tests.harness.damage import lose_row
from tests.harness.driver_job import LARGE_INPUT, SMALL_INPUT, Job
from tests.harness.driver_process import DriverProcess
from tests.harness.providers import Broker, Database
from tests.harness.sql import end_sessions
from tests.integration.faults.conftest import MakeJob

BATCH = 1
#: EndTxn's key in Kafka's protocol.
END_TXN = 26
#: For a broker that is out of reach; the batches before it must get their answers in time.
MAX_BLOCK_MS = 4_000


@contextmanager
def behind_proxy(job: Job, server: Database) -> Iterator[tuple[TcpProxy, str]]:
    """A proxy in front of the database, and the job's database URL through it."""
    with server.proxy() as proxy:
        yield proxy, server.database_url(str(make_url(job.database).database), port=proxy.port)


def settled_by_claiming_again(job: Job, driver: DriverProcess, *, committed: bool) -> None:
    """The driver ends well; whether the batch took one transaction or two tells what it found."""
    job.ends_well(driver)
    assert [recovered["generation"] for recovered in driver.recoveries] == [1, 2]
    assert ("committed" if committed else "aborted the open transaction") in driver.actions
    assert driver.attempts(BATCH) == (1 if committed else 2)


# --- COMMIT ------------------------------------------------------------------------------------------------------


def test_the_answer_to_commit_is_lost(kafka_any_version: Broker, make_job: MakeJob, postgres: Database) -> None:
    """C1: the server has committed, the connection is reset before its answer arrives."""
    job = make_job(kafka_any_version)
    with behind_proxy(job, postgres) as (proxy, url):
        driver = job.stop_at("commit", batch=BATCH, database=url)
        proxy.lose_answer(postgres_query("COMMIT"))
        settled_by_claiming_again(job, driver, committed=True)
        assert proxy.answers_lost == 1


def test_commit_itself_is_lost(kafka_any_version: Broker, make_job: MakeJob, postgres: Database) -> None:
    """C1: the same error for the client, but the server has never seen COMMIT."""
    job = make_job(kafka_any_version)
    with behind_proxy(job, postgres) as (proxy, url):
        driver = job.stop_at("commit", batch=BATCH, database=url)
        proxy.reset_connections()
        settled_by_claiming_again(job, driver, committed=False)


def test_the_backend_is_terminated(kafka_without_2pc: Broker, make_job: MakeJob) -> None:
    """C1, C7: pg_terminate_backend before COMMIT; 57P01 is no class 08, and not a definite failure."""
    job = make_job(kafka_without_2pc, sizes=LARGE_INPUT)
    driver = job.stop_at("commit", batch=BATCH)
    assert end_sessions(job.database, "application_name LIKE '2pc:%'") == 1
    settled_by_claiming_again(job, driver, committed=False)


def test_postgresql_is_killed(
    kafka_without_2pc: Broker, make_job: MakeJob, start_postgres: Callable[[], Database]
) -> None:
    """C1: PostgreSQL dies by SIGKILL inside COPY, and comes back."""
    server = start_postgres()
    job = make_job(kafka_without_2pc, sizes=LARGE_INPUT, database=server.create_database("job"))
    driver = job.stop_at("copy", batch=BATCH)
    server.kill()
    driver.go_on()
    driver.wait_for_log("attempt 1 of 3 failed")
    server.start()
    settled_by_claiming_again(job, driver, committed=False)


def test_postgresql_is_killed_after_it_has_committed(
    kafka_without_2pc: Broker, make_job: MakeJob, start_postgres: Callable[[], Database]
) -> None:
    """C1: COMMIT was carried out, and the server dies by SIGKILL before the driver reads the answer."""
    server = start_postgres()
    job = make_job(kafka_without_2pc, database=server.create_database("job"))
    with behind_proxy(job, server) as (proxy, url):
        driver = job.stop_at("commit", batch=BATCH, database=url)
        proxy.hold_answers()
        driver.go_on()
        wait_until(lambda: job.state("status") == ("decided",), what="COMMIT to be carried out")
        server.kill()
        # In this order: what is held must be lost with its connection, and not be delivered first.
        proxy.reset_connections()
        proxy.restore()
        server.start()
        settled_by_claiming_again(job, driver, committed=True)


# --- EndTxn ------------------------------------------------------------------------------------------------------


def test_the_answer_to_end_txn_is_lost(kafka_each_version: Broker, make_job: MakeJob) -> None:
    """B4, B6: the coordinator has committed; the same EndTxn again says so, and nothing is committed twice."""
    job = make_job(kafka_each_version)
    with kafka_each_version.proxy() as proxy:
        driver = job.stop_at("end", batch=BATCH, kafka={"bootstrap.servers": proxy.address})
        proxy.lose_answer(kafka_request(END_TXN))
        job.ends_well(driver)
        assert proxy.answers_lost == 1
    assert driver.attempts(BATCH) == 1


def test_end_txn_finds_no_coordinator(kafka_any_version: Broker, make_job: MakeJob) -> None:
    """B4, B14, B25: no answer within max.block.ms. The driver looks again until the coordinator is back."""
    job = make_job(kafka_any_version)
    with kafka_any_version.proxy() as proxy:
        kafka = {"bootstrap.servers": proxy.address, "max.block.ms": MAX_BLOCK_MS}
        driver = job.stop_at("end", batch=BATCH, kafka=kafka)
        proxy.cut()
        driver.go_on()
        driver.wait_for_log("attempt 1 of 3 failed")
        proxy.restore()
        job.ends_well(driver)
    assert "committed" in driver.actions
    assert driver.attempts(BATCH) == 1


def test_end_txn_finds_no_coordinator_for_too_long(kafka_any_version: Broker, make_job: MakeJob) -> None:
    """B4, D3: the driver ends with InDoubtError, which says that nothing is lost; the next start completes it."""
    job = make_job(kafka_any_version)
    with kafka_any_version.proxy() as proxy:
        kafka = {"bootstrap.servers": proxy.address, "max.block.ms": MAX_BLOCK_MS}
        driver = job.stop_at("end", batch=BATCH, kafka=kafka, connect_deadline_ms=0)
        proxy.cut()
        driver.go_on()
        outcome = driver.outcome()
    assert outcome.error == "InDoubtError"
    assert "Nothing is lost" in outcome.text
    assert job.state("status", "batch_id") == ("decided", BATCH)
    assert "committed" in job.ends_well().actions


@pytest.mark.slow
def test_the_broker_is_killed_between_decision_and_end(start_kafka: StartKafka, make_job: MakeJob) -> None:
    """B4, B14: the broker dies by SIGKILL with the decided transaction prepared, and comes back with it."""
    broker = start_kafka(two_phase_commit=False)
    job = make_job(broker, sizes=SMALL_INPUT)
    driver = job.stop_at("step:DECIDE", batch=BATCH)
    broker.kill()
    broker.start()
    job.ends_well(driver)
    assert driver.attempts(BATCH) == 1


@pytest.fixture(scope="module")
def reference(request: pytest.FixtureRequest) -> Iterator[ReferenceCoordinator]:
    """One that keeps a prepared transaction as apache/kafka#21735 does, unless a test asks for #22704's form."""
    with ReferenceCoordinator(properties=getattr(request, "param", {})) as running:
        yield running


@pytest.fixture
def decided(reference: ReferenceCoordinator, make_job: MakeJob) -> Job:
    """A job whose driver died right after the database commit of its second batch."""
    job = make_job(reference)
    job.kill_at("step:DECIDE", batch=1)
    assert job.state("status", "batch_id") == ("decided", 1)
    return job


def prepared_pair(job: Job) -> ProducerIdAndEpoch:
    """The pair of the transaction that the database has decided."""
    producer = PreparedTxnState(job.state("prepared_transaction_state")[0]).producer
    assert producer is not None
    return producer


def settle(job: Job) -> tuple[Action, ...]:
    report = job.recover()
    assert report.settled
    return report.actions


@pytest.mark.parametrize(
    ("reference", "bumps"),
    [({}, 2), ({"transaction.keep.prepared.form": "unchanged"}, 1)],
    indirect=["reference"],
    ids=["bump", "unchanged"],
)
def test_a_decided_transaction_is_taken_over_and_committed(decided: Job, bumps: int) -> None:
    """KIP-939: the pair that ends a kept transaction is a later one, and so is the pair that EndTxn answers.

    With apache/kafka#22704 it is the transaction's own, as without keepPreparedTxn.
    """
    pair = prepared_pair(decided)
    (action,) = settle(decided)
    assert action.kind == "commit"
    assert decided.state("status", "settled") == ("done", f"{pair.producer_id}:{pair.epoch + bumps}")
    decided.ends_well()


def test_each_recovery_that_dies_half_way_fences_the_one_before(decided: Job) -> None:
    """B11, B12, KIP-939: "the epoch is bumped", so that of several recoverers only the last can end the transaction."""
    pair = prepared_pair(decided)
    with decided.coordinator() as client:
        kept = [client.init_producer_id(keep_prepared=True) for _ in range(3)]
        assert [each.ongoing for each in kept] == [PreparedTxnState.of(pair)] * 3
        assert [each.producer.epoch for each in kept] == [pair.epoch + 1, pair.epoch + 2, pair.epoch + 3]
        # Neither the dead driver's pair nor that of an earlier recovery ends anything any more.
        for stale in (pair, kept[0].producer, kept[1].producer):
            assert client.end(stale, commit=False).code == Code.PRODUCER_FENCED
        assert client.describe().producer == pair
    settle(decided)
    decided.ends_well()


def test_row_and_history_are_lost_where_prepared_transactions_are_kept(decided: Job) -> None:
    """C14: no InitProducerId, which would take the transaction over, comes before the person's word."""
    pair = prepared_pair(decided)
    lose_row(decided, history=True)
    decided.refused(HaltCause.OPEN_TRANSACTION, times=2, adopt=True)
    assert (decided.describe().state, decided.describe().producer) == ("Ongoing", pair)
    assert decided.recover(adopt=True, open_transaction="commit", batch=1).settled
    assert decided.ends_well().placements[0] == (1, "SKIP")
