"""The table copy: writes the COPY bytes of an attempt into its tables while tasks still run."""

from __future__ import annotations

import tempfile
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import IO, TYPE_CHECKING, Final

import psycopg2

from jdbc_state.connections import driver_connection
from jdbc_state.watchdog import cut
from spark_2pc_sink.errors import BatchRetryError
from spark_2pc_sink.sink.report import NOTHING_WRITTEN, WrittenRows
from spark_2pc_sink.sink.stream.attempt_input import Ended
from spark_2pc_sink.sink.stream.background_task import BackgroundTask
from spark_2pc_sink.sink.stream.task_stream import FrameKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from sqlalchemy import Connection

    from spark_2pc_sink.sink.rows.table_writer import Rows, TableRows
    from spark_2pc_sink.sink.stream.attempt_input import AttemptInput, Released

#: Maximum duration of one COPY command, and maximum pause between its frames: the server limits the duration of
#: statements, and detects a row that it refuses at once.
_COPY_S_MAX: Final = 5.0
_PAUSE_S: Final = 0.02
_SPILL_READ_BYTES: Final = 1024 * 1024


@dataclass(frozen=True)
class CopyTarget:
    """The destination of one lane's rows.

    Attributes:
        lane: the lane's index.
        table: creates the writer for a connection.
        waits: True if its rows must follow all rows of the tables before it, to which it refers.
    """

    lane: int
    table: Callable[[Connection], TableRows]
    waits: bool = False


class TableCopy:
    """Copies the rows of one attempt in a thread. A context manager around the job, by its `task`.

    The thread opens the deciding transaction for the first rows, and leaves it open: the driver's thread writes the
    rest there (`finish`) and commits, after this thread has ended. While no rows arrive, queries keep it from exceeding
    the server's idle timeout.

    Args:
        source: source of the tasks' frames.
        open_decision: opens the deciding transaction on the first call, and returns its connection.
        targets: the tables, in the order in which they are written; none if the sink has no table.
        idle_s: seconds without rows after which the server is sent an empty query.
        early: open the transaction before the first row: in a small batch all rows come at once, and would wait.
    """

    def __init__(
        self,
        source: AttemptInput,
        open_decision: Callable[[], Connection],
        targets: Sequence[CopyTarget],
        *,
        idle_s: float,
        early: bool,
    ) -> None:
        self._source = source
        self._open_decision = open_decision
        self._targets = {target.lane: target for target in targets}
        self._idle_s = idle_s
        self._early = early
        self._connection: Connection | None = None
        self._tables: dict[int, TableRows] = {}
        self._copied: Counter[int] = Counter()
        self._spilled: dict[int, IO[bytes]] = {}
        self._next: Released | Ended | None = None
        self.task: BackgroundTask = BackgroundTask(self._work, "spark_2pc_sink copy", self._cut)

    def finish(self, connection: Connection, encoded: Mapping[int, int]) -> WrittenRows:
        """Write the rows that have waited, and return the tables' counts of all rows.

        Deletions come first, from the last table to the first; then tables are written in order, so that a row exists
        before another one that refers to it. Deferred constraints are checked after all of them.

        Args:
            connection: connection of the deciding transaction.
            encoded: number of rows of each lane that tasks have sent.

        Raises:
            BatchRetryError: the server has received a different number of rows.
            ConstraintError, DuplicateKeyError: see `TableRows`.
        """
        for lane in reversed(self._targets):
            self._table_rows(lane, connection).delete()
        written = NOTHING_WRITTEN
        for lane in self._targets:
            rows = self._table_rows(lane, connection)
            if lane in self._spilled:
                self._copied[lane] += rows.copy(self._unspilled(lane))
            if self._copied[lane] != encoded.get(lane, 0):
                raise BatchRetryError(
                    reason=f"tasks sent {encoded.get(lane, 0)} rows for output {lane}, and the database has taken "
                    f"{self._copied[lane]}"
                )
            rows.write()
        for lane in self._targets:
            written += self._table_rows(lane, connection).finish(encoded.get(lane, 0))
        return written

    def close(self) -> None:
        """Remove the files of rows that have waited."""
        for file in self._spilled.values():
            file.close()
        self._spilled.clear()

    def _work(self) -> None:
        with self._source.failing():
            for lane in self._targets if self._early else ():
                self._table_rows(lane, self._opened())
            while not isinstance(taken := self._taken(self._idle_s), Ended):
                if taken is None:
                    self._keep_alive()
                elif self._targets[taken.lane].waits:
                    self._spill(taken)
                else:
                    rows = self._table_rows(taken.lane, self._opened())
                    self._copied[taken.lane] += rows.copy(self._pieces(taken))

    def _taken(self, timeout_s: float) -> Released | Ended | None:
        following, self._next = self._next, None
        return following or self._source.take(FrameKind.ROWS, timeout_s)

    def _pieces(self, first: Released) -> Iterator[Rows]:
        """The rows of one COPY: consecutive frames of one lane."""
        end_s = monotonic() + _COPY_S_MAX
        taken: Released | Ended | None = first
        while taken is not None and not isinstance(taken, Ended) and taken.lane == first.lane:
            yield taken.payload
            self._source.done(taken)
            if monotonic() >= end_s:
                return
            taken = self._source.take(FrameKind.ROWS, _PAUSE_S)
        self._next = taken

    def _spill(self, taken: Released) -> None:
        try:
            if taken.lane not in self._spilled:
                # Deleted by the system when it is closed, even if the process is killed.
                self._spilled[taken.lane] = tempfile.TemporaryFile(prefix="spark_2pc_")  # noqa: SIM115
            self._spilled[taken.lane].write(taken.payload)
        except OSError as error:
            raise BatchRetryError(
                reason=f"rows that wait for another table cannot be put into {tempfile.gettempdir()}: "
                f"{error.strerror}; TMPDIR names another place to the driver"
            ) from error
        self._source.done(taken)

    def _unspilled(self, lane: int) -> Iterator[Rows]:
        file = self._spilled[lane]
        file.seek(0)
        # COPY accepts data split anywhere, so pieces need not be whole rows here.
        while piece := file.read(_SPILL_READ_BYTES):
            yield piece

    def _keep_alive(self) -> None:
        if self._connection is not None:
            with driver_connection(self._connection).cursor() as cursor:
                cursor.execute("SELECT 1")

    def _opened(self) -> Connection:
        if self._connection is None:
            self._connection = self._open_decision()
        return self._connection

    def _table_rows(self, lane: int, connection: Connection) -> TableRows:
        if lane not in self._tables:
            self._tables[lane] = self._targets[lane].table(connection)
        return self._tables[lane]

    def _cut(self) -> None:
        if self._connection is not None:
            # A connection that has just broken cannot be cut any more, and need not be.
            with suppress(psycopg2.Error, OSError):
                cut(driver_connection(self._connection))
