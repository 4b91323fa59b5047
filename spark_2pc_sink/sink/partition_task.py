"""A task that reads rows and sends them itself: rows in, Kafka records out, one receipt.

It writes to partitions that no other task of the batch writes, so rows need not move: those of a batch without keys,
and all rows of a batch that one task can do. It takes no decision about the transaction: it writes with the pair that
it was given, or refuses, and says in its receipt which of the two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_2pc_sink.errors import BatchRetryError, DualWriteError
from spark_2pc_sink.sink.pace import ONE_TASK_BYTES_MAX, ONE_TASK_ROWS_MAX
from spark_2pc_sink.sink.receipts import EncodedSource, TaskReceipt
from spark_2pc_sink.sink.routing import owned_partitions
from spark_2pc_sink.sink.row_router import RowRouter
from spark_2pc_sink.sink.rows import RowWriter
from spark_2pc_sink.sink.task_plan import flush_session
from spark_2pc_sink.sink.topics import drop_worker_cluster

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from spark_2pc_sink.producer.produce_session import ProduceSession
    from spark_2pc_sink.sink.task_plan import TaskPlan


def run_task(
    batches: Iterable[pa.RecordBatch], plan: TaskPlan, *, task: int, run: int, attempt: int
) -> Iterator[pa.RecordBatch]:
    """Write the rows of one Spark partition; yields one receipt.

    Args:
        batches: the rows, with the columns that `frame` names.
        plan: what to do.
        task: the Spark partition id.
        run: a number that no other run of this task has.
        attempt: the attempt number of the task.
    """
    try:
        yield from _Task(plan, task, run).run(batches, attempt)
    except DualWriteError as error:
        yield TaskReceipt(task=task, error=error).to_result()


def _hold(batches: Iterable[pa.RecordBatch]) -> list[pa.RecordBatch] | None:
    """All batches, or None where they are more than one task should do."""
    held: list[pa.RecordBatch] = []
    rows = held_bytes = 0
    for batch in batches:
        held.append(batch)
        rows, held_bytes = rows + batch.num_rows, held_bytes + batch.nbytes
        if rows > ONE_TASK_ROWS_MAX or held_bytes > ONE_TASK_BYTES_MAX:
            return None
    return held


class _Task:
    """One attempt of one task."""

    def __init__(self, plan: TaskPlan, task: int, run: int) -> None:
        self._plan = plan
        self._task = task
        self._run = run
        self._router = RowRouter(plan.topic, plan.topics.partition_count, self._own)
        self._session: ProduceSession | None = None
        self._rows = self._arrow_bytes = 0

    def run(self, batches: Iterable[pa.RecordBatch], attempt: int) -> Iterator[pa.RecordBatch]:
        self._plan.check_task_attempt(self._task, attempt)
        taken = _hold(batches) if self._plan.small else batches
        if taken is None:
            yield TaskReceipt(task=self._task, too_large=True).to_result()
            return
        plan = self._plan
        writer = None if plan.rows is None else RowWriter(plan.rows, plan.ticket, self._task, self._run)
        try:
            for batch in taken:
                if batch.num_rows == 0:
                    continue
                if self._rows == 0:
                    self._plan.check_stage_attempt(self._task, batch)
                self._rows += batch.num_rows
                self._arrow_bytes += batch.nbytes
                self._produce(batch)
                if writer is not None:
                    writer.write(batch)
            if writer is not None:
                writer.finish()
            yield self._receipt(writer).to_result()
        except BaseException:
            drop_worker_cluster(self._plan.kafka)
            raise
        finally:
            if writer is not None:
                writer.close()

    def _produce(self, batch: pa.RecordBatch) -> None:
        if self._session is None:
            self._session = self._plan.open_session()
        parts = list(self._router.split(batch))
        self._session.meet(part.partition for part in parts)
        for part in parts:
            self._session.append(part.partition, part.key, part.value, part.headers)

    def _own(self, topic: str, count: int) -> tuple[int, ...]:
        own = owned_partitions(topic, count, task=self._task, tasks=self._plan.tasks)
        if not own:
            raise BatchRetryError(
                reason=f"task {self._task} of {self._plan.tasks} got rows without a key for {topic!r}, and owns none "
                f"of its {count} partitions"
            )
        return own

    def _receipt(self, writer: RowWriter | None) -> TaskReceipt:
        """Waits until everything is acknowledged."""
        written = flush_session(self._session)
        digest = 0 if self._session is None else self._session.digest
        return TaskReceipt(
            task=self._task,
            sources=(
                EncodedSource(
                    source=self._task,
                    run=self._run,
                    rows=self._rows,
                    digest=digest,
                    copy_rows=0 if writer is None else writer.inline_rows,
                    staging_table=None if writer is None else writer.staging_table,
                    staging_rows=0 if writer is None else writer.staging_rows,
                    arrow_bytes=self._arrow_bytes,
                ),
            ),
            digest=digest,
            written=written,
        )
