"""Transactions on real Kafka, read back by librdkafka. Covers B1, B2, B3, B6, B7, B12, B13, B21, B24, B29, B31."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import (
    BatchRetryError,
    ConfigurationError,
    FencedError,
    KafkaError,
    LocalProtocolError,
)
from spark_2pc_sink.ids import TIMEOUT_NEVER_MS, PreparedTxnState, ProducerIdAndEpoch, TopicPartition
from spark_2pc_sink.kafka.cluster import Cluster
from spark_2pc_sink.kafka.log_reader import Marker
from spark_2pc_sink.kafka.transaction_client import TransactionClient
from spark_2pc_sink.producer import WriterState
from spark_2pc_sink.testing import read_topic, wait_until
from spark_2pc_sink.wire.arrow_layout import EncodedRows
from tests.conftest import MakeTopic
from tests.harness.providers import Broker
from tests.integration.writer.writers import (
    commit_rows,
    committed,
    options_for,
    session_of,
    table_of,
    values,
    writer_of,
    writer_on,
)


def test_committed_records_are_read_and_aborted_ones_are_not(
    kafka_each_version: Broker, topic: MakeTopic, transactional_id: str
) -> None:
    """B29, B31, KIP-98: a consumer with read_committed sees committed transactions only."""
    name = topic(broker=kafka_each_version)
    with writer_on(kafka_each_version.bootstrap, transactional_id, name) as writer:
        for number, commit in enumerate([True, False, True, False]):
            writer.begin_transaction()
            writer.append(table_of(100, first=100 * number))
            receipts = writer.flush()
            assert sum(receipt.records for receipt in receipts.values()) == 100
            writer.commit_transaction() if commit else writer.abort_transaction()
        expected = sorted(f"value-{number}" for number in (*range(100), *range(200, 300)))
        assert values(committed(kafka_each_version.bootstrap, name, writer)) == expected
    uncommitted = read_topic(kafka_each_version.bootstrap, name, isolation="read_uncommitted")
    assert len(uncommitted) == 400


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_are_read_back_identical(
    kafka: Broker, topic: MakeTopic, transactional_id: str, compression: str
) -> None:
    """Key, value, headers, timestamp and partition, nulls and empty ones too, by an independent implementation."""
    name = topic(partitions=2)
    rows: dict[str, list[Any]] = {
        "partition": [0, 1, 0, 1, 0, 1],
        "key": [b"k", None, b"", "schlüssel".encode(), b"\x00\xff", b"big"],
        "value": [b"v", b"", None, "wert ✓".encode(), b"\xff\x00", bytes(range(256)) * 2000],
        "headers": [[("a", b"1"), ("a", b"2")], [], None, [("leer", b""), ("null", None)], [("ü", b"\x00")], []],
    }
    pairs = [item and [{"key": key, "value": value} for key, value in item] for item in rows["headers"]]
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    table = pa.table({**rows, "headers": pa.array(pairs, kind)})
    before_ms = time.time_ns() // 1_000_000
    with writer_on(kafka.bootstrap, transactional_id, name, compression_type=compression) as writer:
        commit_rows(writer, table)
        records = committed(kafka.bootstrap, name, writer)
    found = {(record.partition, record.key, record.value): record for record in records}
    assert len(found) == 6
    for partition, key, value, headers in zip(*rows.values(), strict=True):
        record = found[partition, key, value]
        assert list(record.headers) == list(headers or [])
        assert before_ms <= record.timestamp <= time.time_ns() // 1_000_000


def test_many_batches_in_flight_stay_in_order(kafka: Broker, topic: MakeTopic, transactional_id: str) -> None:
    name = topic(partitions=3)
    with writer_on(kafka.bootstrap, transactional_id, name, batch_size=2_000) as writer:
        writer.begin_transaction()
        for number in range(20):
            writer.append(table_of(500, first=500 * number))
        receipts = writer.flush()
        writer.commit_transaction()
        records = committed(kafka.bootstrap, name, writer)
    assert len(records) == 10_000
    for partition in range(3):
        mine = [record for record in records if record.partition == partition]
        numbers = [int((record.value or b"").removeprefix(b"value-")) for record in mine]
        assert numbers == sorted(numbers)
        receipt = receipts[TopicPartition(name, partition)]
        assert (receipt.first_offset, receipt.last_offset) == (mine[0].offset, mine[-1].offset)
        assert receipt.records == len(mine)


# --- prepare, die, complete ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("same", [True, False])
def test_a_new_client_completes_what_an_old_one_prepared(
    kafka: Broker, topic: MakeTopic, transactional_id: str, same: bool
) -> None:
    """KIP-939, 'Recovery recipe', on a broker without keepPreparedTxn: EndTxn with the stored pair."""
    name = topic(partitions=2)
    with writer_on(kafka.bootstrap, transactional_id, name, two_phase_commit=True) as first:
        assert first.two_phase_commit
        first.begin_transaction()
        first.append(table_of(10))
        state = first.prepare_transaction()
    with writer_of(kafka.bootstrap, transactional_id, name, resume=True) as second:
        second.init_transactions(keep_prepared_txn=True)
        assert second.state is WriterState.KEPT
        second.complete_transaction(state if same else PreparedTxnState())
        commit_rows(second, table_of(1, first=10))
        expected = [f"value-{number}" for number in (range(11) if same else range(10, 11))]
        assert values(committed(kafka.bootstrap, name, second)) == sorted(expected)


def test_released_brokers_do_not_keep_prepared_transactions(
    kafka_as_released: Broker, topic: MakeTopic, transactional_id: str
) -> None:
    """B3: the question changes nothing, so the prepared transaction is still there afterwards."""
    name = topic(broker=kafka_as_released)
    with writer_on(kafka_as_released.bootstrap, transactional_id, name, two_phase_commit=True) as writer:
        writer.begin_transaction()
        writer.append(table_of(10))
        state = writer.prepare_transaction()
        with Cluster(options_for(kafka_as_released.bootstrap)) as cluster:
            client = TransactionClient(cluster, transactional_id, cluster.options)
            with pytest.raises(KafkaError) as caught:
                client.init_producer_id(keep_prepared=True)
            assert caught.value.code == Code.UNSUPPORTED_VERSION
            described = client.describe()
            assert (described.state, str(described.producer)) == ("Ongoing", str(state))
        writer.complete_transaction(state)
        assert len(committed(kafka_as_released.bootstrap, name, writer)) == 10


def test_without_two_phase_commit_prepare_is_refused(
    kafka_without_2pc: Broker, topic: MakeTopic, transactional_id: str
) -> None:
    """B23: nobody has asked for it; and who asks for it is refused here, as KIP-939 has it."""
    name = topic(broker=kafka_without_2pc)
    with writer_of(kafka_without_2pc.bootstrap, transactional_id, name, two_phase_commit=True) as asking:
        with pytest.raises(KafkaError, match="no version with two-phase commit"):
            asking.init_transactions()
        assert asking.state is WriterState.UNINITIALISED
    with writer_on(kafka_without_2pc.bootstrap, transactional_id, name) as writer:
        assert not writer.two_phase_commit
        writer.begin_transaction()
        with pytest.raises(LocalProtocolError, match="INVALID_TXN_STATE"):
            writer.prepare_transaction()


def test_two_phase_commit_is_what_the_coordinator_stored(kafka: Broker, transactional_id: str) -> None:
    """B29, KIP-939: DescribeTransactions shows Integer.MAX_VALUE, and force-terminating sets it back."""
    with Cluster(options_for(kafka.bootstrap)) as cluster:
        client = TransactionClient(cluster, transactional_id, cluster.options)
        initialized = client.init_producer_id()
        assert (initialized.two_phase_commit, initialized.timeout_ms) == (True, TIMEOUT_NEVER_MS)
        assert client.describe().timeout_ms == TIMEOUT_NEVER_MS


def test_a_longer_timeout_is_refused_with_both_names(kafka_without_2pc: Broker, transactional_id: str) -> None:
    """B2."""
    options = options_for(kafka_without_2pc.bootstrap, transaction_timeout_ms=900_001)
    with Cluster(options) as cluster, pytest.raises(ConfigurationError, match=r"transaction\.max\.timeout\.ms.*900000"):
        TransactionClient(cluster, transactional_id, options).init_producer_id()


# --- several writers ----------------------------------------------------------------------------------------------


def test_a_second_writer_fences_the_first(kafka_each_version: Broker, topic: MakeTopic, transactional_id: str) -> None:
    """KIP-98, 'Fencing': InitProducerId aborts the open transaction, and the old pair is refused from then on (B21)."""
    name = topic(broker=kafka_each_version, partitions=1)
    with (
        writer_on(kafka_each_version.bootstrap, transactional_id, name) as first,
        writer_of(kafka_each_version.bootstrap, transactional_id, name) as second,
    ):
        first.begin_transaction()
        first.append(table_of(10, prefix="first"))
        first.flush()
        second.init_transactions()
        with pytest.raises(FencedError):
            first.commit_transaction()
        assert first.state is WriterState.FATAL
        commit_rows(second, table_of(10, prefix="second"))
        found = values(committed(kafka_each_version.bootstrap, name, second))
    assert found == sorted(f"second-{number}" for number in range(10))


def test_a_second_writer_of_the_same_partition_and_pair_is_noticed(
    kafka: Broker, topic: MakeTopic, transactional_id: str
) -> None:
    """A task that runs twice starts at sequence 0 again, and the broker takes its batches for repetitions (A4, B5)."""
    partition = TopicPartition(topic(partitions=1), 0)
    options = options_for(kafka.bootstrap)
    with Cluster(options) as cluster:
        client = TransactionClient(cluster, transactional_id, options)
        producer = client.usable_producer().producer
        early = session_of(cluster, client, producer)
        tables = table_of(10), table_of(10, prefix="other")
        rows, other = (EncodedRows.of(table["key"], table["value"], None) for table in tables)
        late = session_of(cluster, client, producer)
        # The late one has looked at the partition before the early one writes: its offsets alone say nothing.
        late.append(partition, other)
        early.append(partition, rows)
        early.flush()
        with pytest.raises(BatchRetryError, match="another writer"):
            late.flush()
        third = session_of(cluster, client, producer)
        third.append(partition, other)
        with pytest.raises(BatchRetryError, match="another writer"):
            third.flush()


# --- what the coordinator and the log say afterwards --------------------------------------------------------------


def test_end_is_answered_as_often_as_it_is_asked(
    kafka_each_version: Broker, topic: MakeTopic, transactional_id: str
) -> None:
    """B6, B7: the same outcome again is success, the opposite one INVALID_TXN_STATE; neither is interpreted here."""
    name = topic(broker=kafka_each_version, partitions=1)
    with writer_on(kafka_each_version.bootstrap, transactional_id, name) as writer:
        writer.begin_transaction()
        writer.append(table_of(1))
        writer.flush()
        producer, client = writer.producer, writer._client
        assert producer is not None
        first = client.end(producer, commit=True)
        again = client.end(producer, commit=True)
        assert (first.code, again.code) == (Code.NONE, Code.NONE)
        assert first.producer == again.producer
        assert (first.producer is None) == (client.transaction_version < 2)
        assert client.end(producer, commit=False).code == Code.INVALID_TXN_STATE


def marker_of(
    client: TransactionClient, partition: TopicPartition, from_offset: int, producer: ProducerIdAndEpoch | None
) -> Marker:
    """What the log says of the transaction of ``producer`` behind an offset."""
    assert producer is not None
    epochs = frozenset({producer.epoch, producer.epoch + 1})
    return client.find_marker(
        partition, from_offset=from_offset, producer_id=producer.producer_id, epochs=epochs, limit_ms=60_000
    )


def is_settled(look: Callable[[], Marker]) -> bool:
    """True once the end marker is written."""
    return look() is not Marker.OPEN


def test_the_log_remembers_how_a_transaction_ended(
    kafka_each_version: Broker, topic: MakeTopic, transactional_id: str
) -> None:
    name = topic(broker=kafka_each_version, partitions=1)
    with writer_on(kafka_each_version.bootstrap, transactional_id, name) as writer:
        for outcome in (True, False):
            writer.begin_transaction()
            writer.append(table_of(10))
            last_offset = writer.flush()[TopicPartition(name, 0)].last_offset
            look = partial(marker_of, writer._client, TopicPartition(name, 0), last_offset + 1, writer.producer)
            assert look() is Marker.OPEN
            writer.commit_transaction() if outcome else writer.abort_transaction()
            wait_until(partial(is_settled, look), what="the end marker")
            assert look() is (Marker.COMMIT if outcome else Marker.ABORT)
        assert marker_of(writer._client, TopicPartition(name, 0), 10_000, writer.producer) is Marker.MISSING
