"""Brokers that die, stall or lose answers under a writer. Covers B4, B7, B13, B14, B22, B25, B29."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial

import pytest

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import KafkaError, KafkaTimeoutError, OutcomeUnknownError
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.kafka.cluster import Cluster
from spark_2pc_sink.kafka.log_reader import Marker
from spark_2pc_sink.kafka.transaction_client import TransactionClient
from spark_2pc_sink.producer import TransactionalWriter, WriterState
from spark_2pc_sink.testing import ReferenceCoordinator, kafka_request, wait_until
from spark_2pc_sink.wire.api_versions import Api
from tests.conftest import MakeTopic, StartKafka
from tests.harness.later import later
from tests.harness.providers import Broker
from tests.integration.writer.writers import (
    DEADLINE_S,
    committed,
    options_for,
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
        wait_until(lambda: client.describe().state == "CompleteAbort", deadline_s=DEADLINE_S, what="the broker's abort")
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
