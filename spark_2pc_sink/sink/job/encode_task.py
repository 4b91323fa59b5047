"""The task of a batch: reads rows, sends COPY bytes and record batches to the driver, and returns a receipt to Spark.

A task has no effect on Kafka or the database, so Spark may run it again: the output of an attempt is dropped, or the
attempt of the batch is given up. For a batch of a few rows, which the driver has collected, it runs the same code.
"""

from __future__ import annotations

import gc
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from jdbc_state.sink_log import log_for_sink
from spark_2pc_sink.errors import DualWriteError, UnstorableValueError
from spark_2pc_sink.kafka.record_encoder import ArrowPartitioner, PartitionRows, RecordColumns, RecordEncoder
from spark_2pc_sink.serialisation.serialiser import NotEncodableError, Serialiser
from spark_2pc_sink.sink.job.task_plan import LanePlan, TaskIdentity, TaskPlan, TaskReceipt
from spark_2pc_sink.sink.records import record_columns
from spark_2pc_sink.sink.records.record_columns import TopicRefusedError, Topics, key_values
from spark_2pc_sink.sink.records.record_json import json_values, nested_texts
from spark_2pc_sink.sink.rows.copy_encoder import ORDER_COLUMN, CopyEncoder, order_keys
from spark_2pc_sink.sink.rows.value_checks import ValidText
from spark_2pc_sink.sink.stream.task_stream import DriverMessage, Frame, StreamOutput
from spark_2pc_sink.wire.arrow_layout import ArrowColumn
from spark_2pc_sink.wire.record_batch import EMPTY_DIGEST, EncodedBatch, combine_digests, content_digest

TaskFunction: TypeAlias = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
#: Maximum lengths of a row's key and of its value in an error text.
_KEY_CHARACTERS_MAX: Final = 100
_VALUE_CHARACTERS_MAX: Final = 200


class RowPartitioner(ArrowPartitioner):
    def __init__(self, topic: str | None, partition_count: Callable[[str], int]) -> None:
        super().__init__(topic)
        self._count_of = cache(partition_count)

    def split_batch(self, batch: pa.RecordBatch) -> Iterator[PartitionRows]:
        """The rows of a batch by partition; see `split`."""
        topics, key = record_column(batch, record_columns.TOPIC), record_column(batch, record_columns.KEY)
        if topics is not None and topics.null_count:
            raise UnstorableValueError(
                column="topic",
                row_key=describe_row(key, int(np.flatnonzero(np.asarray(topics.is_null()))[0])),
                value="null",
                rule="every row needs a topic, since the sink has no default topic",
                remedy="Correct the expression that makes the column, or pass topic='…' for the rows without one",
            )
        return self.split(
            RecordColumns(
                topic=topics,
                partition=record_column(batch, record_columns.PARTITION),
                key=key,
                value=batch.column(record_columns.VALUE),
                headers=record_column(batch, record_columns.HEADERS),
            )
        )

    def _partition_count(self, topic: str, columns: RecordColumns, row: int) -> int:
        """If a topic named by rows does not exist, that value is at fault: running the batch again would not help."""
        try:
            return self._count_of(topic)
        except TopicRefusedError as error:
            raise UnstorableValueError(
                column="topic",
                row_key=describe_row(columns.key, row),
                value=repr(topic),
                rule=error.rule,
                remedy=error.remedy,
            ) from error

    def _free_partitions(self, topic: str, count: int) -> Sequence[int]:
        """Rows without a key may go anywhere."""
        del topic
        return range(count)

    def _no_partition(self, topic: str, count: int, columns: RecordColumns, row: int) -> UnstorableValueError:
        return UnstorableValueError(
            column="partition",
            row_key=describe_row(columns.key, row),
            value=str(None if columns.partition is None else columns.partition[row].as_py()),
            rule=f"topic {topic!r} has partitions 0 to {count - 1}",
        )


def describe_row(key: ArrowColumn | None, row: int) -> str:
    """A row in an error text: its key, or its number if records have none."""
    return f"number {row} of its Arrow batch" if key is None else f"key={key[row].as_py()!r}"[:_KEY_CHARACTERS_MAX]


def record_column(batch: pa.RecordBatch, name: str) -> ArrowColumn | None:
    index = batch.schema.get_field_index(name)
    return None if index < 0 else batch.column(index)


def unpacked(column: ArrowColumn) -> pa.RecordBatch:
    """The rows in a packed column, in order, with a column for each field.

    With several lanes one pass over a batch builds the rows of all. In such a column each row of the batch has its row
    for the lane, null if the lane does not get it; or an array of the rows derived from an array in it.
    """
    if not pa.types.is_struct(column.type):
        # Excludes the elements of arrays that are null.
        column = column.flatten()
    if column.null_count:
        column = column.filter(column.is_valid())
    return pa.RecordBatch.from_struct_array(column)


def completed_rows(plan: LanePlan, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows with their keys and values, built here unless Spark has done it, and with order keys."""
    completed, nested = batch, {each.made: each for each in plan.json or ()}
    order = batch.schema.get_field_index(ORDER_COLUMN)
    if order >= 0:
        completed = completed.set_column(order, ORDER_COLUMN, order_keys(batch.column(order)))
    if plan.key_column is not None:
        completed = completed.append_column(record_columns.KEY, key_values(batch.column(plan.key_column)))
    for name in plan.guarded:
        if name in nested:
            for text in nested_texts(batch, nested[name]):
                _check_text(completed, text, nested[name].column)
        else:
            _check_text(completed, batch.column(name), name.removeprefix("_2pc_"))
    if plan.json is not None:
        completed = completed.append_column(record_columns.VALUE, json_values(batch, plan.json))
    for name, serialiser in plan.serialisers.items():
        index = batch.schema.get_field_index(name)
        completed = completed.set_column(index, name, _serialised(serialiser, batch, name))
    tombstones = record_column(completed, record_columns.TOMBSTONE)
    if tombstones is not None and pc.any(tombstones).as_py():
        place = completed.schema.get_field_index(record_columns.VALUE)
        values = completed.column(place)
        values = pc.if_else(tombstones, pa.scalar(None, values.type), values)
        completed = completed.set_column(place, record_columns.VALUE, values)
    return completed


def _serialised(serialiser: Serialiser, batch: pa.RecordBatch, name: str) -> pa.Array:
    column = batch.column(name)
    try:
        return serialiser.encode(column)
    except NotEncodableError as error:
        raise UnstorableValueError(
            column=".".join(part for part in (record_columns.PARTS[name], error.path) if part),
            row_key=describe_row(record_column(batch, record_columns.KEY), error.row),
            value=repr(column[error.row].as_py())[:_VALUE_CHARACTERS_MAX],
            rule=error.rule,
            remedy=error.remedy[:1].upper() + error.remedy[1:],
        ) from error


def _check_text(batch: pa.RecordBatch, text: pa.Array, column: str) -> None:
    offenders = ValidText().offenders(text)
    if offenders is not None:
        raise UnstorableValueError(
            column=column,
            row_key=describe_row(record_column(batch, record_columns.KEY), offenders.index(value=True).as_py()),
            value="a text that to_json would change",
            rule="a column of the batch has text that is not valid UTF-8",
        )


_TaskRun: TypeAlias = Callable[[Iterable[pa.RecordBatch], Any, TaskIdentity], TaskReceipt]


def receipt_of(run: _TaskRun, batches: Iterable[pa.RecordBatch], plan: Any, identity: TaskIdentity) -> TaskReceipt:
    """The receipt of a task, also of one that gives up."""
    try:
        return run(batches, plan, identity)
    except DualWriteError as error:
        return TaskReceipt(*identity, error=error)


def task_function(run: _TaskRun, plan: Any, transactional_id: str, names: list[str] | None = None) -> TaskFunction:
    """The function that `mapInArrow` calls in a task, which yields one receipt; its log names the sink.

    ``names`` restores the batches' column names, if they were lost in transit.
    """

    def run_in_task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        remaining = iter(batches)
        if names is not None:
            remaining = (pa.RecordBatch.from_arrays(batch.columns, names) for batch in batches)
        with log_for_sink(transactional_id):
            yield receipt_of(run, remaining, plan, _task_identity()).to_result()
        # A task that gives up has not read all of them. Spark ends a worker process that leaves some, and the next task
        # waits while a new one imports everything.
        deque(remaining, maxlen=0)

    return run_in_task


@cache
def _spare_garbage_collection(modules: int) -> None:
    """Exclude existing objects from further collections; once for each number of imported ``modules``.

    Spark's daemon collects all garbage of a worker after each task (``pyspark/daemon.py``), and the next task waits for
    it. Traversing the modules of PySpark, Arrow and pandas, which live as long as the process, takes 60 ms each time.
    Right after a collection little of it is garbage. Frozen objects are never freed, so not before every task.
    """
    del modules
    gc.freeze()


def _task_identity() -> TaskIdentity:
    from pyspark import TaskContext  # noqa: PLC0415 - exists on executors only

    context = TaskContext.get()
    assert context is not None, "this runs inside Spark tasks only"
    _spare_garbage_collection(len(sys.modules))
    return TaskIdentity(context.partitionId(), context.taskAttemptId())


def row_digest(table: str, rows: pa.RecordBatch) -> int:
    """The digest of rows for a table, which includes the table's name as given by the user: 0 to 2^128 - 1."""
    columns: list[Any] = []
    for column in rows.columns:
        # For each row whether there is a value, and 64 bits of it; 0 for a missing value.
        there = np.asarray(column.is_valid())
        columns += [there.astype(np.int64), np.where(there, _words(column), 0)]
    words = np.column_stack(columns)
    width = pa.binary(words.shape[1] * words.itemsize)
    return content_digest(table, pa.Array.from_buffers(width, len(words), [None, pa.py_buffer(words.tobytes())]))


def _words(column: ArrowColumn) -> Any:
    kind = column.type
    if pa.types.is_floating(kind):
        return column.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False).view(np.int64)
    if pa.types.is_date32(kind):
        column = column.cast(pa.int32())
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_temporal(kind):
        return column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        column = column.cast(pa.large_binary())
    elif not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        # Decimals, and arrays: equal values of a type have equal representations.
        column = pa.array([repr(value).encode() for value in column.to_pylist()], pa.large_binary())
    texts = column.fill_null(b"").to_numpy(zero_copy_only=False).tolist()
    return np.fromiter(map(xxhash.xxh3_64_intdigest, texts), np.uint64, len(texts)).view(np.int64)


#: An Arrow batch with fewer rows per partition waits for more: each split takes as long as encoding some of them.
_ROWS_EACH: Final = 128
#: Maximum bytes of Arrow batches that wait; as much as `record_encoder.KEPT_BYTES_MAX`, which they become.
_WAITING_BYTES_MAX: Final = 32 * 1024 * 1024
#: Rows for the table are encoded in pieces of this many Arrow bytes: the driver writes one while the next is encoded.
_PIECE_BYTES: Final = 1024 * 1024


def run_encode_task(batches: Iterable[pa.RecordBatch], plan: TaskPlan, identity: TaskIdentity) -> TaskReceipt:
    with plan.open_stream(identity) as stream:
        return encode(batches, plan, identity, stream)


def run_reread_task(batches: Iterable[pa.RecordBatch], plan: TaskPlan, identity: TaskIdentity) -> TaskReceipt:
    """The same only for the digest of the records; a stream in the plan is used to ask for topics."""
    if plan.stream is None:
        return encode(batches, plan, identity, _ReceiptOnly())
    with plan.open_stream(identity) as stream:
        topics = replace(plan.topics, ask=stream.ask)
        receipt = encode(batches, replace(plan, topics=topics), identity, _ReceiptOnly())
        stream.finish()
        return receipt


def encode(
    batches: Iterable[pa.RecordBatch], plan: TaskPlan, identity: TaskIdentity, output: StreamOutput
) -> TaskReceipt:
    """Encode rows, in a task or in the driver."""
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
        *identity,
        rows=rows,
        lane_rows={each.plan.index: each.row_count for each in lanes},
        left_out={each.plan.index: each.left_out for each in lanes if each.left_out},
        sent=output.totals,
        row_digest=combine_digests(*(each.row_digest for each in lanes)),
        arrow_bytes=arrow_bytes,
    )


class _ReceiptOnly(StreamOutput):
    """The output of a task that returns only its receipt."""

    def _put(self, frame: Frame) -> None:
        """Nothing is sent."""

    def _receive(self, expected: DriverMessage) -> bytes:
        assert expected is DriverMessage.RECEIPT, "no row names its topic"
        return b""


class _LaneEncoder:
    """The rows of one lane: completed, encoded for topic and table, and sent."""

    def __init__(self, plan: TaskPlan, lane: LanePlan, topics: Topics, output: StreamOutput) -> None:
        self.plan = lane
        self.row_count = self.left_out = 0
        self.row_digest = EMPTY_DIGEST
        self._output = output
        #: So many rows are split at once; 0 if rows name their topics.
        self._rows_min = 0 if lane.topic is None or not lane.sends else _ROWS_EACH * topics.partition_count(lane.topic)
        self._partitioner = RowPartitioner(lane.topic, topics.partition_count)
        self._records = RecordEncoder(plan.encoding, timestamp_ms=plan.timestamp_ms, limits=topics.limits_of)
        self._rows = None if lane.row_encoder is None else CopyEncoder(lane.row_encoder)
        self._rows_sent = 0
        self._waiting: list[pa.RecordBatch] = []

    def encode(self, batch: pa.RecordBatch) -> None:
        rows = batch if self.plan.packed is None else unpacked(batch.column(self.plan.packed))
        self.row_count += rows.num_rows
        if not rows.num_rows:
            return
        if self.plan.digest_label is not None:
            self.row_digest = combine_digests(self.row_digest, row_digest(self.plan.digest_label, rows))
        completed = completed_rows(self.plan, rows)
        if self.plan.sends:
            self._gather(completed)
        if self._rows is not None:
            checked = self._rows.checked(completed)
            step = max(1, checked.num_rows * _PIECE_BYTES // max(checked.nbytes, 1))
            for start in range(0, checked.num_rows, step):
                self._send_rows(self._rows, self._rows.encode(checked.slice(start, step)))

    def finish(self) -> None:
        self._encode_waiting()
        self._send(self._records.finish())
        if self._rows is not None:
            self._send_rows(self._rows, self._rows.finish())

    def _send_rows(self, encoder: CopyEncoder, data: bytes) -> None:
        """Send COPY bytes, with the number of rows that they complete."""
        if data:
            self._output.rows(self.plan.index, data, encoder.rows - self._rows_sent)
            self._rows_sent = encoder.rows

    def _gather(self, rows: pa.RecordBatch) -> None:
        """Leave out superseded rows, and encode waiting batches once there are enough rows for each partition."""
        if self.plan.leaves_out:
            given, rows = rows.num_rows, rows.filter(pc.invert(rows.column(record_columns.SUPERSEDED)))
            self.left_out += given - rows.num_rows
        if rows.num_rows:
            self._waiting.append(rows)
        row_count = sum(each.num_rows for each in self._waiting)
        if row_count >= self._rows_min or sum(each.nbytes for each in self._waiting) >= _WAITING_BYTES_MAX:
            self._encode_waiting()

    def _encode_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        if len(waiting) > 1:
            waiting = pa.Table.from_batches(waiting).combine_chunks().to_batches()
        for rows in waiting:
            for partition, of_partition in self._partitioner.split_batch(rows):
                self._send(self._records.append(partition, of_partition))

    def _send(self, batches: Iterable[EncodedBatch]) -> None:
        for batch in batches:
            self._output.records(self.plan.index, batch)
