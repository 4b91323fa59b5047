"""The plan and the receipt of a task that looks for bad rows."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from spark_2pc_sink.sink.contract.receipts import RESULT_SCHEMA

if TYPE_CHECKING:
    from spark_2pc_sink.errors import DualWriteError, RecordRefusedError
    from spark_2pc_sink.sink.bad_rows.bad_row import RefusedRow
    from spark_2pc_sink.sink.contract.task_plan import TaskPlan
    from spark_2pc_sink.sink.stream.frames import LaneTotals


@dataclass(frozen=True)
class SiftPlan:
    """What a task looks for. Can be pickled.

    Attributes:
        tasks: how rows become records, and COPY bytes.
        records: try to make records of the rows; False where it is known that all of them become some.
        staged: send the rows that can be encoded to the driver, for the database to try.
        output_of_records: what refused rows say of the topic.
        output_of_rows: what they say of the table.
        most: give up beyond so many.
        refusal: of a broker, which has named records: rows that become these are refused for its reason.
    """

    tasks: TaskPlan
    records: bool
    staged: bool
    output_of_records: str
    output_of_rows: str
    most: int
    refusal: RecordRefusedError | None = None

    @property
    def transactional_id(self) -> str:
        """See `TaskPlan`."""
        return self.tasks.transactional_id


@dataclass(frozen=True)
class SiftReceipt:
    """What one attempt of one task has found.

    Attributes:
        task: the Spark partition id.
        task_attempt: tells the attempts of one task apart.
        rows: rows read from Spark.
        refused: those that do not become a record, or no COPY bytes; one more than `SiftPlan.most` means too many.
        sent: what it has sent of the others, by lane.
        error: why it gave up.
    """

    task: int
    task_attempt: int
    rows: int = 0
    refused: tuple[RefusedRow, ...] = ()
    sent: Mapping[int, LaneTotals] = field(default_factory=dict)
    error: DualWriteError | None = None

    def to_result(self) -> pa.RecordBatch:
        """The row that a task yields."""
        return pa.RecordBatch.from_arrays([pa.array([pickle.dumps(self)], pa.binary())], schema=RESULT_SCHEMA)


def read_sift_receipts(table: pa.Table) -> list[SiftReceipt]:
    """Unpack what came back, in the order of the tasks.

    Raises:
        DualWriteError: the error that a task returned.
    """
    returned = [pickle.loads(payload.as_buffer()) for payload in table["receipt"]]  # noqa: S301 - by our own tasks
    for receipt in returned:
        if receipt.error is not None:
            raise receipt.error
    return sorted(returned, key=lambda receipt: receipt.task)
