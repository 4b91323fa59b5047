"""The sift of a batch: the job that finds its bad rows, after an attempt has failed with one of them.

The error of the attempt says where to look. What a task refused, tasks find. What the database refused is found by it:
tasks stage the rows once more, and `TableSift` tries them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from spark_2pc_sink.errors import BatchRetryError, ConstraintError, RecordTooLargeError, UnstorableValueError
from spark_2pc_sink.sink.bad_rows.table_sift import TableSift
from spark_2pc_sink.sink.contract.receipts import RESULT_DDL
from spark_2pc_sink.sink.contract.sift_plan import SiftPlan, read_sift_receipts
from spark_2pc_sink.sink.contract.sifted_parts import read_part
from spark_2pc_sink.sink.tasks.sift_task import run_sift_task
from spark_2pc_sink.sink.tasks.task_functions import task_function

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame
    from sqlalchemy import Connection

    from spark_2pc_sink.errors import DataError
    from spark_2pc_sink.sink.bad_rows.bad_row import RefusedRow
    from spark_2pc_sink.sink.contract.row_transfer import Staging
    from spark_2pc_sink.sink.contract.sift_plan import SiftReceipt
    from spark_2pc_sink.sink.contract.task_plan import TaskPlan
    from spark_2pc_sink.sink.table.table_writer import TableRows
    from spark_2pc_sink.sink.tasks.task_functions import TaskFunction

#: Errors of one row that tasks find.
_OF_TASKS = (RecordTooLargeError, UnstorableValueError)


@dataclass(frozen=True)
class SiftedLane:
    """The rows of one topic and one table, to be sifted.

    Attributes:
        rows: what tasks get, with the columns of `row_identity`.
        plan: how they make records and COPY bytes.
        map_in_arrow: runs a function of tasks over rows.
        table: opens the table.
        topic_name: what refused rows say of the topic.
        table_name: what they say of the table.
    """

    rows: DataFrame
    plan: TaskPlan
    map_in_arrow: Callable[[DataFrame, TaskFunction, str], DataFrame]
    table: Callable[[Connection], TableRows]
    topic_name: str
    table_name: str

    def sift(self, error: DataError, open_decision: Callable[[], Connection], *, most: int) -> SiftedRows:
        """Find the rows for which an attempt failed.

        Args:
            error: what it failed with.
            open_decision: opens a transaction that will be rolled back.
            most: look no further when more rows than these are refused.

        Raises:
            DataError: it is about no single row.
            BatchRetryError: a task ran again, or what it staged is gone.
        """
        in_database = isinstance(error, ConstraintError)
        plan = SiftPlan(
            tasks=self.plan,
            # An attempt that PostgreSQL refused has made records of all rows.
            records=not in_database,
            staged=in_database,
            output_of_records=self.topic_name,
            output_of_rows=self.table_name,
            most=most,
        )
        found = self.map_in_arrow(self.rows, task_function(run_sift_task, plan), RESULT_DDL).toArrow()
        receipts = read_sift_receipts(found)
        sifted = SiftedRows(
            rows=sum(receipt.rows for receipt in receipts),
            refused=tuple(row for receipt in receipts for row in receipt.refused),
        )
        if not in_database or self.plan.row_encoder is None or len(sifted.refused) > most:
            return sifted
        table = TableSift(open_decision(), self.table, output=self.table_name, most=most - len(sifted.refused))
        _try_parts(table, self.plan.row_encoder.staging, open_decision(), receipts)
        return replace(sifted, refused=(*sifted.refused, *table.refused))


@dataclass(frozen=True)
class SiftedRows:
    """What a sift has found.

    Attributes:
        rows: how many were read.
        refused: those that were refused, perhaps several times.
    """

    rows: int
    refused: tuple[RefusedRow, ...]


def is_about_rows(error: Exception) -> bool:
    """True for an error of single rows, which the batch can do without.

    Not of a key that an upsert has twice: none of those rows is the bad one.
    """
    return isinstance(error, (*_OF_TASKS, ConstraintError))


def _try_parts(table: TableSift, staging: Staging, connection: Connection, receipts: list[SiftReceipt]) -> None:
    """Try what tasks have staged, all of it."""
    staged = staging.staged(connection)
    for stream in staged.arrived():
        table.take(read_part(stream))
        if table.too_many:
            return
    made = {receipt.task: (receipt.task_attempt, receipt.staged_parts) for receipt in receipts if receipt.staged_parts}
    if made != staged.taken:
        raise BatchRetryError(
            reason=f"tasks staged rows as {made} says, (task attempt, parts) of each, and {staged.taken} were read"
        )
    table.finish()
