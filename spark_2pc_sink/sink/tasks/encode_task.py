"""The task of a batch: rows in, and out of it COPY bytes and record batches for the driver, and one receipt for Spark.

A task has no effect on Kafka or the database, so Spark may run it again: what an attempt has sent is dropped, or the
attempt of the batch is given up. The driver runs the same code for a batch of a few rows, which it has collected.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from spark_2pc_sink.errors import DualWriteError, LocalProtocolError
from spark_2pc_sink.producer.record_encoder import RecordEncoder
from spark_2pc_sink.sink.contract import record_columns
from spark_2pc_sink.sink.contract.receipts import TaskReceipt
from spark_2pc_sink.sink.stream.frames import DriverMessage, Frame, RecordsHeader
from spark_2pc_sink.sink.stream.task_stream import StreamOutput, TaskStream
from spark_2pc_sink.sink.table.copy_encoder import CopyEncoder
from spark_2pc_sink.sink.tasks.task_input import RowPartitioner, completed_rows, unpacked
from spark_2pc_sink.wire.digest import EMPTY_DIGEST, combine_digests, content_digest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from spark_2pc_sink.producer.record_encoder import EncodedBatch
    from spark_2pc_sink.sink.contract.task_plan import LanePlan, RowEncoderPlan, TaskIdentity, TaskPlan, Topics
    from spark_2pc_sink.wire.arrow_layout import ArrowColumn


_WORD_BYTES = 8


def row_digest(table: str, rows: pa.RecordBatch) -> int:
    """The digest of rows for a table: 0 to 2^128 - 1.

    Args:
        table: as the user names it; the same rows in another table are others.
        rows: with the columns of the table.
    """
    words = np.column_stack([word for column in rows.columns for word in _words(column)])
    width = pa.binary(words.shape[1] * _WORD_BYTES)
    hashed = np.ascontiguousarray(words).tobytes()
    return content_digest(table, pa.Array.from_buffers(width, len(words), [None, pa.py_buffer(hashed)]))


def _words(column: ArrowColumn) -> list[Any]:
    """For each row whether there is a value, and 64 bits of it; those of a missing one are 0."""
    there = np.asarray(column.is_valid())
    return [there.astype(np.int64), np.where(there, _values(column), 0)]


def _values(column: ArrowColumn) -> Any:
    kind = column.type
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        return column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    if pa.types.is_floating(kind):
        return column.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False).view(np.int64)
    if pa.types.is_date32(kind):
        return column.cast(pa.int32()).cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    if pa.types.is_temporal(kind):
        return column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        column = column.cast(pa.large_binary())
    elif not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        # Decimals, and arrays: equal ones of a type are shown alike.
        column = pa.array([repr(value).encode() for value in column.to_pylist()], pa.large_binary())
    texts = column.fill_null(b"").to_numpy(zero_copy_only=False).tolist()
    return np.fromiter(map(xxhash.xxh3_64_intdigest, texts), np.uint64, len(texts)).view(np.int64)


#: An Arrow batch with fewer rows for each partition waits for more: each cut takes as long as encoding some of them.
_ROWS_EACH: Final = 128
#: Bytes of Arrow batches that wait, at most; as much as `record_encoder.KEPT_BYTES_MAX`, which they become.
_WAITING_BYTES_MAX: Final = 32 * 1024 * 1024
#: Rows for the table are encoded in pieces of so many Arrow bytes: the driver writes one while the next is encoded.
_PIECE_BYTES: Final = 1024 * 1024


def run_encode_task(
    batches: Iterable[pa.RecordBatch], plan: TaskPlan, identity: TaskIdentity
) -> Iterator[pa.RecordBatch]:
    """Encode the rows of one Spark partition, and send the result to the driver; yields one receipt.

    Args:
        batches: the rows, with the columns that `record_columns` names.
        plan: what to do, with a stream.
        identity: of the task.
    """
    if plan.stream is None:
        raise LocalProtocolError(operation="encode", state="no stream", rule="a task sends what it makes")
    try:
        with TaskStream(plan.stream, identity.task, identity.task_attempt) as stream:
            receipt = encode(batches, plan, identity, stream)
    except DualWriteError as error:
        receipt = TaskReceipt(identity.task, identity.task_attempt, error=error)
    yield receipt.to_result()


def run_reread_task(
    batches: Iterable[pa.RecordBatch], plan: TaskPlan, identity: TaskIdentity
) -> Iterator[pa.RecordBatch]:
    """Encode the rows of one Spark partition for the digest of their records alone; yields one receipt.

    Args:
        batches: the rows, with the columns that `record_columns` names.
        plan: what to do; a stream in it is used to ask for topics.
        identity: of the task.
    """
    try:
        if plan.stream is None:
            receipt = encode(batches, plan, identity, _Nowhere(None))
        else:
            with TaskStream(plan.stream, identity.task, identity.task_attempt) as stream:
                receipt = encode(batches, plan, identity, _Nowhere(stream))
    except DualWriteError as error:
        receipt = TaskReceipt(identity.task, identity.task_attempt, error=error)
    yield receipt.to_result()


def encode(
    batches: Iterable[pa.RecordBatch], plan: TaskPlan, identity: TaskIdentity, output: StreamOutput
) -> TaskReceipt:
    """Encode rows, in a task or in the driver.

    Args:
        batches: the rows, with the columns that `record_columns` names.
        plan: what to do.
        identity: of the task; any for the driver.
        output: where to.

    Raises:
        UnstorableValueError, RecordTooLargeError: a row cannot be encoded.
        BatchRetryError: the driver does not take the result.
    """
    topics = replace(plan.topics, ask=plan.topics.ask or output.ask)
    lanes = [_LaneEncoder(plan, lane, topics, output) for lane in plan.lanes]
    rows = arrow_bytes = 0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        rows += batch.num_rows
        arrow_bytes += batch.nbytes
        for each in lanes:
            each.encode(batch)
    for each in lanes:
        each.finish()
    output.finish()
    return TaskReceipt(
        task=identity.task,
        task_attempt=identity.task_attempt,
        rows=rows,
        lane_rows={each.plan.index: each.row_count for each in lanes},
        left_out={each.plan.index: each.left_out for each in lanes if each.left_out},
        sent=output.totals,
        digest=combine_digests(*(each.digest for each in lanes)),
        row_digest=combine_digests(*(each.row_digest for each in lanes)),
        arrow_bytes=arrow_bytes,
    )


class _Nowhere(StreamOutput):
    """The output of a task of which only the receipt is asked for.

    Args:
        stream: to the driver, which answers questions; None where none comes.
    """

    def __init__(self, stream: TaskStream | None) -> None:
        super().__init__()
        self._stream = stream

    def ask(self, question: bytes) -> bytes:
        """See `StreamOutput.ask`."""
        if self._stream is None:
            raise LocalProtocolError(operation="ask", state="no stream", rule="the driver has told all topics")
        return self._stream.ask(question)

    def _put(self, frame: Frame) -> None:
        """Only questions are sent."""

    def _receive(self, expected: DriverMessage) -> bytes:
        del expected  # the receipt: an answer is given by `ask`
        if self._stream is not None:
            self._stream.finish()
        return b""


class _LaneEncoder:
    """The rows of one lane: completed, encoded for topic and table, and sent.

    Args:
        plan: of the task.
        lane: of that plan.
        topics: of the task.
        output: where to.
    """

    def __init__(self, plan: TaskPlan, lane: LanePlan, topics: Topics, output: StreamOutput) -> None:
        self.plan = lane
        self.row_count = self.left_out = 0
        self.digest = self.row_digest = EMPTY_DIGEST
        self._output = output
        self._count_of = topics.partition_count
        self._partitioner = RowPartitioner(lane.topic, topics.partition_count)
        self._records = RecordEncoder(plan.encoding, timestamp_ms=plan.timestamp_ms, limits=topics.limits_of)
        self._rows = None if lane.row_encoder is None else RowPieces(lane.row_encoder)
        self._waiting: list[pa.RecordBatch] = []

    def encode(self, batch: pa.RecordBatch) -> None:
        """Take an Arrow batch as Spark hands it over."""
        rows = batch if self.plan.packed is None else unpacked(batch.column(self.plan.packed))
        self.row_count += rows.num_rows
        if not rows.num_rows:
            return
        if self.plan.told_as is not None:
            self.row_digest = combine_digests(self.row_digest, row_digest(self.plan.told_as, rows))
        completed = completed_rows(self.plan, rows)
        if self.plan.sends:
            self._gather(self._without_superseded(completed))
        if self._rows is not None:
            for data, count in self._rows.encode(completed):
                self._output.rows(self.plan.index, data, count)

    def finish(self) -> None:
        """All rows have come: send what is left of them."""
        self._encode_waiting()
        self._send(self._records.finish())
        if self._rows is not None:
            data, count = self._rows.finish()
            if data:
                self._output.rows(self.plan.index, data, count)

    def _without_superseded(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        if not self.plan.leaves_out:
            return rows
        stays = rows.filter(pc.invert(rows.column(record_columns.SUPERSEDED)))
        self.left_out += rows.num_rows - stays.num_rows
        return stays

    def _gather(self, rows: pa.RecordBatch) -> None:
        """Encode what waits once it has enough rows for each partition."""
        if rows.num_rows:
            self._waiting.append(rows)
        row_count = sum(each.num_rows for each in self._waiting)
        enough = self.plan.topic is None or row_count >= _ROWS_EACH * self._count_of(self.plan.topic)
        if enough or sum(each.nbytes for each in self._waiting) >= _WAITING_BYTES_MAX:
            self._encode_waiting()

    def _encode_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        if len(waiting) > 1:
            waiting = pa.Table.from_batches(waiting).combine_chunks().to_batches()
        for rows in waiting:
            for part in self._partitioner.split_batch(rows):
                self._send(self._records.append(part.partition, part.rows))

    def _send(self, batches: Iterable[EncodedBatch]) -> None:
        for batch in batches:
            self.digest = combine_digests(self.digest, batch.digest)
            header = RecordsHeader(batch.partition, batch.record_count, batch.digest, batch.row_key)
            self._output.records(self.plan.index, header, batch.payload)


class RowPieces:
    """COPY bytes of rows in pieces of about a MiB, each of whole rows.

    Args:
        plan: of the lane.
    """

    def __init__(self, plan: RowEncoderPlan) -> None:
        self._encoder = CopyEncoder(plan.columns, row_key=plan.row_key)
        self._sent = 0

    def encode(self, rows: pa.RecordBatch) -> Iterator[tuple[bytes, int]]:
        """Take rows; yields pieces, each with the number of rows that it completes.

        Raises:
            UnstorableValueError: a value that the table cannot hold.
        """
        step = max(1, rows.num_rows * _PIECE_BYTES // max(rows.nbytes, 1))
        for start in range(0, rows.num_rows, step):
            data = self._encoder.encode(rows.slice(start, step))
            if data:
                yield data, self._counted()

    def finish(self) -> tuple[bytes, int]:
        """What was held back, and its rows."""
        return self._encoder.finish(), self._counted()

    def _counted(self) -> int:
        count, self._sent = self._encoder.rows - self._sent, self._encoder.rows
        return count
