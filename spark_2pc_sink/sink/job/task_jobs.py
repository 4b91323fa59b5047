"""How the jobs of a run's batches are run: what Spark says of the session, executors, and what tasks send."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from spark_2pc_sink.sink.contract.receipts import RESULT_DDL
from spark_2pc_sink.sink.job.batch_size import ArrowBatchSize, SmallBatches
from spark_2pc_sink.sink.job.executors import ExecutorWatch, tried_executors
from spark_2pc_sink.sink.job.session_facts import session_facts, stream_endpoint
from spark_2pc_sink.sink.stream.connections import StreamLimits
from spark_2pc_sink.sink.stream.listener import StreamListener
from spark_2pc_sink.sink.tasks.encode_task import renaming, task_function

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from spark_2pc_sink.options import SinkOptions
    from spark_2pc_sink.sink.job.session_facts import SessionFacts


class TaskJobs:
    """The Spark side of one run of a query.

    Args:
        spark: the session of the first batch.
        options: of the sink.
        is_running: False when the query has ended, so that tasks are no longer waited for.

    Attributes:
        facts: of the session.
        listener: where tasks send what they make.
        executors: tries those that have joined.
        small_batches: whether the next batch is likely to be small.
        arrow: bounds what Python workers are handed.
    """

    def __init__(self, spark: SparkSession, options: SinkOptions, is_running: Callable[[], bool]) -> None:
        self._transactional_id = options.transactional_id
        self.facts: SessionFacts = session_facts(spark, options.transactional_id)
        self._open = ExitStack()
        limits = StreamLimits(tasks_at_once=self.facts.tasks_at_once())
        self.listener: StreamListener = self._open.enter_context(
            StreamListener(stream_endpoint(spark, options), limits, is_running)
        )
        self.executors: ExecutorWatch = ExecutorWatch(spark, options.transactional_id, self.facts, self.listener)
        self.small_batches: SmallBatches = SmallBatches()
        self.arrow: ArrowBatchSize = ArrowBatchSize()

    @contextmanager
    def described(self, step: str) -> Iterator[None]:
        """Jobs meanwhile say in Spark's UI what they are for, and name executors that cannot run their tasks."""
        with self.executors.naming(), self.facts.described(f"{self._transactional_id} {step}"):
            yield

    def run(self, frame: DataFrame, task: Callable[..., Any], plan: Any) -> Any:
        """Run one task for each partition of a frame, and return the Arrow table of their results.

        Args:
            frame: the rows.
            task: as `task_function` takes it.
            plan: what it is told.
        """
        function = task_function(task, plan)
        # PySpark looks the columns up, and takes their names for SQL.
        if any(mark in name for name in frame.columns for mark in ".`"):
            function = renaming(function, frame.columns)
            frame = frame.toDF(*(f"column_{number}" for number in range(len(frame.columns))))
        return frame.mapInArrow(function, RESULT_DDL).toArrow()

    def note_failure(self) -> None:
        """A batch has failed for good: the query ends by it, and another one may need the port."""
        tried_executors.forget()
        self.listener.close()

    def close(self) -> None:
        """Stop listening."""
        self._open.close()
