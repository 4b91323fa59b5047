"""The receipts that tasks return to the driver through Spark, compared by the driver with the data received."""

from __future__ import annotations

import pickle
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from spark_2pc_sink.errors import BatchRetryError, DataError
from spark_2pc_sink.wire.record_batch import EMPTY_DIGEST, combine_digests

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from spark_2pc_sink.errors import DualWriteError
    from spark_2pc_sink.sink.stream.task_stream import LaneTotals

#: A task yields one row.
RESULT_DDL = "receipt binary"
RESULT_SCHEMA = pa.schema([("receipt", pa.binary())])


@dataclass(frozen=True)
class TaskReceipt:
    """The receipt of one task attempt, including one without rows.

    Attributes:
        task: Spark's partition id.
        task_attempt: tells attempts of one task apart.
        rows: rows read from Spark.
        lane_rows: rows of each lane, by index.
        left_out: rows of each lane without a record, because others of their upsert key supersede them.
        sent: what was sent to the driver for each lane; empty if only a digest was requested.
        digest: 128-bit digest over the encoded records.
        row_digest: 128-bit digest over the rows of lanes without records.
        arrow_bytes: bytes of all Arrow batches read.
        error: why the task gave up; its output must not be used then.
    """

    task: int
    task_attempt: int = 0
    rows: int = 0
    lane_rows: Mapping[int, int] = field(default_factory=dict)
    left_out: Mapping[int, int] = field(default_factory=dict)
    sent: Mapping[int, LaneTotals] = field(default_factory=dict)
    digest: int = EMPTY_DIGEST
    row_digest: int = EMPTY_DIGEST
    arrow_bytes: int = 0
    error: DualWriteError | None = None

    def to_result(self) -> pa.RecordBatch:
        """The row that a task yields last."""
        return pa.RecordBatch.from_arrays([pa.array([pickle.dumps(self)], pa.binary())], schema=RESULT_SCHEMA)


@dataclass(frozen=True)
class TaskResults:
    """Everything returned by the tasks of one attempt.

    Attributes:
        receipts: one per task, ordered by task id.
    """

    receipts: tuple[TaskReceipt, ...]

    @property
    def rows(self) -> int:
        """Rows read from Spark."""
        return sum(receipt.rows for receipt in self.receipts)

    @property
    def lane_rows(self) -> Counter[int]:
        """Rows of each lane."""
        return _summed(receipt.lane_rows for receipt in self.receipts)

    @property
    def left_out(self) -> Counter[int]:
        """Rows of each lane without a record."""
        return _summed(receipt.left_out for receipt in self.receipts)

    @property
    def copy_rows(self) -> Counter[int]:
        """Rows that were encoded for each lane's table."""
        return _summed({lane: sent.rows for lane, sent in receipt.sent.items()} for receipt in self.receipts)

    @property
    def digest(self) -> int:
        """Digest over all records that were made."""
        return combine_digests(*(receipt.digest for receipt in self.receipts))

    @property
    def row_digest(self) -> int:
        """Digest over all rows of lanes without records."""
        return combine_digests(*(receipt.row_digest for receipt in self.receipts))

    @property
    def arrow_bytes(self) -> int:
        """Bytes of all Arrow batches read."""
        return sum(receipt.arrow_bytes for receipt in self.receipts)

    def check_arrived(self, finished: Mapping[int, tuple[int, Mapping[int, LaneTotals]]]) -> None:
        """Compare the receipts with the data received.

        Args:
            finished: the task attempt that finished for each task, and the totals received from it.

        Raises:
            BatchRetryError: a different attempt of a task arrived, or different bytes, rows or records.
        """
        said = {receipt.task: (receipt.task_attempt, dict(receipt.sent)) for receipt in self.receipts}
        arrived = {task: (attempt, dict(totals)) for task, (attempt, totals) in finished.items()}
        for task in sorted(said.keys() | arrived.keys()):
            if said.get(task) != arrived.get(task):
                raise BatchRetryError(
                    reason=f"task {task} says that it sent {said.get(task)} (task attempt, totals by lane), and "
                    f"{arrived.get(task)} arrived: it ran again, or its stream lost something"
                )


def read_results(table: pa.Table) -> TaskResults:
    """Read and add up the returned receipts.

    Args:
        table: the collected rows. No receipt at all is an empty batch: Spark had no partition.

    Raises:
        BatchRetryError: a receipt is missing or duplicate, or a task gave up.
        DualWriteError: the error that a task returned.
    """
    return add_up(pickle.loads(payload.as_buffer()) for payload in table["receipt"])  # noqa: S301 - by our own tasks


def add_up(returned: Iterable[TaskReceipt]) -> TaskResults:
    """See `read_results`, which unpacks the receipts first."""
    receipts: dict[int, TaskReceipt] = {}
    for receipt in returned:
        if receipt.task in receipts:
            raise BatchRetryError(reason=f"task {receipt.task} returned two receipts")
        receipts[receipt.task] = receipt
    errors = [receipt.error for receipt in receipts.values() if receipt.error is not None]
    if errors:
        # A row error that no retry can fix is more informative than tasks that failed as a consequence.
        raise min(errors, key=lambda error: not isinstance(error, DataError))
    if sorted(receipts) != list(range(len(receipts))):
        raise BatchRetryError(reason=f"receipts came from tasks {sorted(receipts)}, and some are missing between them")
    return TaskResults(tuple(receipts[task] for task in sorted(receipts)))


def _summed(counts: Iterable[Mapping[int, int]]) -> Counter[int]:
    total: Counter[int] = Counter()
    for each in counts:
        total.update(each)
    return total
