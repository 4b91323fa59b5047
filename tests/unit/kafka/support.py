"""Helpers of the producer's unit tests; a writer in every state, and every call on it."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pyarrow as pa
import pytest

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import AbortableError, FencedError, OutcomeUnknownError
from spark_2pc_sink.ids import PreparedTxnState, ProducerIdAndEpoch, TopicPartition
from spark_2pc_sink.kafka.batch_sender import ProducedTransaction
from spark_2pc_sink.kafka.cluster import Cluster
from spark_2pc_sink.kafka.produce_session import ProduceSession
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.options.settings import shown_name
from spark_2pc_sink.producer import Operation, TransactionalWriter, WriterState
from spark_2pc_sink.wire.api_versions import Api
from spark_2pc_sink.wire.arrow_layout import EncodedRows
from tests.unit.fakes.cluster import FakeCluster
from tests.unit.fakes.coordinator import FakeTransaction
from tests.unit.fakes.wire import answer
from tests.unit.reference.batches import client_batch

T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)
PAIR = ProducerIdAndEpoch(7, 3)
#: Options with short pauses, so that nothing waits for long.
SHORT: dict[str, Any] = {
    "compression": "none",
    "retry_backoff_ms": 2,
    "retry_backoff_max_ms": 10,
    "reconnect_backoff_ms": 1,
    "reconnect_backoff_max_ms": 5,
    "request_timeout_ms": 5_000,
    "delivery_timeout_ms": 10_000,
    "max_block_ms": 10_000,
}


def options_for(cluster: FakeCluster | str, **overrides: Any) -> KafkaOptions:
    """Options of a client of this cluster: `SHORT`, and others."""
    bootstrap = cluster if isinstance(cluster, str) else cluster.bootstrap
    return KafkaOptions(**{"bootstrap_servers": (bootstrap,), **SHORT, **overrides})


def kafka_for(cluster: FakeCluster | str, **overrides: Any) -> dict[str, str | int]:
    """The properties of `options_for`, as a user writes them."""
    options = options_for(cluster, **overrides)
    names = ("bootstrap_servers", *SHORT, *overrides)
    given = {shown_name(item): getattr(options, item.name) for item in fields(options) if item.name in names}
    return given | {"bootstrap.servers": options.bootstrap_servers[0]}


def session_on(cluster: Cluster, *, transaction_version: int = 2, **overrides: Any) -> ProduceSession:
    options = cluster.options
    if overrides:
        options = options_for(options.bootstrap_servers[0], **overrides)
    return ProduceSession(
        cluster, ProducedTransaction("orders", PAIR, transaction_version), options, timestamp_ms=1_700_000_000_000
    )


def rows(*values: str) -> EncodedRows:
    """Rows whose key is their value."""
    column = pa.array([value.encode() for value in values], pa.binary())
    return EncodedRows.of(column, column, None)


def one_batch_each(session: ProduceSession, partition: TopicPartition, *values: str) -> None:
    """Append one record per batch: each is larger than half a batch of `SMALL_BATCHES`."""
    for value in values:
        session.append(partition, rows(value.ljust(60, ".")))


def sent_batches(fake: FakeCluster) -> list[tuple[int, bytes]]:
    """Partition and bytes of every batch that came, in order of arrival."""
    return [
        (data.index, bytes(data.records))
        for request in fake.of(Api.PRODUCE)
        for topic in request.body.topic_data
        for data in topic.partition_data
    ]


def data(
    fake: FakeCluster, producer: ProducerIdAndEpoch, count: int = 1, *, at: TopicPartition = T0, timestamp_ms: int = 0
) -> int:
    """Put a batch of a transaction into a log, whatever the coordinator says; its first offset."""
    pair = (producer.producer_id, producer.epoch)
    batch = client_batch([b"x"] * count, producer=pair, transactional=True, timestamps_ms=timestamp_ms)
    return fake.partitions[at].put(batch)


def marker(fake: FakeCluster, producer: ProducerIdAndEpoch, *, kind: int, at: TopicPartition = T0) -> int:
    """Put a control batch into a log, as KIP-98 has it; its offset."""
    pair, key, value = (producer.producer_id, producer.epoch), struct.pack(">hh", 0, kind), struct.pack(">hi", 0, 1)
    batch = client_batch([value], keys=[key], producer=pair, transactional=True, control=True, timestamps_ms=0)
    return fake.partitions[at].put(batch)


#: With these options `one_batch_each` makes one batch of each record.
SMALL_BATCHES = {"batch_bytes_max": 200, "max_request_bytes": 10_000}


ROWS = pa.table({"partition": [0], "value": ["v"]})


def writer_on(
    fake: FakeCluster, *, resume: bool = False, two_phase_commit: bool = False, **overrides: Any
) -> TransactionalWriter:
    return TransactionalWriter(
        transactional_id="orders",
        kafka=kafka_for(fake, **overrides),
        topic="t",
        resume=resume,
        two_phase_commit=two_phase_commit,
    )


def in_transaction(writer: TransactionalWriter) -> None:
    writer.init_transactions()
    writer.begin_transaction()
    writer.append(ROWS)


def prepared(writer: TransactionalWriter) -> None:
    in_transaction(writer)
    writer.prepare_transaction()


def kept(writer: TransactionalWriter, fake: FakeCluster) -> None:
    fake.know(FakeTransaction(7, 4, partitions=(T0,)))
    writer.init_transactions(keep_prepared_txn=True)


def must_abort(writer: TransactionalWriter, fake: FakeCluster) -> None:
    in_transaction(writer)
    fake.script(Api.PRODUCE, answer(Code.TRANSACTION_ABORTABLE))
    with pytest.raises(AbortableError):
        writer.flush()


def unknown(writer: TransactionalWriter, fake: FakeCluster, *, commit: bool) -> None:
    in_transaction(writer)
    writer.flush()
    writer._client._cluster.options = options_for(fake, max_block_ms=50)
    fake.script(Api.END_TXN, *[answer(Code.CONCURRENT_TRANSACTIONS)] * 1000)
    with pytest.raises(OutcomeUnknownError):
        writer.commit_transaction() if commit else writer.abort_transaction()
    fake.end_scripts()
    writer._client._cluster.options = options_for(fake)


def fatal(writer: TransactionalWriter, fake: FakeCluster) -> None:
    in_transaction(writer)
    fake.script(Api.PRODUCE, answer(Code.INVALID_PRODUCER_EPOCH))
    with pytest.raises(FencedError):
        writer.flush()


REACH: dict[WriterState, Callable[[TransactionalWriter, FakeCluster], None]] = {
    WriterState.UNINITIALISED: lambda _writer, _fake: None,
    WriterState.READY: lambda writer, _fake: writer.init_transactions(),
    WriterState.IN_TRANSACTION: lambda writer, _fake: in_transaction(writer),
    WriterState.PREPARED: lambda writer, _fake: prepared(writer),
    WriterState.KEPT: kept,
    WriterState.KEPT_NOTHING: lambda writer, _fake: writer.init_transactions(keep_prepared_txn=True),
    WriterState.MUST_ABORT: must_abort,
    WriterState.COMMITTING: lambda writer, fake: unknown(writer, fake, commit=True),
    WriterState.ABORTING: lambda writer, fake: unknown(writer, fake, commit=False),
    WriterState.FATAL: fatal,
    WriterState.CLOSED: lambda writer, _fake: writer.close(),
}
CALL: dict[Operation, Callable[[TransactionalWriter], object]] = {
    Operation.INIT: lambda writer: writer.init_transactions(),
    Operation.INIT_KEEPING: lambda writer: writer.init_transactions(keep_prepared_txn=True),
    Operation.BEGIN: lambda writer: writer.begin_transaction(),
    Operation.APPEND: lambda writer: writer.append(ROWS),
    Operation.FLUSH: lambda writer: writer.flush(),
    Operation.PREPARE: lambda writer: writer.prepare_transaction(),
    Operation.COMPLETE: lambda writer: writer.complete_transaction(PreparedTxnState("9:9")),
    Operation.COMMIT: lambda writer: writer.commit_transaction(),
    Operation.ABORT: lambda writer: writer.abort_transaction(),
    Operation.CLOSE: lambda writer: writer.close(),
}


def observable(writer: TransactionalWriter, fake: FakeCluster) -> object:
    """Everything that a refused call must leave alone."""
    return (
        writer.state,
        writer.producer,
        writer._prepared,
        writer._started,
        writer._producer_is_fresh,
        writer._session,
        len(fake.received),
        fake.partitions[T0].values,
    )
