"""The rows of a task as the plan of its lane wants them: unpacked, with keys and values, checked, and by partition.

Here is also the function that `mapInArrow` runs, which asks Spark which task it is; the tasks themselves know nothing
of Spark.
"""

from __future__ import annotations

import gc
import sys
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jdbc_state.sink_log import at_work_for
from spark_2pc_sink.errors import UnstorableValueError
from spark_2pc_sink.producer.arrow_partitioner import ArrowPartitioner, PartitionRows, RecordColumns
from spark_2pc_sink.serialisation.refusals import NotEncodableError
from spark_2pc_sink.sink.contract import record_columns
from spark_2pc_sink.sink.contract.record_columns import key_values
from spark_2pc_sink.sink.contract.record_json import json_values, nested_texts
from spark_2pc_sink.sink.contract.task_plan import TaskIdentity, TopicRefusedError
from spark_2pc_sink.sink.table.copy_encoder import ORDER_COLUMN, order_keys
from spark_2pc_sink.sink.table.value_checks import ValidText

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from spark_2pc_sink.serialisation.serialiser import Serialiser
    from spark_2pc_sink.sink.contract.task_plan import LanePlan
    from spark_2pc_sink.wire.arrow_layout import ArrowColumn


#: One row's key in an error text; longer ones are cut.
_ROW_KEY_CHARACTERS_MAX: Final = 100


class RowPartitioner(ArrowPartitioner):
    """Splits the batches of a task.

    Args:
        topic: of rows that name none; None when every row names its own.
        partition_count: how many partitions a topic has; see `Topics.partition_count`.
    """

    def __init__(self, topic: str | None, partition_count: Callable[[str], int]) -> None:
        super().__init__(topic)
        self._count = partition_count

    def split_batch(self, batch: pa.RecordBatch) -> Iterator[PartitionRows]:
        """The rows of a batch by partition; see `split`.

        Raises:
            UnstorableValueError: a row names no topic, one that does not exist or a partition that its topic does not
                have, or has a header without a key.
            BatchRetryError: the driver does not say whether a topic exists.
        """
        topics, key = record_column(batch, record_columns.TOPIC), record_column(batch, record_columns.KEY)
        if topics is not None and topics.null_count:
            raise UnstorableValueError(
                column="topic",
                row_key=describe_row(key, int(np.flatnonzero(np.asarray(topics.is_null()))[0])),
                value="null",
                rule="every row needs a topic, and the sink has no topic of its own",
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
        """See `ArrowPartitioner`.

        A topic that rows name and that does not exist is the fault of that value: to run the batch again would not
        help.
        """
        try:
            return self._count(topic)
        except TopicRefusedError as error:
            raise UnstorableValueError(
                column="topic",
                row_key=describe_row(columns.key, row),
                value=repr(topic),
                rule=error.rule,
                remedy=error.remedy,
            ) from error

    def _free_partitions(self, topic: str, count: int) -> Sequence[int]:
        """See `ArrowPartitioner`: rows without a key may go anywhere."""
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
    """A row in an error text: by its key, or where records have none, by its number."""
    return f"number {row} of its Arrow batch" if key is None else f"key={key[row].as_py()!r}"[:_ROW_KEY_CHARACTERS_MAX]


def record_column(batch: pa.RecordBatch, name: str) -> ArrowColumn | None:
    """A column of `record_columns`; None where the batch has none of that name."""
    index = batch.schema.get_field_index(name)
    return None if index < 0 else batch.column(index)


#: A row's key or value in an error text; longer ones are cut.
_VALUE_CHARACTERS_MAX: Final = 200


def unpacked(column: ArrowColumn) -> pa.RecordBatch:
    """The rows in a packed column, in their order, with a column for each field.

    With several lanes one pass over a batch makes the rows of all. Each row of the batch has in such a column its row
    for the lane, null where the lane does not get it; or an array of those that an array in it became.
    """
    if not pa.types.is_struct(column.type):
        # Without those of arrays that are null.
        column = column.flatten()
    if column.null_count:
        column = column.filter(column.is_valid())
    return pa.RecordBatch.from_struct_array(column)


def completed_rows(plan: LanePlan, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows with their keys and values, made here unless Spark has done it, and with order keys.

    Raises:
        UnstorableValueError: Spark has met a text that is none, and would have replaced it; or the schema of key or
            value has no place for one.
    """
    completed = batch
    order = batch.schema.get_field_index(ORDER_COLUMN)
    if order >= 0:
        completed = completed.set_column(order, ORDER_COLUMN, order_keys(batch.column(order)))
    if plan.key_column is not None:
        completed = completed.append_column(record_columns.KEY, key_values(batch.column(plan.key_column)))
    nested = {each.made: each for each in plan.json or ()}
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
    return _without_tombstones(completed)


def _without_tombstones(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows, and no value where the record is a tombstone."""
    tombstones = record_column(batch, record_columns.TOMBSTONE)
    if tombstones is None or not pc.any(tombstones).as_py():
        return batch
    place = batch.schema.get_field_index(record_columns.VALUE)
    values = batch.column(place)
    return batch.set_column(place, record_columns.VALUE, pc.if_else(tombstones, pa.scalar(None, values.type), values))


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


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import TypeAlias

    TaskFunction: TypeAlias = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class _Plan(Protocol):
    """What a task is told to do."""

    @property
    def transactional_id(self) -> str:
        """The sink's id, for the log."""


_AnyPlan = TypeVar("_AnyPlan", bound=_Plan)


def task_function(
    run: Callable[[Iterable[pa.RecordBatch], _AnyPlan, TaskIdentity], Iterator[pa.RecordBatch]], plan: _AnyPlan
) -> TaskFunction:
    """The function that `mapInArrow` calls in a task: ``run``, told which task it is."""

    def run_in_task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        remaining = iter(batches)
        with at_work_for(plan.transactional_id):
            yield from run(remaining, plan, _task_identity())
        # A task that has given up has not read all of them. Spark ends a worker process that leaves some, and the next
        # task waits while a new one imports everything.
        deque(remaining, maxlen=0)

    return run_in_task


def renaming(function: TaskFunction, names: list[str]) -> TaskFunction:
    """The function, for batches whose columns have lost their names on the way."""

    def with_names(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return function(pa.RecordBatch.from_arrays(batch.columns, names) for batch in batches)

    return with_names


class GarbageCollection:
    """Makes the garbage collection that Spark does behind each task cheap.

    Spark's daemon collects all garbage of a worker behind each task (``pyspark/daemon.py``), and the next task waits
    for it. Looking through the modules of PySpark, Arrow and pandas, which stay for as long as the process does, takes
    60 ms each time.
    """

    def __init__(self) -> None:
        self._modules = 0

    def spare(self) -> None:
        """Leave out of further collections what is there now, if anything was imported since the last time.

        Right after a collection little of it is garbage. What is frozen is never freed, so not before every task.
        """
        modules = len(sys.modules)
        if modules > self._modules:
            gc.freeze()
            self._modules = modules


#: Of this worker process.
_garbage_collection = GarbageCollection()


def _task_identity() -> TaskIdentity:
    from pyspark import TaskContext  # noqa: PLC0415 - exists on executors only

    context = TaskContext.get()
    if context is None:
        message = "this runs inside Spark tasks only"
        raise RuntimeError(message)
    _garbage_collection.spare()
    return TaskIdentity(context.partitionId(), context.taskAttemptId())
