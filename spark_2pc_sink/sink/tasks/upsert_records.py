"""The order of an upsert's records: the last record of each key is the row that the table keeps.

Of several rows with one upsert key in a batch the table keeps the one with the greatest upsert_order_by. So records of
the others, which are superseded, are sent before it or not at all (`SinkOptions.upsert_superseded`). Only a task that
has met all rows of a key knows which is which, and that is the one that sends them: it is told by small indexes before
it gets the records (`RowIndex`). Records are then taken out of their batches where they have to be, and the others go
as they came. Of each row it holds the identity and the order until all indexes are there, and then whether it stays;
records that have to wait are kept encoded, in a file where they are many.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from spark_2pc_sink.errors import BatchRetryError
from spark_2pc_sink.producer.content_encoder import ContentEncoder
from spark_2pc_sink.sink.contract import record_expressions
from spark_2pc_sink.sink.table.upsert_order import ORDER_COLUMN, row_identities
from spark_2pc_sink.sink.tasks.shuffle_batches import RowIndex
from spark_2pc_sink.sink.tasks.superseded_rows import find_superseded
from spark_2pc_sink.wire.digest import EMPTY_DIGEST, combine_digests, content_digest, without_digest
from spark_2pc_sink.wire.record_contents import contents_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spark_2pc_sink.ids import TopicPartition
    from spark_2pc_sink.producer.arrow_partitioner import PartitionRows
    from spark_2pc_sink.producer.record_encoder import EncodedBatch
    from spark_2pc_sink.sink.contract.task_plan import TaskPlan, UpsertRecordsPlan
    from spark_2pc_sink.wire.arrow_layout import ArrowColumn

#: Bytes of batches that wait in memory for those before them; more go to a file.
WAITING_BYTES_MAX: Final = 32 * 1024 * 1024
#: Rows of the index in one shuffle batch.
INDEX_ROWS: Final = 128 * 1024


def row_index(plan: UpsertRecordsPlan, batch: pa.RecordBatch) -> RowIndex:
    """Which rows of a batch are which.

    Args:
        plan: from the driver.
        batch: with its order keys, and the keys of its records.
    """
    columns = [batch.column(name) for name in plan.keys]
    return RowIndex(row_identities(columns, batch.column(record_expressions.KEY)), batch.column(ORDER_COLUMN))


def arranged(plan: UpsertRecordsPlan, batch: pa.RecordBatch) -> pa.RecordBatch:
    """All rows of a micro-batch as their records are sent; without those that are left out."""
    index = row_index(plan, batch)
    found = find_superseded(index.identities, index.orders)
    if plan.leave_out:
        return batch.filter(pa.array(~found.lost)) if found.lost.any() else batch
    if not found.early.any():
        return batch
    return batch.take(pa.array(np.concatenate((np.flatnonzero(~found.early), np.flatnonzero(found.early)))))


class PartitionedIndex:
    """The index of one batch, as `RowPartitioner` splits it.

    Args:
        rows: of the batch, in its order.
    """

    def __init__(self, rows: RowIndex) -> None:
        self._rows = self._partitioned = rows
        self._taken: ArrowColumn | None = None

    def of(self, part: PartitionRows) -> RowIndex:
        """Those of one part."""
        if part.taken is not self._taken:
            # Once for all partitions of a topic.
            self._taken = part.taken
            self._partitioned = self._rows.take(part.taken)
        return self._partitioned.slice(part.start, part.start + len(part.rows))


class IndexBuilder:
    """Keeps, beside a `RecordEncoder`, which rows its record batches consist of."""

    def __init__(self) -> None:
        self._waiting: dict[TopicPartition, list[RowIndex]] = {}
        self._made: dict[int, list[RowIndex]] = {}

    def append(self, partition: TopicPartition, rows: RowIndex) -> None:
        """Rows that go into the encoder."""
        self._waiting.setdefault(partition, []).append(rows)

    def encoded(self, batch: EncodedBatch, owner: int) -> RowIndex | None:
        """The encoder has made a batch for a task; an index for that task where it has become long enough."""
        waiting = self._waiting[batch.partition]
        rows = RowIndex.joined(waiting)
        self._waiting[batch.partition] = [rows.slice(batch.record_count, len(rows))]
        made = self._made.setdefault(owner, [])
        made.append(rows.slice(0, batch.record_count))
        return RowIndex.joined(self._made.pop(owner)) if sum(map(len, made)) >= INDEX_ROWS else None

    def finish(self) -> Iterator[tuple[int, RowIndex]]:
        """The rest of the index, for each task."""
        for owner, made in self._made.items():
            yield owner, RowIndex.joined(made)
        self._made = {}


class Arrangement:
    """Puts the records of a task into the order in which it sends them. A context manager, which removes its file.

    Args:
        plan: from the driver.
        upsert_records: of that plan.
    """

    def __init__(self, plan: TaskPlan, upsert_records: UpsertRecordsPlan) -> None:
        self._leave_out = upsert_records.leave_out
        self._encoder = ContentEncoder(plan.kafka, timestamp_ms=plan.timestamp_ms, limits=plan.topics.limits_of)
        self._indexes: dict[tuple[int, int], list[RowIndex]] = {}
        self._cut: dict[tuple[int, int], np.ndarray] | None = None
        self._newest = (-1, -1)
        self._waiting = _Waiting()
        self.left_out: int = 0
        self.left_out_digest: int = EMPTY_DIGEST

    def __enter__(self) -> Arrangement:
        return self

    def __exit__(self, *_: object) -> None:
        self._waiting.close()

    def index(self, encode_task: int, task_attempt: int, index: RowIndex) -> None:
        """Which rows the next records of an encode task were, before the first record of any encode task.

        Raises:
            BatchRetryError: records were arranged before.
        """
        if self._cut is not None:
            raise BatchRetryError(
                reason=f"an index of encode task {encode_task} came behind records: the sort was not kept"
            )
        self._indexes.setdefault((encode_task, task_attempt), []).append(index)

    def arrange(self, encode_task: int, task_attempt: int, batch: EncodedBatch) -> Iterator[EncodedBatch]:
        """The records of a batch that are to be sent now: mostly the batch itself.

        Raises:
            BatchRetryError: the indexes say nothing of its records, encode tasks do not come in the order of their ids,
                or the disk is full.
        """
        if self._cut is None:
            self._cut = self._cuts()
        if (encode_task, task_attempt) < self._newest:
            raise BatchRetryError(reason=f"records of encode task {encode_task} came late: the sort was not kept")
        self._newest = (encode_task, task_attempt)
        of_task = self._cut.get((encode_task, task_attempt), np.zeros(0, bool))
        cut, self._cut[encode_task, task_attempt] = of_task[: batch.record_count], of_task[batch.record_count :]
        if len(cut) != batch.record_count:
            raise BatchRetryError(reason=f"encode task {encode_task} has made more records than its indexes tell of")
        if not cut.any():
            yield batch
            return
        contents = contents_of(batch.payload, batch.record_count)
        taken_out = contents.filter(pa.array(cut))
        digest = content_digest(batch.partition.topic, taken_out)
        if self._leave_out:
            self.left_out += len(taken_out)
            self.left_out_digest = combine_digests(self.left_out_digest, digest)
        else:
            for full in self._encoder.append(batch.partition, taken_out):
                self._waiting.add(full)
        if len(taken_out) < len(contents):
            stay = contents.filter(pa.array(~cut))
            yield self._encoder.encode(batch.partition, stay, digest=without_digest(batch.digest, digest))

    def finish(self) -> Iterator[EncodedBatch]:
        """The records that had to wait for all others.

        Raises:
            BatchRetryError: the indexes tell of records that have not come.
        """
        if self._indexes or any(map(len, (self._cut or {}).values())):
            raise BatchRetryError(reason="encode tasks have made fewer records than their indexes tell of")
        for batch in self._encoder.finish():
            self._waiting.add(batch)
        yield from self._waiting.batches()

    def _cuts(self) -> dict[tuple[int, int], np.ndarray]:
        """For each encode task the records that do not go where they are."""
        made_by = sorted(self._indexes)
        parts = [RowIndex.joined(self._indexes[encode_task]) for encode_task in made_by]
        self._indexes = {}
        if not parts:
            return {}
        ends = np.cumsum([len(part) for part in parts])
        everything = RowIndex.joined(parts)
        found = find_superseded(everything.identities, everything.orders)
        cut = found.lost if self._leave_out else found.early
        return dict(zip(made_by, np.split(cut, ends[:-1]), strict=True))


class _Waiting:
    """Encoded batches, in the order in which they were added."""

    def __init__(self) -> None:
        self._batches: list[tuple[EncodedBatch, int]] = []
        # Deleted by the system when it is closed, also where the process is killed.
        self._file = tempfile.SpooledTemporaryFile(max_size=WAITING_BYTES_MAX, prefix="spark_2pc_")  # noqa: SIM115

    def add(self, batch: EncodedBatch) -> None:
        payload = memoryview(batch.payload).cast("B")
        try:
            self._file.write(payload)
        except OSError as error:
            raise BatchRetryError(
                reason=f"records that wait for others cannot be put into {tempfile.gettempdir()}: {error.strerror}; "
                "TMPDIR names another place to Python's workers, and upsert_superseded='leave_out' has none wait"
            ) from error
        self._batches.append((replace(batch, payload=b""), len(payload)))

    def batches(self) -> Iterator[EncodedBatch]:
        self._file.seek(0)
        for batch, payload_bytes in self._batches:
            yield replace(batch, payload=self._file.read(payload_bytes))
        self._batches = []

    def close(self) -> None:
        self._file.close()
