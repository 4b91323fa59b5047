"""The task that sends what others have encoded: shuffle batches in, records acknowledged, one receipt.

It owns its partitions: all shuffle batches for them come to it, and here each record batch gets its sequence number.
Like every task that sends, it does so in its first attempt only.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from itertools import chain
from typing import TYPE_CHECKING

from spark_2pc_sink.errors import BatchRetryError, DualWriteError
from spark_2pc_sink.sink.contract.receipts import EncodeReceipt, TaskReceipt
from spark_2pc_sink.sink.contract.task_plan import owner_of
from spark_2pc_sink.sink.tasks.shuffle_batches import RowIndex, ShuffleBatch, partitions_of, read_shuffle_batches
from spark_2pc_sink.sink.tasks.shuffle_files import ShuffleFiles
from spark_2pc_sink.sink.tasks.upsert_records import Arrangement
from spark_2pc_sink.wire.digest import EMPTY_DIGEST, combine_digests

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import pyarrow as pa

    from spark_2pc_sink.ids import TopicPartition
    from spark_2pc_sink.producer.partition_queue import PartitionReceipt
    from spark_2pc_sink.producer.produce_session import ProduceSession
    from spark_2pc_sink.producer.record_encoder import EncodedBatch
    from spark_2pc_sink.sink.contract.task_plan import TaskIdentity, TaskPlan


def run_send_task(
    batches: Iterable[pa.RecordBatch], plan: TaskPlan, identity: TaskIdentity
) -> Iterator[pa.RecordBatch]:
    """Send the shuffle batches that came to one task; yields one receipt.

    Args:
        batches: shuffle batches, with the column `record_expressions.ATTEMPT`.
        plan: what to do.
        identity: of the task.
    """
    try:
        sending = _SendTask(plan, identity.task, plan.open_session())
        yield from sending.send(plan.of_first_attempt(batches, identity))
    except DualWriteError as error:
        yield TaskReceipt(task=identity.task, error=error).to_result()


def run_count_task(
    batches: Iterable[pa.RecordBatch], plan: TaskPlan, identity: TaskIdentity
) -> Iterator[pa.RecordBatch]:
    """Do all that `run_send_task` does but send: for the digest of what it would; yields one receipt.

    Args:
        batches: shuffle batches.
        plan: what to do, for Kafka only.
        identity: of the task.
    """
    try:
        yield from _SendTask(plan, identity.task, _Unsent()).send(batches)
    except DualWriteError as error:
        yield TaskReceipt(task=identity.task, error=error).to_result()


class _Unsent:
    """Takes the place of a `ProduceSession`: adds digests up, and sends nothing."""

    def __init__(self) -> None:
        self.digest = EMPTY_DIGEST
        self.record_bytes = 0

    def meet(self, partitions: Iterable[TopicPartition]) -> None:
        pass

    def append_encoded(self, batch: EncodedBatch) -> None:
        self.digest = combine_digests(self.digest, batch.digest)

    def flush(self) -> Mapping[TopicPartition, PartitionReceipt]:
        return {}


class _SendTask:
    """One attempt of one task."""

    def __init__(self, plan: TaskPlan, task: int, session: ProduceSession | _Unsent) -> None:
        self._plan = plan
        self._task = task
        # Making one asks nobody anything: a task without shuffle batches needs no broker.
        self._session = session
        # Of the lanes whose records follow a table.
        self._arrangements = {
            lane.index: Arrangement(plan, lane.upsert_records) for lane in plan.lanes if lane.upsert_records is not None
        }
        self._taken: Counter[tuple[int, int]] = Counter()
        self._newest: dict[tuple[int, int, bool], int] = {}
        self._encoded: list[EncodeReceipt] = []

    def send(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        arrangements, folder = self._arrangements, self._plan.shuffle_folder
        try:
            with ExitStack() as stack:
                files = stack.enter_context(ShuffleFiles(folder)) if folder else None
                for arrangement in arrangements.values():
                    stack.enter_context(arrangement)
                for batch in batches:
                    self._take(batch, files)
                for encoded in chain.from_iterable(each.finish() for each in arrangements.values()):
                    self._session.append_encoded(encoded)
            written = self._session.flush()
            yield TaskReceipt(
                task=self._task,
                encoded=tuple(self._encoded),
                taken=dict(self._taken),
                digest=self._session.digest,
                written=written,
                record_bytes=self._session.record_bytes,
                left_out={lane: each.left_out for lane, each in arrangements.items()},
                left_out_digest=combine_digests(*(each.left_out_digest for each in arrangements.values())),
            ).to_result()
        except BaseException:
            self._plan.topics.connections.drop()
            raise

    def _take(self, batch: pa.RecordBatch, files: ShuffleFiles | None) -> None:
        self._plan.check_refusal()
        partitions = partitions_of(batch)
        if partitions:
            self._session.meet(partitions)
        for made in read_shuffle_batches(batch, files):
            self._check_order(made)
            content = made.content
            if isinstance(content, EncodeReceipt):
                if content.error is not None:
                    raise content.error
                self._encoded.append(content)
                continue
            self._taken[made.encode_task, made.task_attempt] += 1
            for encoded in self._arranged(made, content):
                self._send(encoded)

    def _arranged(self, made: ShuffleBatch, content: EncodedBatch | RowIndex) -> Iterable[EncodedBatch]:
        """The record batches of a shuffle batch that are to be sent now."""
        arrangement = self._arrangements.get(made.lane)
        if isinstance(content, RowIndex):
            if arrangement is not None:
                arrangement.index(made.encode_task, made.task_attempt, content)
            return ()
        if arrangement is None:
            return (content,)
        return arrangement.arrange(made.encode_task, made.task_attempt, content)

    def _send(self, batch: EncodedBatch) -> None:
        topic, partition = batch.partition.topic, batch.partition.partition
        if owner_of(topic, partition, self._plan.tasks) != self._task:
            raise BatchRetryError(
                reason=f"records for {batch.partition} came to task {self._task}, which does not own that partition"
            )
        self._session.append_encoded(batch)

    def _check_order(self, made: ShuffleBatch) -> None:
        """Records with one key keep their order. Indexes, which are sorted to the front, have one of their own."""
        made_by = (made.encode_task, made.task_attempt, isinstance(made.content, RowIndex))
        if made.number <= self._newest.get(made_by, -1):
            raise BatchRetryError(
                reason=f"shuffle batch {made.number} of encode task {made.encode_task} came behind number "
                f"{self._newest[made_by]}: the shuffle did not keep their order"
            )
        self._newest[made_by] = made.number
