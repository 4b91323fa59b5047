"""The receipts that tasks return to the driver, and how the driver adds them up."""

from __future__ import annotations

import pickle
from collections import Counter
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa

from spark_2pc_sink.errors import BatchRetryError, DataError
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.producer.partition_queue import PartitionReceipt
from spark_2pc_sink.wire.digest import EMPTY_DIGEST, combine_digests

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from spark_2pc_sink.errors import DualWriteError

#: A task that sends yields one row.
RESULT_DDL = "receipt binary"
RESULT_SCHEMA = pa.schema([("receipt", pa.binary())])


@dataclass(frozen=True)
class LaneRows:
    """The rows of one lane that one attempt of a task has read and encoded.

    Attributes:
        rows: of the lane's source.
        copy_rows: rows that it has encoded for the table.
        staged_parts: in how many parts it has staged them; 0 where they were sent to the driver.
    """

    rows: int = 0
    copy_rows: int = 0
    staged_parts: int = 0


@dataclass(frozen=True)
class EncodeReceipt:
    """The receipt of one attempt of a task that read and encoded rows.

    Attributes:
        encode_task: the Spark partition id.
        task_attempt: tells the attempts of one encode task apart.
        rows: rows read from Spark.
        lanes: what they were in each lane, by its index.
        digest: 128-bit digest over the records that were made of them.
        row_digest: 128-bit digest over the rows of lanes without records.
        shuffle_batches: how many it handed to tasks that send; 0 for a task that sends its own records.
        topic_ids: of the topics that it has asked about; '' for one that has none (KIP-516).
        partition_counts: of each topic the number of partitions by which keys were hashed.
        arrow_bytes: of all Arrow batches that it read.
        shuffle_bytes: of all record batches that it handed to tasks that send.
        error: why it gave up; nothing that it made may be used then.
    """

    encode_task: int
    task_attempt: int = 0
    rows: int = 0
    lanes: Mapping[int, LaneRows] = field(default_factory=dict)
    digest: int = 0
    row_digest: int = EMPTY_DIGEST
    shuffle_batches: int = 0
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    partition_counts: Mapping[str, int] = field(default_factory=dict)
    arrow_bytes: int = 0
    shuffle_bytes: int = 0
    error: DualWriteError | None = None


@dataclass(frozen=True)
class TaskReceipt:
    """The receipt of one task that sends, empty ones too.

    Attributes:
        task: the Spark partition id.
        encoded: the receipts of encode tasks that came to this task; its own where it read the rows itself.
        taken: how many shuffle batches it took of each (encode task, task attempt).
        digest: 128-bit digest over the records that were acknowledged.
        written: what was acknowledged, by partition.
        record_bytes: of the record batches in which that was sent.
        left_out: of each lane the superseded records that it was given and has not sent.
        left_out_digest: 128-bit digest over them.
        error: why the task refused or gave up; nothing it wrote may be used then.
    """

    task: int
    encoded: tuple[EncodeReceipt, ...] = ()
    taken: Mapping[tuple[int, int], int] = field(default_factory=dict)
    digest: int = 0
    written: Mapping[TopicPartition, PartitionReceipt] = field(default_factory=dict)
    record_bytes: int = 0
    left_out: Mapping[int, int] = field(default_factory=dict)
    left_out_digest: int = EMPTY_DIGEST
    error: DualWriteError | None = None

    def to_result(self) -> pa.RecordBatch:
        """The row that a task yields last."""
        return pa.RecordBatch.from_arrays([pa.array([pickle.dumps(self)], pa.binary())], schema=RESULT_SCHEMA)


@dataclass(frozen=True)
class TaskResults:
    """Everything that the tasks of one attempt returned.

    Attributes:
        receipts: one per task, in the order of their ids.
    """

    receipts: tuple[TaskReceipt, ...]

    @property
    def encoded(self) -> tuple[EncodeReceipt, ...]:
        """The receipts of all encode tasks, in the order of their ids."""
        return tuple(sorted(chain(*(receipt.encoded for receipt in self.receipts)), key=lambda one: one.encode_task))

    @property
    def staged(self) -> bool:
        """True when an encode task has staged rows."""
        return any(lane.staged_parts for receipt in self.encoded for lane in receipt.lanes.values())

    @property
    def rows(self) -> int:
        """Rows read from Spark."""
        return sum(receipt.rows for receipt in self.encoded)

    @property
    def records(self) -> int:
        """Records acknowledged to all tasks."""
        return sum(written.records for receipt in self.receipts for written in receipt.written.values())

    @property
    def lane_rows(self) -> Counter[int]:
        """Rows of each lane."""
        rows: Counter[int] = Counter()
        for receipt in self.encoded:
            rows.update({lane: found.rows for lane, found in receipt.lanes.items()})
        return rows

    @property
    def left_out(self) -> Counter[int]:
        """Of each lane the superseded records that no task has sent."""
        left_out: Counter[int] = Counter()
        for receipt in self.receipts:
            left_out.update(receipt.left_out)
        return left_out

    @property
    def record_bytes(self) -> int:
        """Of the record batches that all tasks have sent."""
        return sum(receipt.record_bytes for receipt in self.receipts)

    @property
    def digest(self) -> int:
        """Digest over all records, whatever task wrote them."""
        return combine_digests(*(receipt.digest for receipt in self.receipts))

    @property
    def row_digest(self) -> int:
        """Digest over all rows of lanes without records."""
        return combine_digests(*(receipt.row_digest for receipt in self.encoded))

    @property
    def arrow_bytes(self) -> int:
        """Of all Arrow batches that were read."""
        return sum(receipt.arrow_bytes for receipt in self.encoded)

    @property
    def shuffle_bytes(self) -> int:
        """Of all record batches that went through the shuffle."""
        return sum(receipt.shuffle_bytes for receipt in self.encoded)

    @property
    def topic_ids(self) -> dict[str, str]:
        """Ids of the topics that have records of the batch, of those that have an id."""
        written = {partition.topic for partition in self.offsets}
        known = {topic: topic_id for receipt in self.encoded for topic, topic_id in receipt.topic_ids.items()}
        return {topic: topic_id for topic, topic_id in sorted(known.items()) if topic_id and topic in written}

    @property
    def offsets(self) -> dict[TopicPartition, tuple[int, int]]:
        """First and last offset by partition."""
        return {
            partition: (written.first_offset, written.last_offset)
            for receipt in self.receipts
            for partition, written in receipt.written.items()
        }


def read_results(table: pa.Table, *, tasks_expected: int | None) -> TaskResults:
    """Add up what came back, and refuse it unless it is whole.

    Args:
        table: the collected rows.
        tasks_expected: how many tasks there were; None where Spark may have used fewer, which then have the ids
            from 0 on without a gap. No receipt at all is an empty batch in either case: Spark had no partition.

    Raises:
        BatchRetryError: a receipt is missing or double, two tasks wrote one partition, a task refused, or what was
            sent is not what one attempt of each encode task made.
        DualWriteError: the error that a task returned.
    """
    returned = (pickle.loads(payload.as_buffer()) for payload in table["receipt"])  # noqa: S301 - by our own tasks
    return add_up(returned, tasks_expected=tasks_expected)


def add_up(returned: Iterable[TaskReceipt], *, tasks_expected: int | None) -> TaskResults:
    """See `read_results`, which unpacks the receipts first."""
    receipts: dict[int, TaskReceipt] = {}
    for receipt in returned:
        if receipt.task in receipts:
            raise BatchRetryError(reason=f"task {receipt.task} returned two receipts")
        receipts[receipt.task] = receipt
    errors = [receipt.error for receipt in receipts.values() if receipt.error is not None]
    if errors:
        # A row that no retry can mend says more than a task that only met its consequences.
        raise min(errors, key=lambda error: not isinstance(error, DataError))
    expected = len(receipts) if tasks_expected is None else tasks_expected
    if receipts and sorted(receipts) != list(range(expected)):
        raise BatchRetryError(reason=f"receipts came from tasks {sorted(receipts)}, {expected} tasks were expected")
    results = TaskResults(tuple(receipts[task] for task in sorted(receipts)))
    _check_ownership(results.receipts)
    _check_encoded(results)
    return results


def _check_encoded(results: TaskResults) -> None:
    """All shuffle batches of one attempt of each encode task were sent, and nothing else."""
    encoded = results.encoded
    readers = [receipt.encode_task for receipt in encoded]
    if readers != list(range(len(readers))):
        raise BatchRetryError(reason=f"rows were read by encode tasks {readers}: each has one receipt")
    taken: Counter[tuple[int, int]] = Counter()
    for receipt in results.receipts:
        taken.update(receipt.taken)
    made = {
        (receipt.encode_task, receipt.task_attempt): receipt.shuffle_batches
        for receipt in encoded
        if receipt.shuffle_batches
    }
    if made != taken:
        raise BatchRetryError(
            reason=f"encode tasks made {made} shuffle batches by (encode task, task attempt), and {dict(taken)} were "
            "sent: an encode task ran again"
        )
    left_out = (receipt.left_out_digest for receipt in results.receipts)
    if combine_digests(*(receipt.digest for receipt in encoded)) != combine_digests(results.digest, *left_out):
        raise BatchRetryError(reason="the digest of the records that were sent is not that of the rows that were read")
    if differing := _differing(receipt.partition_counts for receipt in encoded):
        raise BatchRetryError(reason=f"topic {differing!r} got more partitions during the batch")
    if differing := _differing(receipt.topic_ids for receipt in encoded):
        raise BatchRetryError(reason=f"topic {differing!r} was deleted and made anew during the batch")


def _differing(told: Iterable[Mapping[str, object]]) -> str | None:
    """A topic of which two encode tasks were told different things."""
    seen = Counter(topic for topic, _ in {item for each in told for item in each.items()})
    return next((topic for topic, number in sorted(seen.items()) if number > 1), None)


def _check_ownership(receipts: Iterable[TaskReceipt]) -> None:
    owner: dict[TopicPartition, int] = {}
    for receipt in receipts:
        for partition in receipt.written:
            if owner.setdefault(partition, receipt.task) != receipt.task:
                raise BatchRetryError(
                    reason=f"tasks {owner[partition]} and {receipt.task} both wrote {partition}: sequences were mixed"
                )
