"""Execution of a run's jobs: facts of the session, executors, and the tasks' output."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from spark_2pc_sink.sink.job.batch_size import ArrowBatchSize, SmallBatches
from spark_2pc_sink.sink.job.encode_task import renaming, task_function
from spark_2pc_sink.sink.job.executors import ExecutorWatch, passed_executors
from spark_2pc_sink.sink.job.session_facts import session_facts, stream_endpoint
from spark_2pc_sink.sink.job.task_plan import RESULT_DDL, read_results
from spark_2pc_sink.sink.stream.listener import StreamLimits, StreamListener

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from spark_2pc_sink.options import SinkOptions
    from spark_2pc_sink.sink.job.session_facts import SessionFacts
    from spark_2pc_sink.sink.job.task_plan import TaskReceipt, TaskResults


class TaskJobs:
    def __init__(self, spark: SparkSession, options: SinkOptions, is_running: Callable[[], bool]) -> None:
        self._transactional_id = options.transactional_id
        self.facts: SessionFacts = session_facts(spark, options.transactional_id)
        limits = StreamLimits(tasks_at_once=self.facts.tasks_at_once())
        self.listener: StreamListener = StreamListener(stream_endpoint(spark, options), limits, is_running)
        self.executors: ExecutorWatch = ExecutorWatch(spark, options.transactional_id, self.facts, self.listener)
        self.small_batches: SmallBatches = SmallBatches()
        self.arrow: ArrowBatchSize = ArrowBatchSize()

    @contextmanager
    def described(self, step: str) -> Iterator[None]:
        """Describe the block's jobs in Spark's UI, and name executors that cannot run their tasks."""
        with self.executors.naming(), self.facts.described(f"{self._transactional_id} {step}"):
            yield

    def run(self, frame: DataFrame, task: Callable[..., TaskReceipt], plan: Any) -> TaskResults:
        """Run one task for each partition of a frame."""
        function = task_function(task, plan, self._transactional_id)
        # PySpark resolves the columns, and parses their names as SQL.
        if any(mark in name for name in frame.columns for mark in ".`"):
            function = renaming(function, frame.columns)
            frame = frame.toDF(*(f"column_{number}" for number in range(len(frame.columns))))
        return read_results(frame.mapInArrow(function, RESULT_DDL).toArrow())

    def note_failure(self) -> None:
        """A batch has failed for good: the query ends, and another one may need the port."""
        passed_executors.clear()
        self.listener.close()
