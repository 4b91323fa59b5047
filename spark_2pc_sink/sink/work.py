"""A micro-batch of Spark as work for the batch driver: one job that writes, and one COPY of what it returned."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from spark_2pc_sink.errors import BatchRetryError
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.sink import frame as frames
from spark_2pc_sink.sink.batch import ProducedBatch
from spark_2pc_sink.sink.partition_task import PartitionCounts, TaskPlan, now_ms, run_task
from spark_2pc_sink.sink.receipts import RESULT_DDL, TaskResults, read_results
from spark_2pc_sink.wire.digest import format_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame
    from sqlalchemy import Connection

    from spark_2pc_sink.options import SinkOptions
    from spark_2pc_sink.sink.batch import TransactionTicket
    from spark_2pc_sink.sink.frame import RecordExpressions
    from spark_2pc_sink.sink.rows import RowLoader

_STAGE_ATTEMPTS = "spark.stage.maxConsecutiveAttempts"
#: Spark's default of spark.stage.maxConsecutiveAttempts.
_STAGE_ATTEMPTS_DEFAULT = "4"


class SparkBatchWork:
    """One call of foreachBatch.

    Args:
        frame: the batch.
        options: of the sink.
        expressions: checked against the frame's schema.
        partition_counts: asks Kafka how many partitions topics have.
        loader: how rows get into the table.
    """

    def __init__(
        self,
        *,
        frame: DataFrame,
        options: SinkOptions,
        expressions: RecordExpressions,
        partition_counts: Callable[[Iterable[str]], dict[str, int]],
        loader: RowLoader,
    ) -> None:
        self._frame = frame
        self._options = options
        self._expressions = expressions
        self._partition_counts = partition_counts
        self._loader = loader
        self._results: TaskResults | None = None

    def partitions(self) -> list[TopicPartition]:
        """Every partition of every topic of the batch; with a topic column this reads the batch once more."""
        if self._expressions.topic is None:
            topics = [str(self._options.topic)]
        else:
            named = self._frame.selectExpr(f"{self._expressions.topic} AS topic").distinct().collect()
            topics = [row.topic for row in named if row.topic is not None]
        counts = self._partition_counts(topics)
        return [TopicPartition(topic, partition) for topic in topics for partition in range(counts[topic])]

    def produce(self, ticket: TransactionTicket) -> ProducedBatch:
        """Run the writing job; see `BatchWork.produce`."""
        self._loader.prepare(self._frame, self._expressions, create=self._options.create_table)
        spark = self._frame.sparkSession
        conf = spark.sparkContext.getConf()
        known = {} if self._options.topic is None else self._partition_counts([self._options.topic])
        by_partition = frames.needs_shuffle(self._expressions)
        tasks = self._tasks(known)
        counts = PartitionCounts(self._options.kafka, known)
        plan = TaskPlan(
            ticket=ticket,
            kafka=self._options.kafka,
            topic=self._options.topic,
            counts=counts,
            tasks=tasks,
            by_partition=by_partition,
            timestamp_ms=now_ms(),
            rows=None if ticket.kafka_only else self._loader.row_plan(tasks),
            stage_attempts_max=int(conf.get(_STAGE_ATTEMPTS, _STAGE_ATTEMPTS_DEFAULT)),
        )
        distributed = frames.distribute(
            self._frame, self._expressions, topic=self._options.topic, tasks=tasks, partition_count=counts
        )
        record = frames.record_sql(self._expressions)
        if ticket.kafka_only:
            selected = distributed.selectExpr(*record)
        else:
            names = frames.record_columns(self._expressions)
            with_columns = distributed.selectExpr(*record, *self._loader.column_sql())
            selected = with_columns.selectExpr(*names, *self._loader.encoded_sql())
        written = selected.mapInArrow(_task_function(plan), RESULT_DDL).toArrow()
        with self._forgetting():
            results = self._results = read_results(written, tasks_expected=tasks if by_partition else None)
        return ProducedBatch(
            row_count=results.rows,
            record_count=results.records,
            digest=format_digest(results.digest) if results.records else "",
            offsets=results.offsets,
        )

    def copy_into(self, connection: Connection | None) -> int:
        """Write the rows of the last `produce`; see `BatchWork.copy_into`."""
        if self._results is None or connection is None:
            raise BatchRetryError(reason="there is nothing to copy: the job that encodes the rows has not run")
        with self._forgetting():
            return self._loader.load(connection, self._results)

    def run_to_nowhere(self) -> None:
        """Evaluate the batch and drop the rows."""
        self._frame.write.format("noop").mode("append").save()

    def discard(self) -> None:
        """Free the COPY bytes of the last `produce`."""
        self._results = None

    @contextmanager
    def _forgetting(self) -> Iterator[None]:
        """Where an attempt is thrown away, the plan of the table goes with it."""
        try:
            yield
        except BatchRetryError:
            self._loader.forget()
            raise

    def _tasks(self, known: dict[str, int]) -> int:
        """As many tasks as can run at once, but never more than there are partitions to own."""
        parallelism: int = self._frame.sparkSession.sparkContext.defaultParallelism
        if self._expressions.topic is not None or self._options.topic is None:
            return parallelism
        return max(1, min(parallelism, known[self._options.topic]))


def _task_function(plan: TaskPlan) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def write_partition(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext  # noqa: PLC0415 - exists on executors only

        context = TaskContext.get()
        if context is None:
            message = "write_partition runs inside Spark tasks only"
            raise RuntimeError(message)
        return run_task(batches, plan, task=context.partitionId(), attempt=context.attemptNumber())

    return write_partition
