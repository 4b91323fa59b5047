"""The tries of a table: what tasks stage for a search is written while they still run.

A thread tries each part that has arrived (`TableSift`); what arrives last is tried when the job is over, and compared
with what its tasks say.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from spark_2pc_sink.errors import BatchRetryError, LocalProtocolError
from spark_2pc_sink.sink.bad_rows.table_sift import SiftedPart, TableSift
from spark_2pc_sink.sink.transfer.beside_job import BesideJob
from spark_2pc_sink.sink.transfer.looks import LookPace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType

    from sqlalchemy import Connection

    from spark_2pc_sink.sink.contract.row_transfer import StagedParts
    from spark_2pc_sink.sink.contract.sift_plan import SiftReceipt
    from spark_2pc_sink.sink.contract.task_plan import TaskPlan
    from spark_2pc_sink.sink.table.table_writer import TableRows


class TableTries:
    """Tries the rows of one lane. A context manager round the job that stages them.

    Each look for parts is a statement, so that the server does not end the transaction for being idle.

    Args:
        table: opens the table for the rows of one try.
        plan: of the tasks, for one lane.
        open_decision: gives the connection of a transaction that will be rolled back.
        output: what refused rows say of the table.
        most: look no further when more rows than these are refused.
    """

    def __init__(
        self,
        table: Callable[[Connection], TableRows],
        plan: TaskPlan,
        open_decision: Callable[[], Connection],
        output: str,
        most: int,
    ) -> None:
        [lane] = plan.lanes
        if lane.row_encoder is None:
            raise LocalProtocolError(operation="sift", state="no table", rule="only rows for a table are staged")
        self._staging = lane.row_encoder.staging
        self._table = table
        self._open_decision = open_decision
        self._output = output
        self._most = most
        self._opened: tuple[Connection, TableSift, StagedParts] | None = None
        ended = threading.Event()
        self._ended = ended
        self._beside = BesideJob(
            self._take_arriving,
            end=ended.set,
            connection=lambda: None if self._opened is None else self._opened[0],
            name="spark_2pc_sink sift",
        )

    def __enter__(self) -> TableTries:
        self._beside.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """See `BesideJob.__exit__`."""
        self._beside.__exit__(kind, error, trace)

    def finish(self, receipts: Iterable[SiftReceipt]) -> TableSift:
        """Try what is left, now that the job is over.

        Args:
            receipts: of all its tasks.

        Raises:
            BatchRetryError: what was tried is not what they say.
            DataError: see `TableSift.take`.
        """
        self._try_arrived()
        table, staged = self._open()
        if table.too_many:
            return table
        made = {
            receipt.task: (receipt.task_attempt, receipt.staged_parts) for receipt in receipts if receipt.staged_parts
        }
        if made != staged.taken:
            raise BatchRetryError(
                reason=f"tasks staged rows as {made} says, (task attempt, parts) of each, and {staged.taken} were read"
            )
        return table

    def _take_arriving(self) -> None:
        pace = LookPace(self._staging.look_s)
        while not self._ended.wait(pace.pause_s):
            pace.look(self._try_arrived)

    def _try_arrived(self) -> bool:
        """True when there was something."""
        table, staged = self._open()
        found = False
        for stream in () if table.too_many else staged.arrived():
            found = True
            table.take(SiftedPart.of(stream))
            if table.too_many or self._beside.given_up:
                break
        return found

    def _open(self) -> tuple[TableSift, StagedParts]:
        if self._opened is None:
            connection = self._open_decision()
            table = TableSift(connection, self._table, output=self._output, most=self._most)
            self._opened = connection, table, self._staging.staged(connection)
        _, table, staged = self._opened
        return table, staged
