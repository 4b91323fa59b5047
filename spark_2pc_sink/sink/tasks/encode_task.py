"""The task that encodes rows for others to send: rows in, shuffle batches out, and no effect on Kafka.

So Spark may run it again as it likes. Only its COPY bytes leave it another way: when it has ended well
(`copy_channel`), or, where they are many, while it runs (`staging`). The driver notices a second attempt of either, and
gives the attempt of the batch up.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from spark_2pc_sink.errors import BatchRetryError, DualWriteError
from spark_2pc_sink.producer.record_encoder import EncodedBatch, RecordEncoder
from spark_2pc_sink.sink.contract.receipts import EncodeReceipt, TaskReceipt
from spark_2pc_sink.sink.contract.task_plan import owner_of
from spark_2pc_sink.sink.tasks.row_partitioner import RowPartitioner
from spark_2pc_sink.sink.tasks.shuffle_batches import RowIndex, ShuffleBatch, ShuffleRows
from spark_2pc_sink.sink.tasks.shuffle_files import ShuffleFile
from spark_2pc_sink.sink.tasks.task_input import TaskInput
from spark_2pc_sink.sink.tasks.upsert_records import IndexBuilder, PartitionedIndex, row_index
from spark_2pc_sink.wire.digest import EMPTY_DIGEST, combine_digests

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from spark_2pc_sink.sink.contract.task_plan import LanePlan, TaskIdentity, TaskPlan


def run_encode_task(
    batches: Iterable[pa.RecordBatch], plan: TaskPlan, identity: TaskIdentity
) -> Iterator[pa.RecordBatch]:
    """Encode the rows of one Spark partition; yields rows of `spark_2pc_sink.sink.tasks.shuffle_batches`.

    Args:
        batches: the rows, with the columns that `record_expressions` names.
        plan: what to do.
        identity: of the task.
    """
    encoding = _EncodeTask(plan, identity)
    try:
        yield from encoding.encode(batches)
    except DualWriteError as error:
        yield from encoding.give_up(error)


def run_reread_task(
    batches: Iterable[pa.RecordBatch], plan: TaskPlan, identity: TaskIdentity
) -> Iterator[pa.RecordBatch]:
    """Encode the rows of one Spark partition for the digest of their records alone; yields one receipt.

    Args:
        batches: the rows, with the columns that `record_expressions` names.
        plan: what to do, for Kafka only.
        identity: of the task.
    """
    lanes = _encoders(plan)
    digest = EMPTY_DIGEST
    try:
        with TaskInput(plan, identity) as rows:
            for lane, batch in rows.read(batches):
                for part in lanes[lane.index].partitioner.split_batch(batch):
                    encoded = lanes[lane.index].encoder.append(part.partition, part.rows)
                    digest = combine_digests(digest, *(each.digest for each in encoded))
            for each in lanes.values():
                digest = combine_digests(digest, *(encoded.digest for encoded in each.encoder.finish()))
        receipt = TaskReceipt(task=identity.task, encoded=(rows.receipt(digest),), digest=digest)
    except DualWriteError as error:
        receipt = TaskReceipt(task=identity.task, error=error)
    yield receipt.to_result()


#: An Arrow batch with fewer rows for each partition waits for more: each cut takes as long as encoding some of them.
_ROWS_EACH: Final = 128
#: Bytes of Arrow batches that wait, at most; as much as `record_encoder.KEPT_BYTES_MAX`, which they become.
_WAITING_BYTES_MAX: Final = 32 * 1024 * 1024


class _LaneEncoder:
    """Encodes the records of one lane. Rows without a key may go to any partition.

    Args:
        plan: of the task.
        lane: of that plan.
    """

    def __init__(self, plan: TaskPlan, lane: LanePlan) -> None:
        self.plan = lane
        self.partitioner = RowPartitioner(
            lane.topic, plan.topics.partition_count, lambda _, count: tuple(range(count)), plan.topics.fault_of
        )
        self.encoder = RecordEncoder(plan.kafka, timestamp_ms=plan.timestamp_ms, limits=plan.topics.limits_of)
        self.index = None if lane.upsert_records is None else IndexBuilder()
        self._counts = plan.topics.partition_count
        self._waiting: list[pa.RecordBatch] = []

    def gathered(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Take an Arrow batch; yields those that wait, as one, once they have enough rows for each partition."""
        self._waiting.append(batch)
        rows = sum(each.num_rows for each in self._waiting)
        enough = self.plan.topic is None or rows >= _ROWS_EACH * self._counts(self.plan.topic)
        if enough or sum(each.nbytes for each in self._waiting) >= _WAITING_BYTES_MAX:
            yield from self.rest()

    def rest(self) -> Iterator[pa.RecordBatch]:
        """Those that wait, in their order."""
        waiting, self._waiting = self._waiting, []
        if len(waiting) == 1:
            yield from waiting
        elif waiting:
            yield from pa.Table.from_batches(waiting).combine_chunks().to_batches()


def _encoders(plan: TaskPlan) -> dict[int, _LaneEncoder]:
    return {lane.index: _LaneEncoder(plan, lane) for lane in plan.lanes if lane.sends}


class _EncodeTask:
    """One attempt of one encode task."""

    def __init__(self, plan: TaskPlan, identity: TaskIdentity) -> None:
        self._plan = plan
        self._identity = identity
        self._lanes = _encoders(plan)
        folder = plan.shuffle_folder
        self._file = None if folder is None else ShuffleFile(folder, identity.task, identity.task_attempt)
        self._rows = ShuffleRows()
        self._shuffle_batches = 0
        self._shuffle_bytes = 0
        self._digest = EMPTY_DIGEST

    def encode(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with TaskInput(self._plan, self._identity) as rows:
            # The receipt follows when the file is closed: who has it reads the shuffle batches.
            with self._file or nullcontext():
                for lane, batch in rows.read(batches):
                    for gathered in self._lanes[lane.index].gathered(batch):
                        yield from self._encode(self._lanes[lane.index], gathered)
                for each in self._lanes.values():
                    for gathered in each.rest():
                        yield from self._encode(each, gathered)
                    yield from self._records(each, each.encoder.finish())
            for each in self._lanes.values():
                made = () if each.index is None else each.index.finish()
                for owner, index in made:
                    yield from self._shuffled(index, owner, each.plan.index)
            rows.finish()
            yield from self._shuffled(self._receipt(rows))
            yield from self._rows.finish()

    def give_up(self, error: DualWriteError) -> Iterator[pa.RecordBatch]:
        """The receipt of an attempt of which nothing may be used."""
        yield from self._shuffled(EncodeReceipt(self._identity.task, self._identity.task_attempt, error=error))
        yield from self._rows.finish()

    def _encode(self, lane: _LaneEncoder, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        upsert_records = lane.plan.upsert_records
        partitioned = None if upsert_records is None else PartitionedIndex(row_index(upsert_records, batch))
        for part in lane.partitioner.split_batch(batch):
            if lane.index is not None and partitioned is not None:
                lane.index.append(part.partition, partitioned.of(part))
            yield from self._records(lane, lane.encoder.append(part.partition, part.rows))

    def _shuffled(
        self, content: EncodedBatch | RowIndex | EncodeReceipt, owner: int | None = None, lane: int = 0
    ) -> Iterator[pa.RecordBatch]:
        """Put the next shuffle batch on its way to the task ``owner``; the receipt goes to any one."""
        if isinstance(content, RowIndex):
            self._count(content.nbytes)
        elif isinstance(content, EncodedBatch) and self._file is None:
            self._count(len(content.payload))
        salt = self._plan.salts[self._identity.task % self._plan.tasks if owner is None else owner]
        number, self._shuffle_batches = self._shuffle_batches, self._shuffle_batches + 1
        made = ShuffleBatch(self._identity.task, self._identity.task_attempt, number, content, lane)
        yield from self._rows.add(made.cells(salt, self._file))

    def _count(self, shuffle_bytes: int) -> None:
        self._shuffle_bytes += shuffle_bytes
        limit = self._plan.shuffle_bytes_max
        if limit is not None and self._shuffle_bytes > limit:
            raise BatchRetryError(
                reason=f"the batch is far larger than the one before: encode task {self._identity.task} has made more "
                f"than {limit} bytes, which are only moved where Spark counts the bytes of Arrow batches"
            )

    def _records(self, lane: _LaneEncoder, batches: Iterable[EncodedBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            self._digest = combine_digests(self._digest, batch.digest)
            owner = owner_of(batch.partition.topic, batch.partition.partition, self._plan.tasks)
            yield from self._shuffled(batch, owner, lane.plan.index)
            index = None if lane.index is None else lane.index.encoded(batch, owner)
            if index is not None:
                yield from self._shuffled(index, owner, lane.plan.index)

    def _receipt(self, rows: TaskInput) -> EncodeReceipt:
        return replace(
            rows.receipt(self._digest),
            shuffle_batches=self._shuffle_batches,
            partition_counts=dict(self._plan.topics.counts),
            shuffle_bytes=self._shuffle_bytes,
        )
