"""The functions that `mapInArrow` runs in a task: they ask Spark which task they are.

The work is in the modules of the tasks, which know nothing of Spark.
"""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING

import pyarrow as pa

from spark_2pc_sink.sink.tasks.encode_and_send_task import run_encode_and_send_task
from spark_2pc_sink.sink.tasks.encode_task import run_encode_task, run_reread_task
from spark_2pc_sink.sink.tasks.send_task import run_count_task, run_send_task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import TypeAlias

    from pyspark import TaskContext

    from spark_2pc_sink.sink.tasks.task_plan import TaskPlan

    TaskFunction: TypeAlias = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def encode_and_send_function(plan: TaskPlan) -> TaskFunction:
    """Rows in, records sent; see `run_encode_and_send_task`."""

    def write_partition(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = _task_context()
        return run_encode_and_send_task(
            batches,
            plan,
            task=context.partitionId(),
            task_attempt=context.taskAttemptId(),
            attempt_number=context.attemptNumber(),
        )

    return write_partition


def encode_function(plan: TaskPlan) -> TaskFunction:
    """Rows in, shuffle batches out; see `run_encode_task`."""

    def encode_partition(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = _task_context()
        return run_encode_task(batches, plan, encode_task=context.partitionId(), task_attempt=context.taskAttemptId())

    return encode_partition


def send_function(plan: TaskPlan) -> TaskFunction:
    """Shuffle batches in, records sent; see `run_send_task`."""

    def send_partition(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = _task_context()
        return run_send_task(batches, plan, task=context.partitionId(), attempt_number=context.attemptNumber())

    return send_partition


def count_function(plan: TaskPlan) -> TaskFunction:
    """Shuffle batches in, the digest of what would be sent out; see `run_count_task`."""

    def count_partition(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return run_count_task(batches, plan, task=_task_context().partitionId())

    return count_partition


def reread_function(plan: TaskPlan) -> TaskFunction:
    """Rows in, their digest out; see `run_reread_task`."""

    def reread_partition(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = _task_context()
        return run_reread_task(batches, plan, encode_task=context.partitionId(), task_attempt=context.taskAttemptId())

    return reread_partition


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


def _task_context() -> TaskContext:
    from pyspark import TaskContext  # noqa: PLC0415 - exists on executors only

    context = TaskContext.get()
    if context is None:
        message = "this runs inside Spark tasks only"
        raise RuntimeError(message)
    _garbage_collection.spare()
    return context
