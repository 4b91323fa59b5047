"""What a task returns to the driver, and how the driver adds it up."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from spark_2pc_sink.errors import BatchRetryError, DataError
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.wire.digest import combine_digests

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from spark_2pc_sink.errors import DualWriteError

#: A task yields rows of these two columns: any number of ``copy`` payloads, then one ``receipt``.
RESULT_DDL = "kind string, payload binary"
RESULT_SCHEMA = pa.schema([("kind", pa.string()), ("payload", pa.binary())])
COPY_KIND = "copy"
RECEIPT_KIND = "receipt"


@dataclass(frozen=True)
class WrittenPartition:
    """What a task wrote to one Kafka partition."""

    records: int
    first_offset: int
    last_offset: int


@dataclass(frozen=True)
class TaskReceipt:
    """The account of one task, empty ones too.

    Attributes:
        task: the Spark partition id.
        rows: rows read from Spark.
        digest: 128-bit digest over the records that were acknowledged.
        written: what was acknowledged, by partition.
        copy_rows: rows in the COPY payloads that the task returned.
        staging_table: name of the table that holds the other rows, None when there are none.
        staging_rows: rows in it.
        error: why the task refused or gave up; nothing it wrote may be used then.
    """

    task: int
    rows: int = 0
    digest: int = 0
    written: Mapping[TopicPartition, WrittenPartition] = field(default_factory=dict)
    copy_rows: int = 0
    staging_table: str | None = None
    staging_rows: int = 0
    error: DualWriteError | None = None

    def to_result(self) -> pa.RecordBatch:
        """The row that a task yields last."""
        return _result(RECEIPT_KIND, pickle.dumps(self))


@dataclass(frozen=True)
class TaskResults:
    """Everything that the tasks of one attempt returned.

    Attributes:
        receipts: one per task, in the order of their ids.
        copy_payloads: pieces of COPY BINARY streams by task, in the order in which the task yielded them.
    """

    receipts: tuple[TaskReceipt, ...]
    copy_payloads: Mapping[int, Sequence[pa.Buffer]]

    @property
    def rows(self) -> int:
        """Rows read by all tasks."""
        return sum(receipt.rows for receipt in self.receipts)

    @property
    def records(self) -> int:
        """Records acknowledged to all tasks."""
        return sum(written.records for receipt in self.receipts for written in receipt.written.values())

    @property
    def digest(self) -> int:
        """Digest over all records, whatever task wrote them."""
        return combine_digests(*(receipt.digest for receipt in self.receipts))

    @property
    def offsets(self) -> dict[TopicPartition, tuple[int, int]]:
        """First and last offset by partition."""
        return {
            partition: (written.first_offset, written.last_offset)
            for receipt in self.receipts
            for partition, written in receipt.written.items()
        }


def copy_result(task: int, payload: bytes) -> pa.RecordBatch:
    """A row that carries a piece of the task's COPY stream."""
    return _result(f"{COPY_KIND}:{task}", payload)


def read_results(table: pa.Table, *, tasks_expected: int | None) -> TaskResults:
    """Add up what came back, and refuse it unless it is whole.

    Args:
        table: the collected rows.
        tasks_expected: how many tasks there were; None where Spark may have used fewer, which then have the ids
            from 0 on without a gap. No receipt at all is an empty batch in either case: Spark had no partition.

    Raises:
        BatchRetryError: a receipt is missing or double, two tasks wrote one partition, or a task refused.
        DualWriteError: the error that a task returned.
    """
    receipts: dict[int, TaskReceipt] = {}
    payloads: dict[int, list[pa.Buffer]] = {}
    for kind, payload in zip(table["kind"], table["payload"], strict=True):
        name = kind.as_py()
        if name == RECEIPT_KIND:
            receipt: TaskReceipt = pickle.loads(payload.as_buffer())  # noqa: S301 - written by our own tasks
            if receipt.task in receipts:
                raise BatchRetryError(reason=f"task {receipt.task} returned two receipts")
            receipts[receipt.task] = receipt
        else:
            payloads.setdefault(int(name.removeprefix(f"{COPY_KIND}:")), []).append(payload.as_buffer())
    errors = [receipt.error for receipt in receipts.values() if receipt.error is not None]
    if errors:
        # A row that no retry can mend says more than a task that only met its consequences.
        raise min(errors, key=lambda error: not isinstance(error, DataError))
    expected = len(receipts) if tasks_expected is None else tasks_expected
    if receipts and sorted(receipts) != list(range(expected)):
        raise BatchRetryError(reason=f"receipts came from tasks {sorted(receipts)}, {expected} tasks were expected")
    results = TaskResults(tuple(receipts[task] for task in sorted(receipts)), payloads)
    _check_ownership(results.receipts)
    return results


def _check_ownership(receipts: Iterable[TaskReceipt]) -> None:
    owner: dict[TopicPartition, int] = {}
    for receipt in receipts:
        for partition in receipt.written:
            if owner.setdefault(partition, receipt.task) != receipt.task:
                raise BatchRetryError(
                    reason=f"tasks {owner[partition]} and {receipt.task} both wrote {partition}: sequences were mixed"
                )


def _result(kind: str, payload: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array([kind], RESULT_SCHEMA.field(0).type), pa.array([payload], RESULT_SCHEMA.field(1).type)],
        schema=RESULT_SCHEMA,
    )
