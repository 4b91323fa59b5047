"""The task that encodes rows and sends them itself: rows in, Kafka records out, one receipt.

A task does it for partitions that no other task of the batch writes, so rows need not move: those of a batch without
keys. The driver does it for a batch of a few rows, which it has collected. Neither takes a decision about the
transaction: it writes with the pair that it was given, or refuses, and says in its receipt which of the two.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from spark_2pc_sink.errors import BatchRetryError, DualWriteError
from spark_2pc_sink.sink.contract.receipts import TaskReceipt
from spark_2pc_sink.sink.contract.task_plan import TaskIdentity, owned_partitions
from spark_2pc_sink.sink.tasks.row_partitioner import RowPartitioner
from spark_2pc_sink.sink.tasks.task_input import TaskInput
from spark_2pc_sink.sink.tasks.upsert_records import arranged

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from spark_2pc_sink.sink.contract.task_plan import LanePlan, TaskPlan


def run_encode_and_send_task(
    batches: Iterable[pa.RecordBatch], plan: TaskPlan, identity: TaskIdentity
) -> Iterator[pa.RecordBatch]:
    """Write the rows of one Spark partition; yields one receipt.

    Args:
        batches: the rows, with the columns that `record_expressions` names, `ATTEMPT` among them.
        plan: what to do.
        identity: of the task.
    """
    try:
        receipt = _EncodeAndSendTask(plan, identity).write(plan.of_first_attempt(batches, identity))
    except DualWriteError as error:
        receipt = TaskReceipt(task=identity.task, error=error)
    yield receipt.to_result()


def write_alone(batches: Iterable[pa.RecordBatch], plan: TaskPlan) -> TaskReceipt:
    """Write all rows of a batch in this process, which is no task.

    Args:
        batches: the rows, with the columns that `record_expressions` names; of an upsert with an order all in one Arrow
            batch, as rows of several are not compared.
        plan: what to do, for one task.

    Raises:
        DualWriteError: what a task would have returned as the error of its receipt.
    """
    return _EncodeAndSendTask(plan, TaskIdentity(task=0, task_attempt=0)).write(batches)


class _EncodeAndSendTask:
    """One attempt of a task."""

    def __init__(self, plan: TaskPlan, identity: TaskIdentity) -> None:
        self._plan = plan
        self._identity = identity
        self._task = identity.task
        self._partitioners = {
            lane.index: RowPartitioner(lane.topic, plan.topics.partition_count, self._own, plan.topics.fault_of)
            for lane in plan.lanes
        }
        # Making one asks nobody anything: a task without rows needs no broker.
        self._session = plan.open_session()
        self._left_out: Counter[int] = Counter()

    def write(self, batches: Iterable[pa.RecordBatch]) -> TaskReceipt:
        with TaskInput(self._plan, self._identity) as rows:
            for lane, batch in rows.read(batches):
                self._produce(lane, batch)
            rows.finish()
            written = self._session.flush()
        digest = self._session.digest
        return TaskReceipt(
            task=self._task,
            encoded=(rows.receipt(digest),),
            digest=digest,
            written=written,
            record_bytes=self._session.record_bytes,
            left_out=dict(self._left_out),
        )

    def _produce(self, lane: LanePlan, batch: pa.RecordBatch) -> None:
        if lane.upsert_records is not None:
            sent = arranged(lane.upsert_records, batch)
            self._left_out[lane.index] += batch.num_rows - sent.num_rows
            batch = sent
        parts = list(self._partitioners[lane.index].split_batch(batch))
        self._session.meet(part.partition for part in parts)
        for part in parts:
            self._session.append(part.partition, part.rows)

    def _own(self, topic: str, count: int) -> tuple[int, ...]:
        own = owned_partitions(topic, count, task=self._task, tasks=self._plan.tasks)
        if not own:
            raise BatchRetryError(
                reason=f"task {self._task} of {self._plan.tasks} got rows without a key for {topic!r}, and owns none "
                f"of its {count} partitions"
            )
        return own
