"""A task that sends what others have encoded: pieces in, records acknowledged, one receipt.

It owns its partitions: all pieces for them come to it, and each partition's batches get their sequence numbers here.
Like every task that sends, it does so in its first attempt only.
"""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from typing import TYPE_CHECKING, Protocol

from spark_2pc_sink.errors import BatchRetryError, DualWriteError
from spark_2pc_sink.sink.contract.receipts import EncodeReceipt, TaskReceipt
from spark_2pc_sink.sink.tasks.partition_ownership import owner_of
from spark_2pc_sink.sink.tasks.shuffle_batches import RowIndex, ShuffleBatch, partitions_of, read_shuffle_batches
from spark_2pc_sink.sink.tasks.upsert_records import Arrangement
from spark_2pc_sink.wire.digest import EMPTY_DIGEST, combine_digests

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import pyarrow as pa

    from spark_2pc_sink.ids import TopicPartition
    from spark_2pc_sink.producer.partition_queue import PartitionReceipt
    from spark_2pc_sink.producer.record_encoder import EncodedBatch
    from spark_2pc_sink.sink.tasks.shuffle_files import ShuffleFiles
    from spark_2pc_sink.sink.tasks.task_plan import TaskPlan


def run_send_task(
    batches: Iterable[pa.RecordBatch], plan: TaskPlan, *, task: int, attempt: int
) -> Iterator[pa.RecordBatch]:
    """Send the pieces of one partition of the shuffle; yields one receipt.

    Args:
        batches: pieces, with the column `frame.ATTEMPT`.
        plan: what to do.
        task: the Spark partition id.
        attempt: the attempt number of the task.
    """
    try:
        sending = _SendTask(plan, task, plan.open_session())
        yield from sending.run(plan.of_first_attempt(batches, task=task, attempt=attempt))
    except DualWriteError as error:
        yield TaskReceipt(task=task, error=error).to_result()


def run_count_task(batches: Iterable[pa.RecordBatch], plan: TaskPlan, *, task: int) -> Iterator[pa.RecordBatch]:
    """Do all that `run_send_task` does but send: for the digest of what it would; yields one receipt.

    Args:
        batches: pieces.
        plan: what to do, for Kafka only.
        task: the Spark partition id.
    """
    try:
        yield from _SendTask(plan, task, _Unsent()).run(batches)
    except DualWriteError as error:
        yield TaskReceipt(task=task, error=error).to_result()


class _Session(Protocol):
    """What a task does with record batches."""

    @property
    def digest(self) -> int:
        """Of all records."""

    @property
    def record_bytes(self) -> int:
        """Of all record batches."""

    def meet(self, partitions: Iterable[TopicPartition]) -> None:
        """These will be written."""

    def append_encoded(self, batch: EncodedBatch) -> None:
        """Take the next batch of its partition."""

    def flush(self) -> Mapping[TopicPartition, PartitionReceipt]:
        """What was acknowledged."""


class _Unsent:
    """Counts, and sends nothing."""

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

    def __init__(self, plan: TaskPlan, task: int, session: _Session) -> None:
        self._plan = plan
        self._task = task
        # Making one asks nobody anything: a task without pieces needs no broker.
        self._session = session
        self._arrangement = None if plan.upsert_records is None else Arrangement(plan, plan.upsert_records)
        self._taken: Counter[tuple[int, int]] = Counter()
        self._newest: dict[tuple[int, int, bool], int] = {}
        self._sources: list[EncodeReceipt] = []

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        arrangement = self._arrangement
        try:
            with self._plan.piece_files() as files, arrangement or nullcontext():
                for batch in batches:
                    self._take(batch, files)
                for encoded in arrangement.finish() if arrangement else ():
                    self._session.append_encoded(encoded)
            written = self._session.flush()
            yield TaskReceipt(
                task=self._task,
                sources=tuple(self._sources),
                taken=dict(self._taken),
                digest=self._session.digest,
                written=written,
                record_bytes=self._session.record_bytes,
                left_out=arrangement.left_out if arrangement else 0,
                left_out_digest=arrangement.left_out_digest if arrangement else EMPTY_DIGEST,
            ).to_result()
        except BaseException:
            self._plan.topics.connections.drop()
            raise

    def _take(self, batch: pa.RecordBatch, files: ShuffleFiles | None) -> None:
        partitions = partitions_of(batch)
        if partitions:
            self._session.meet(partitions)
        for piece in read_shuffle_batches(batch, files):
            self._check_order(piece)
            content = piece.content
            if isinstance(content, EncodeReceipt):
                if content.error is not None:
                    raise content.error
                self._sources.append(content)
                continue
            self._taken[piece.source, piece.run] += 1
            for encoded in self._arranged(piece.source, piece.run, content):
                self._send(encoded)

    def _arranged(self, source: int, run: int, content: EncodedBatch | RowIndex) -> Iterable[EncodedBatch]:
        """What of a piece is to be sent now."""
        if isinstance(content, RowIndex):
            if self._arrangement is not None:
                self._arrangement.index(source, run, content)
            return ()
        return (content,) if self._arrangement is None else self._arrangement.arrange(source, run, content)

    def _send(self, batch: EncodedBatch) -> None:
        topic, partition = batch.partition.topic, batch.partition.partition
        if owner_of(topic, partition, self._plan.tasks) != self._task:
            raise BatchRetryError(
                reason=f"records for {batch.partition} came to task {self._task}, which does not own that partition"
            )
        self._session.append_encoded(batch)

    def _check_order(self, piece: ShuffleBatch) -> None:
        """Records with one key keep their order. Indexes, which are sorted to the front, have one of their own."""
        made_by = (piece.source, piece.run, isinstance(piece.content, RowIndex))
        if piece.number <= self._newest.get(made_by, -1):
            raise BatchRetryError(
                reason=f"piece {piece.number} of source {piece.source} came behind piece {self._newest[made_by]}: the "
                "shuffle did not keep their order"
            )
        self._newest[made_by] = piece.number
