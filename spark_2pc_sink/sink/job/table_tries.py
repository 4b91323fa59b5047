"""The tries of a table: what tasks send for a search of bad rows is written while they still run."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

import psycopg2

from jdbc_state.connections import driver_connection
from jdbc_state.watchdog import cut
from spark_2pc_sink.sink.bad_rows.table_sift import SiftedPart, TableSift
from spark_2pc_sink.sink.stream.attempt_input import Ended
from spark_2pc_sink.sink.stream.frames import FrameKind
from spark_2pc_sink.sink.transfer.background_task import BackgroundTask

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection

    from spark_2pc_sink.sink.stream.attempt_input import AttemptInput
    from spark_2pc_sink.sink.table.table_writer import TableRows

#: Seconds without rows after which the server is sent a query, so that it does not end the transaction for being idle.
_IDLE_S: Final = 1.0


class TableTries:
    """Tries the rows of one lane in a thread, by its `task`.

    Args:
        source: where the tasks' frames come from.
        table: opens the table for the rows of one try.
        open_decision: gives the connection of a transaction that will be rolled back.
        output: what refused rows say of the table.
        most: look no further when more rows than these are refused.
    """

    def __init__(
        self,
        source: AttemptInput,
        table: Callable[[Connection], TableRows],
        open_decision: Callable[[], Connection],
        output: str,
        most: int,
    ) -> None:
        self._source = source
        self._table = table
        self._open_decision = open_decision
        self._output = output
        self._most = most
        self._connection: Connection | None = None
        self._sift: TableSift | None = None
        self.task: BackgroundTask = BackgroundTask(self._work, "spark_2pc_sink sift", self._cut)

    def finish(self) -> TableSift:
        """What was refused, once the thread has ended.

        Raises:
            DataError: see `TableSift.take`.
        """
        self.task.finish()
        return self._opened()[1]

    def _work(self) -> None:
        with self._source.failing():
            while not isinstance(taken := self._source.take(FrameKind.ROWS, _IDLE_S), Ended):
                connection, sift = self._opened()
                if taken is None:
                    with driver_connection(connection).cursor() as cursor:
                        cursor.execute("SELECT 1")
                    continue
                for part in SiftedPart.all_of(taken.payload):
                    if not sift.too_many:
                        sift.take(part)
                self._source.done(taken)

    def _opened(self) -> tuple[Connection, TableSift]:
        if self._connection is None or self._sift is None:
            self._connection = self._open_decision()
            self._sift = TableSift(self._connection, self._table, output=self._output, most=self._most)
        return self._connection, self._sift

    def _cut(self) -> None:
        if self._connection is not None:
            # A connection that has just broken by itself cannot be cut any more, and need not be.
            with suppress(psycopg2.Error, OSError):
                cut(driver_connection(self._connection))
