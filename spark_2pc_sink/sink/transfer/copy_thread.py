"""The copy thread: writes the COPY bytes of an attempt into the tables while tasks still run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from spark_2pc_sink.errors import BatchRetryError, DataError
from spark_2pc_sink.sink.transfer.beside_job import BesideJob
from spark_2pc_sink.sink.transfer.copy_channel import TransferEnd
from spark_2pc_sink.sink.transfer.looks import LookPace
from spark_2pc_sink.sink.written_rows import NOTHING_WRITTEN, WrittenRows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from sqlalchemy import Connection

    from spark_2pc_sink.sink.contract.receipts import EncodeReceipt, LaneRows
    from spark_2pc_sink.sink.contract.row_transfer import StagedParts, Transfer
    from spark_2pc_sink.sink.table.table_writer import TableRows
    from spark_2pc_sink.sink.transfer.copy_channel import CopyChannel


@dataclass(frozen=True)
class CopyTarget:
    """Where the rows of one lane go.

    Attributes:
        lane: its index.
        table: what writes through a connection.
        staged: what shows to it of the rows that tasks have staged.
        waits: True where no row may come before all those of the tables before it, to which it refers.
    """

    lane: int
    table: Callable[[Connection], TableRows]
    staged: Callable[[Connection], StagedParts]
    waits: bool = False


class CopyThread:
    """Writes COPY bytes as they arrive. A context manager round the job; nothing is left running behind it.

    This thread opens the transaction that will decide, and leaves it open: the driver's thread writes the rest of the
    rows there (`finish`) and commits it, after this thread has ended. It is opened for the first rows, or where none
    arrive for a while: tasks that have more than fit into memory stage them. So it may be open for most of the job. It
    is kept from being idle for longer than the server allows, a limit made for a driver that has gone.

    Args:
        channel: where transfers arrive.
        attempt: whose transfers.
        open_decision: opens the transaction that will decide, at its first call, and gives its connection.
        targets: the tables, in the order in which they are written; none where the sink has no table.
        look_s, idle_s: seconds without rows after which they are looked for, see `LookPace`.
        early: open the transaction before the first row: in a small batch all rows come at once, and would wait for it.
        refused: told at once that the database has refused a row, while tasks still run.
    """

    def __init__(
        self,
        channel: CopyChannel,
        attempt: tuple[str, int, int],
        *,
        open_decision: Callable[[], Connection],
        targets: Sequence[CopyTarget],
        look_s: float,
        idle_s: float,
        early: bool,
        refused: Callable[[], None],
    ) -> None:
        self._channel = channel
        self._attempt = attempt
        self._open_decision = open_decision
        self._targets = {target.lane: target for target in targets}
        self._pace = LookPace(look_s, idle_s)
        self._early = early
        self._refused = refused
        self._connection: Connection | None = None
        self._beside = BesideJob(
            self._work,
            end=lambda: channel.end(attempt),
            connection=lambda: self._connection,
            name="spark_2pc_sink copy",
        )
        self._tables: dict[int, TableRows] = {}
        self._staged: dict[int, StagedParts] = {}
        self._received: dict[tuple[int, int], int] = {}
        self._held: dict[int, list[Transfer]] = {}

    def __enter__(self) -> CopyThread:
        self._beside.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait until all that has arrived is written; after an error of the job, only until nobody writes any more.

        Raises:
            Exception: what writing raised.
        """
        self._beside.__exit__(kind, error, trace)

    def finish(self, connection: Connection, encoded: Sequence[EncodeReceipt]) -> WrittenRows:
        """Write what is staged still, and say what the tables have made of all rows.

        What deletes rows comes first, from the last table to the first; then tables are written in their order, so that
        a row is there before another one that refers to it. Deferred constraints are checked behind all of them.

        Args:
            connection: of the deciding transaction.
            encoded: the receipts of all encode tasks.

        Raises:
            BatchRetryError: what was written is not what they say.
            ConstraintError, DuplicateKeyError: see `TableRows`.
        """
        for target in self._targets.values():
            if not target.waits:
                self._write_rest(target, connection, encoded)
        for lane in reversed(self._targets):
            self._table_rows(lane, connection).delete()
        for lane, target in self._targets.items():
            if target.waits:
                self._write_rest(target, connection, encoded)
            self._table_rows(lane, connection).write()
        written = NOTHING_WRITTEN
        for lane in self._targets:
            given = sum(rows.copy_rows for rows in _of_lane(encoded, lane))
            written += self._table_rows(lane, connection).finish(given)
        return written

    def _write_rest(self, target: CopyTarget, connection: Connection, encoded: Sequence[EncodeReceipt]) -> None:
        """Write all that has not been written of a lane, and see that it is what was sent."""
        lane = target.lane
        for transfer in self._held.pop(lane, ()):
            self._table_rows(lane, connection).copy(transfer.stream)
        staged = self._staged_parts(lane, connection)
        if any(rows.staged_parts for rows in _of_lane(encoded, lane)):
            self._write_staged(lane, connection)
        sent = {
            receipt.encode_task: (receipt.task_attempt, receipt.lanes[lane].staged_parts)
            for receipt in encoded
            if lane in receipt.lanes and receipt.lanes[lane].copy_rows
        }
        received = {task: (attempt, 0) for (of_lane, task), attempt in self._received.items() if of_lane == lane}
        written = received | staged.taken
        if sent != written:
            raise BatchRetryError(
                reason=f"encode tasks sent rows as {sent} says, (task attempt, staged parts) of each, and {written} "
                "were written"
            )

    def _work(self) -> None:
        try:
            self._copy_arriving()
        except DataError:
            self._refused()
            raise

    def _copy_arriving(self) -> None:
        for lane in self._targets if self._early else ():
            self._table_rows(lane, self._opened())
        while not self._beside.given_up:
            arrived = self._channel.take(self._attempt, self._pace.pause_s)
            if isinstance(arrived, TransferEnd):
                return
            if arrived is not None:
                self._write(arrived)
            elif self._targets:
                self._pace.look(partial(self._look, self._opened()))

    def _look(self, connection: Connection) -> bool:
        """Write what is staged of those that need not wait; a look in any case, which is a sign of life."""
        found = [self._write_staged(lane, connection) for lane, target in self._targets.items() if not target.waits]
        return any(found)

    def _write(self, transfer: Transfer) -> None:
        key = (transfer.lane, transfer.encode_task)
        if key in self._received:
            raise BatchRetryError(
                reason=f"encode task {transfer.encode_task} ran again, and its rows were on their way already"
            )
        self._received[key] = transfer.task_attempt
        if self._targets[transfer.lane].waits:
            self._held.setdefault(transfer.lane, []).append(transfer)
        else:
            self._table_rows(transfer.lane, self._opened()).copy(transfer.stream)

    def _write_staged(self, lane: int, connection: Connection) -> bool:
        """True when there was something."""
        found = False
        for stream in self._staged_parts(lane, connection).arrived():
            found = True
            self._table_rows(lane, connection).copy(stream)
            if self._beside.given_up:
                break
        return found

    def _opened(self) -> Connection:
        if self._connection is None:
            self._connection = self._open_decision()
        return self._connection

    def _table_rows(self, lane: int, connection: Connection) -> TableRows:
        if lane not in self._tables:
            self._tables[lane] = self._targets[lane].table(connection)
        return self._tables[lane]

    def _staged_parts(self, lane: int, connection: Connection) -> StagedParts:
        if lane not in self._staged:
            self._staged[lane] = self._targets[lane].staged(connection)
        return self._staged[lane]


def _of_lane(encoded: Sequence[EncodeReceipt], lane: int) -> list[LaneRows]:
    return [receipt.lanes[lane] for receipt in encoded if lane in receipt.lanes]
