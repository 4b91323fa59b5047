"""A writer in every state, and every call on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import AbortableError, FencedError, OutcomeUnknownError
from spark_2pc_sink.ids import PreparedTxnState
from spark_2pc_sink.producer import Operation, TransactionalWriter, WriterState
from spark_2pc_sink.wire.api_versions import Api
from tests.unit.fakes.cluster import FakeCluster
from tests.unit.fakes.coordinator import FakeTransaction
from tests.unit.fakes.wire import answer
from tests.unit.producer.support import T0, kafka_for, options_for

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
