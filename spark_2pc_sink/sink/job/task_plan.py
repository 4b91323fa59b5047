"""What a batch's tasks get from the driver, their plan; and what they return to it through Spark, their receipts."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from spark_2pc_sink.errors import BatchRetryError, DataError, DualWriteError
from spark_2pc_sink.sink.stream.task_stream import LaneTotals, StreamAddress, TaskStream
from spark_2pc_sink.wire.record_batch import EMPTY_DIGEST, combine_digests

if TYPE_CHECKING:
    from spark_2pc_sink.kafka.record_encoder import EncodingOptions
    from spark_2pc_sink.serialisation.serialiser import Serialiser
    from spark_2pc_sink.sink.bad_rows.bad_row import RefusedRow
    from spark_2pc_sink.sink.records.record_columns import Topics
    from spark_2pc_sink.sink.records.record_json import JsonField
    from spark_2pc_sink.sink.rows.copy_encoder import CopyPlan


class TaskIdentity(NamedTuple):
    task: int
    task_attempt: int


@dataclass(frozen=True)
class LanePlan:
    """How tasks treat the rows of one lane. Can be pickled."""

    index: int = 0
    #: Column with the rows, as a struct or an array of structs; None if they are the rows passed by Spark.
    packed: str | None = None
    sends: bool = True
    #: Table of rows without records, which have a digest of their own; None if records identify them.
    digest_label: str | None = None
    #: Topic of the records; None if every row names its own.
    topic: str | None = None
    #: How rows become COPY bytes; None without a table, and for a resend, when the database has them.
    row_encoder: CopyPlan | None = None
    #: Columns whose JSON is the value; None if the value is a column.
    json: tuple[JsonField, ...] | None = None
    #: Column that is the key, or whose text is; None if the key has its own column.
    key_column: str | None = None
    #: Column `record_columns.SUPERSEDED` marks rows without a record.
    leaves_out: bool = False
    #: Columns refused if they are not valid text.
    guarded: tuple[str, ...] = ()
    serialisers: Mapping[str, Serialiser] = field(default_factory=dict)


@dataclass(frozen=True)
class TaskPlan:
    """Everything that a task needs to know. Can be pickled; contains no credentials and only the driver's address."""

    encoding: EncodingOptions
    lanes: tuple[LanePlan, ...]
    topics: Topics
    #: CreateTime of every record of the batch, milliseconds since 1970.
    timestamp_ms: int
    #: Where the task sends its output; None for the driver, and if only a digest is requested.
    stream: StreamAddress | None = None

    def open_stream(self, identity: TaskIdentity) -> TaskStream:
        assert self.stream is not None, "a task needs a stream for its output"
        return TaskStream(self.stream, *identity)


#: A task yields one row.
RESULT_DDL = "receipt binary"
RESULT_SCHEMA = pa.schema([("receipt", pa.binary())])


@dataclass(frozen=True)
class TaskReceipt:
    """The receipt of one task attempt, including one without rows."""

    task: int
    task_attempt: int = 0
    #: Read from Spark.
    rows: int = 0
    lane_rows: Mapping[int, int] = field(default_factory=dict)
    #: Rows of each lane without a record, because others of their upsert key supersede them.
    left_out: Mapping[int, int] = field(default_factory=dict)
    #: What was encoded for each lane, and sent to the driver unless only a digest was requested.
    sent: Mapping[int, LaneTotals] = field(default_factory=dict)
    #: 128-bit digest over the rows of lanes without records.
    row_digest: int = EMPTY_DIGEST
    arrow_bytes: int = 0
    #: Bad rows found by a search for them.
    refused: tuple[RefusedRow, ...] = ()
    #: Why the task gave up; its output must not be used then.
    error: DualWriteError | None = None

    def to_result(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([pa.array([pickle.dumps(self)], pa.binary())], schema=RESULT_SCHEMA)


@dataclass(frozen=True)
class TaskResults:
    receipts: tuple[TaskReceipt, ...]

    @classmethod
    def read(cls, table: pa.Table) -> TaskResults:
        """Read and add up the receipts returned through Spark."""
        return cls.of(pickle.loads(payload.as_buffer()) for payload in table["receipt"])  # noqa: S301 - by our own tasks

    @classmethod
    def of(cls, returned: Iterable[TaskReceipt]) -> TaskResults:
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
            raise BatchRetryError(reason=f"received receipts of tasks {sorted(receipts)}; some are missing")
        return cls(tuple(receipts[task] for task in sorted(receipts)))

    @property
    def rows(self) -> int:
        return sum(receipt.rows for receipt in self.receipts)

    @property
    def lane_rows(self) -> Counter[int]:
        return _summed(receipt.lane_rows for receipt in self.receipts)

    @property
    def left_out(self) -> Counter[int]:
        return _summed(receipt.left_out for receipt in self.receipts)

    @property
    def copy_rows(self) -> Counter[int]:
        """Rows that were encoded for each lane's table."""
        return _summed({lane: sent.rows for lane, sent in receipt.sent.items()} for receipt in self.receipts)

    @property
    def digest(self) -> int:
        """128-bit digest over the records."""
        return combine_digests(*(sent.digest for receipt in self.receipts for sent in receipt.sent.values()))

    @property
    def row_digest(self) -> int:
        return combine_digests(*(receipt.row_digest for receipt in self.receipts))

    @property
    def arrow_bytes(self) -> int:
        return sum(receipt.arrow_bytes for receipt in self.receipts)

    def check_arrived(self, finished: Mapping[int, tuple[int, Mapping[int, LaneTotals]]]) -> None:
        said = {receipt.task: (receipt.task_attempt, dict(receipt.sent)) for receipt in self.receipts}
        for task in sorted(said.keys() | finished.keys()):
            if said.get(task) != finished.get(task):
                raise BatchRetryError(
                    reason=f"task {task} reports having sent {said.get(task)} (task attempt, totals by lane), and "
                    f"{finished.get(task)} arrived: it ran again, or its stream lost data"
                )


def _summed(counts: Iterable[Mapping[int, int]]) -> Counter[int]:
    return sum(map(Counter, counts), Counter[int]())
