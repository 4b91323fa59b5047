"""The functions that `mapInArrow` runs in a task: they ask Spark which task they are.

The work is in the modules of the tasks, which know nothing of Spark.
"""

from __future__ import annotations

import gc
import sys
from collections import deque
from typing import TYPE_CHECKING, Protocol, TypeVar

import pyarrow as pa

from jdbc_state.sink_log import at_work_for
from spark_2pc_sink.sink.contract.task_plan import TaskIdentity

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
