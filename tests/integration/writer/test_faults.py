"""Brokers that die, stall or change, and clocks that jump. Covers B4, B7, B13, B14, B22, B24, B25, B29, B33."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from functools import partial

import pytest

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import ConfigurationError, KafkaError, KafkaTimeoutError, OutcomeUnknownError
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.kafka.cluster import Cluster
from spark_2pc_sink.kafka.log_reader import Marker
from spark_2pc_sink.kafka.transaction_client import TransactionClient
from spark_2pc_sink.producer import TransactionalWriter, WriterState
from spark_2pc_sink.testing import ReferenceCoordinator, kafka_request, wait_until
from spark_2pc_sink.wire.api_versions import Api
from tests.conftest import MakeTopic, StartKafka, or_skip
from tests.harness.acts import later
from tests.harness.kafka_tools import set_transaction_version
from tests.harness.providers import Broker, BrokerRequest, Provider
from tests.integration.writer.writers import (
    HOUR_NS,
    commit_rows,
    committed,
    options_for,
    shift_clock,
    table_of,
    values,
    writer_on,
)

#: How often a broker looks for transactions that have timed out.
OFTEN = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}
EXPECTED = sorted(f"value-{number}" for number in range(20_000))


def append_in_pieces(writer: TransactionalWriter, pieces: range) -> None:
    for number in pieces:
        writer.append(table_of(1_000, first=1_000 * number))


@pytest.fixture
def grants_2pc(start_kafka: StartKafka) -> Broker:
    return start_kafka(two_phase_commit=True)


def test_a_broker_killed_and_restarted_in_mid_flush_loses_nothing(
    grants_2pc: Broker, topic: MakeTopic, transactional_id: str
) -> None:
    """B14, B22: batches that the dead broker had are answered as duplicates, the others are appended; each once."""
    broker = grants_2pc
    name = topic(broker=broker, partitions=3)
    with writer_on(broker.bootstrap, transactional_id, name, batch_size=20_000) as writer:
        writer.begin_transaction()
        append_in_pieces(writer, range(10))
        broker.kill()
        restarting = threading.Thread(target=broker.start)
        restarting.start()
        try:
            append_in_pieces(writer, range(10, 20))
            receipts = writer.flush()
        finally:
            restarting.join()
        assert sum(receipt.records for receipt in receipts.values()) == 20_000
        writer.commit_transaction()
        assert values(committed(broker.bootstrap, name, writer)) == EXPECTED


def test_a_coordinator_killed_before_commit_is_found_again(
    grants_2pc: Broker, topic: MakeTopic, transactional_id: str
) -> None:
    """B14: it comes back with the prepared transaction."""
    broker = grants_2pc
    name = topic(broker=broker)
    with writer_on(broker.bootstrap, transactional_id, name, two_phase_commit=True) as writer:
        writer.begin_transaction()
        writer.append(table_of(100))
        state = writer.prepare_transaction()
        broker.kill()
        broker.start()
        writer.complete_transaction(state)
        assert len(committed(broker.bootstrap, name, writer)) == 100


def test_a_lost_answer_to_end_txn_is_asked_for_again(kafka: Broker, topic: MakeTopic, transactional_id: str) -> None:
    """B4: the repeated request is answered as a retry, with the same pair (KIP-890, 'Client retries')."""
    name = topic(partitions=1)
    with kafka.proxy() as proxy:
        with writer_on(proxy.address, transactional_id, name) as writer:
            writer.begin_transaction()
            writer.append(table_of(100))
            writer.flush()
            before = writer.producer
            proxy.lose_answer(kafka_request(Api.END_TXN))
            writer.commit_transaction()
            assert proxy.wait_for_lost_answer(deadline_s=1)
            assert before is not None
            assert writer.producer == before.bumped()
        assert len(committed(kafka.bootstrap, name, transactional_id)) == 100


def test_a_commit_without_an_answer_is_unknown_and_settled_by_repeating_it(
    kafka: Broker, topic: MakeTopic, transactional_id: str
) -> None:
    """B4: the call that timed out may be repeated, and only that one."""
    name = topic(partitions=1)
    with kafka.proxy() as proxy:
        with writer_on(proxy.address, transactional_id, name, max_block_ms=2_000, request_timeout_ms=500) as writer:
            writer.begin_transaction()
            writer.append(table_of(100))
            writer.flush()
            proxy.hold_answers()
            with pytest.raises(OutcomeUnknownError):
                writer.commit_transaction()
            assert writer.state is WriterState.COMMITTING
            proxy.restore()
            writer.commit_transaction()
        assert len(committed(kafka.bootstrap, name, transactional_id)) == 100


def test_a_broker_that_stalls_longer_than_a_request_may_take(
    grants_2pc: Broker, topic: MakeTopic, transactional_id: str
) -> None:
    """B29: a stall is a time-out and a repetition, never a fatal error."""
    broker = grants_2pc
    name = topic(broker=broker, partitions=1)
    with writer_on(broker.bootstrap, transactional_id, name, request_timeout_ms=500, batch_size=20_000) as writer:
        writer.begin_transaction()
        append_in_pieces(writer, range(5))
        broker.pause()
        with later(1.5, broker.resume):
            append_in_pieces(writer, range(5, 20))
            writer.flush()
        writer.commit_transaction()
        assert values(committed(broker.bootstrap, name, writer)) == EXPECTED


def test_a_broker_that_is_gone_is_an_error_in_time(
    start_kafka: StartKafka, topic: MakeTopic, transactional_id: str
) -> None:
    """B25: every call ends, and says where it could not connect."""
    broker = start_kafka()
    name = topic(broker=broker)
    with writer_on(broker.bootstrap, transactional_id, name):
        """A coordinator that has just started may load for longer than what follows allows."""
    bounds = {"max_block_ms": 1_000, "delivery_timeout_ms": 1_500, "request_timeout_ms": 500}
    impatient = partial(writer_on, broker.bootstrap, transactional_id, name, **bounds)
    with impatient() as writer:
        writer.begin_transaction()
        writer.append(table_of(10))
        broker.kill()
        began_s = time.monotonic()
        with pytest.raises(KafkaTimeoutError):
            writer.flush()
        with pytest.raises(OutcomeUnknownError):
            writer.abort_transaction()
    with pytest.raises(KafkaTimeoutError, match=r"bootstrap\.servers=.*ECONNREFUSED"), impatient():
        raise AssertionError("nothing may be taken over")
    assert time.monotonic() - began_s < 15


@pytest.fixture(params=["released", "KAFKA-20785"])
def aborting(request: pytest.FixtureRequest, start_kafka: StartKafka) -> Iterator[tuple[Broker, Code]]:
    """A broker that soon aborts what has timed out, and what it answers to a commit that comes later."""
    if request.param == "released":
        yield start_kafka(properties=OFTEN), Code.INVALID_TXN_STATE
        return
    newer = OFTEN | {"transaction.late.commit.fenced.enable": "true"}
    with ReferenceCoordinator(two_phase_commit=False, properties=newer) as reference:
        yield reference, Code.PRODUCER_FENCED


def test_a_transaction_that_timed_out_cannot_be_committed(
    aborting: tuple[Broker, Code], topic: MakeTopic, transactional_id: str
) -> None:
    """B1, B7: the broker aborts by itself; EndTxn(commit) is refused then, and the log says ABORT."""
    broker, answer = aborting
    name = topic(broker=broker, partitions=1)
    options, timeout = options_for(broker.bootstrap), {"transaction_timeout_ms": 1_000}
    with (
        writer_on(broker.bootstrap, transactional_id, name, resume=True, **timeout) as writer,
        Cluster(options) as cluster,
    ):
        writer.begin_transaction()
        writer.append(table_of(10))
        writer.flush()
        state = writer.prepare_transaction()
        client = TransactionClient(cluster, transactional_id, options)
        wait_until(lambda: client.describe().state == "CompleteAbort", what="the broker's abort")
        with pytest.raises(KafkaError, match="after its time-out of 1000 ms") as caught:
            writer.complete_transaction(state)
        assert (type(caught.value), caught.value.code) == (KafkaError, answer)
        assert writer.state is WriterState.FATAL
        producer = state.producer
        assert producer is not None
        marker = client.find_marker(
            TopicPartition(name, 0),
            from_offset=10,
            producer_id=producer.producer_id,
            epochs=frozenset({producer.epoch, producer.epoch + 1}),
            limit_ms=options.max_block_ms,
        )
        assert marker is Marker.ABORT
        assert committed(broker.bootstrap, name, transactional_id) == []


def test_a_two_phase_transaction_does_not_time_out(
    start_kafka: StartKafka, topic: MakeTopic, transactional_id: str
) -> None:
    """KIP-939: 'transaction.max.timeout.ms doesn't apply' to enable2Pc; here a stored timeout of 1 s would have."""
    broker = start_kafka(two_phase_commit=True, properties=OFTEN | {"transaction.max.timeout.ms": "1000"})
    name = topic(broker=broker, partitions=1)
    with writer_on(broker.bootstrap, transactional_id, name, two_phase_commit=True) as writer:
        writer.begin_transaction()
        writer.append(table_of(10))
        state = writer.prepare_transaction()
        time.sleep(3)  # three timeouts and fifteen rounds of the broker's search: nothing to wait for else
        writer.complete_transaction(state)
        assert len(committed(broker.bootstrap, name, writer)) == 10


@pytest.fixture(
    scope="module",
    params=["reference", pytest.param("kafka", marks=[pytest.mark.kafka, pytest.mark.java, pytest.mark.slow])],
)
def broker(request: pytest.FixtureRequest, provider: Provider) -> Iterator[Broker]:
    """A broker whose level nobody else minds."""
    if request.param == "reference":
        with ReferenceCoordinator(keep_prepared=False) as reference:
            yield reference
        return
    kafka = or_skip(request.config, lambda: provider.start_broker(BrokerRequest(two_phase_commit=True)))
    yield kafka
    kafka.close()


@pytest.fixture
def orders(broker: Broker) -> str:
    """A topic of the test's own, which is its transactional id as well."""
    return broker.create_topic(f"orders-{uuid.uuid4().hex}", partitions=3)


def test_a_writer_goes_on(broker: Broker, orders: str) -> None:
    """B24: up and down between its transactions, committed and aborted ones, whichever level each begins at."""
    kept: list[str] = []
    with writer_on(broker.bootstrap, orders, orders) as writer:
        for turn, level in enumerate((0, 2, 1, 2, 0, 0, 2)):
            set_transaction_version(broker.bootstrap, level)
            for commit in (True, False, True):
                prefix = f"turn-{turn}-{commit}"
                writer.begin_transaction()
                assert writer._client.transaction_version == level
                writer.append(table_of(20, prefix=prefix))
                if commit:
                    writer.commit_transaction()
                    kept += [f"{prefix}-{number}" for number in range(20)]
                else:
                    writer.abort_transaction()
    assert values(committed(broker.bootstrap, orders, orders)) == sorted(kept)


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize(("begun", "ended"), [(2, 0), (0, 2)])
def test_an_open_transaction_ends_at_another_level(
    broker: Broker, begun: int, ended: int, commit: bool, orders: str
) -> None:
    """B24, the prepared one too: no answer says that the level is another, so the writer asks before it ends one."""
    set_transaction_version(broker.bootstrap, begun)
    with writer_on(broker.bootstrap, orders, orders, two_phase_commit=True) as writer:
        writer.begin_transaction()
        writer.append(table_of(5, prefix="over"))
        prepared = writer.prepare_transaction()
        set_transaction_version(broker.bootstrap, ended)
        if commit:
            writer.complete_transaction(prepared)
        else:
            writer.abort_transaction()
        commit_rows(writer, table_of(5, prefix="next"))
    over = [f"over-{number}" for number in range(5)] if commit else []
    assert values(committed(broker.bootstrap, orders, orders)) == sorted([*over, *(f"next-{n}" for n in range(5))])


@pytest.mark.parametrize("hours", [-1.0, 0.9])
def test_an_hour_changes_nothing(
    hours: float, kafka: Broker, topic: MakeTopic, transactional_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B33: the clock is set back, or forward, in the middle of a transaction; each record is there once."""
    name = topic(partitions=2)
    with writer_on(kafka.bootstrap, transactional_id, name, batch_size=2_000) as writer:
        writer.begin_transaction()
        writer.append(table_of(500))
        shift_clock(monkeypatch, int(hours * HOUR_NS))
        writer.append(table_of(500, first=500))
        writer.commit_transaction()
        commit_rows(writer, table_of(500, first=1_000))
        assert values(committed(kafka.bootstrap, name, writer)) == sorted(f"value-{n}" for n in range(1_500))


def test_a_clock_far_away_is_named(
    kafka: Broker, topic: MakeTopic, transactional_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B33: a topic refuses records of the future from an hour on by default."""
    name = topic(partitions=1)
    with writer_on(kafka.bootstrap, transactional_id, name) as writer:
        with monkeypatch.context() as ahead:
            shift_clock(ahead, 2 * HOUR_NS)
            writer.begin_transaction()
            writer.append(table_of(100))
            said = f"{name}-0 must accept records with this time: Timestamp .*stamped with this machine's time"
            with pytest.raises(ConfigurationError, match=said) as raised:
                writer.flush()
        assert all(f"message.timestamp.{bound}.max.ms" in str(raised.value) for bound in ("before", "after"))
        writer.abort_transaction()
        commit_rows(writer, table_of(10))
        assert values(committed(kafka.bootstrap, name, writer)) == sorted(f"value-{n}" for n in range(10))
