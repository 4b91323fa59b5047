"""A task that sends what others have encoded: pieces in, records acknowledged, one receipt.

It owns its partitions: all pieces for them come to it, and each partition's batches get their sequence numbers here.
Like every task that sends, it does so in its first attempt only.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from spark_2pc_sink.errors import BatchRetryError, DualWriteError
from spark_2pc_sink.sink.pieces import Piece, partitions_of, read_pieces
from spark_2pc_sink.sink.receipts import EncodedSource, TaskReceipt
from spark_2pc_sink.sink.routing import owner_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from spark_2pc_sink.producer.record_encoder import EncodedBatch
    from spark_2pc_sink.sink.piece_files import PieceFiles
    from spark_2pc_sink.sink.task_plan import TaskPlan


def run_sending(
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
        yield from _Sending(plan, task).run(plan.of_first_attempt(batches, task=task, attempt=attempt))
    except DualWriteError as error:
        yield TaskReceipt(task=task, error=error).to_result()


class _Sending:
    """One attempt of one task."""

    def __init__(self, plan: TaskPlan, task: int) -> None:
        self._plan = plan
        self._task = task
        # Making one asks nobody anything: a task without pieces needs no broker.
        self._session = plan.open_session()
        self._taken: Counter[tuple[int, int]] = Counter()
        self._newest: dict[tuple[int, int], int] = {}
        self._sources: list[EncodedSource] = []

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            with self._plan.piece_files() as files:
                for batch in batches:
                    self._take(batch, files)
            written = self._session.flush()
            yield TaskReceipt(
                task=self._task,
                sources=tuple(self._sources),
                taken=dict(self._taken),
                digest=self._session.digest,
                written=written,
                record_bytes=self._session.record_bytes,
            ).to_result()
        except BaseException:
            self._plan.topics.connections.drop()
            raise

    def _take(self, batch: pa.RecordBatch, files: PieceFiles | None) -> None:
        partitions = partitions_of(batch)
        if partitions:
            self._session.meet(partitions)
        for piece in read_pieces(batch, files):
            self._check_order(piece)
            content = piece.content
            if isinstance(content, EncodedSource):
                if content.error is not None:
                    raise content.error
                self._sources.append(content)
                continue
            self._taken[piece.source, piece.run] += 1
            self._send(content)

    def _send(self, batch: EncodedBatch) -> None:
        topic, partition = batch.partition.topic, batch.partition.partition
        if owner_of(topic, partition, self._plan.tasks) != self._task:
            raise BatchRetryError(
                reason=f"records for {batch.partition} came to task {self._task}, which does not own that partition"
            )
        self._session.append_encoded(batch)

    def _check_order(self, piece: Piece) -> None:
        """Records with one key keep their order."""
        made_by = (piece.source, piece.run)
        if piece.number <= self._newest.get(made_by, -1):
            raise BatchRetryError(
                reason=f"piece {piece.number} of source {piece.source} came behind piece {self._newest[made_by]}: the "
                "shuffle did not keep their order"
            )
        self._newest[made_by] = piece.number
