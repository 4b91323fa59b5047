"""The copy thread: writes the COPY bytes of an attempt into the table while tasks still run."""

from __future__ import annotations

import threading
from contextlib import suppress
from contextvars import copy_context
from typing import TYPE_CHECKING, Final

import psycopg2

from jdbc_state.connections import driver_connection
from jdbc_state.watchdog import cut
from spark_2pc_sink.errors import BatchRetryError
from spark_2pc_sink.sink.transfer.copy_channel import TransferEnd

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from sqlalchemy import Connection

    from spark_2pc_sink.sink.contract.receipts import EncodeReceipt
    from spark_2pc_sink.sink.contract.row_transfer import StagedParts, Transfer
    from spark_2pc_sink.sink.table.table_writer import TableRows
    from spark_2pc_sink.sink.transfer.copy_channel import CopyChannel
    from spark_2pc_sink.sink.written_rows import WrittenRows

#: How long a job that has failed waits for a statement under way, before the connection is cut off; making one is
#: bounded by itself.
_GRACE_S: Final = 1.0


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
        table: what writes through a connection.
        staged: what shows to it of the rows that tasks have staged.
        look_s: seconds without rows after which they are looked for, which is also a sign of life to the server.
        early: open the transaction before the first row: in a small batch all rows come at once, and would wait for it.
    """

    def __init__(
        self,
        channel: CopyChannel,
        attempt: tuple[str, int, int],
        *,
        open_decision: Callable[[], Connection],
        table: Callable[[Connection], TableRows],
        staged: Callable[[Connection], StagedParts],
        look_s: float,
        early: bool,
    ) -> None:
        self._channel = channel
        self._attempt = attempt
        self._open_decision = open_decision
        self._open_table = table
        self._open_staged = staged
        self._look_s = look_s
        self._early = early
        # Its log is that of the sink which starts it.
        context = copy_context()
        self._thread = threading.Thread(
            target=context.run, args=(self._copy_arriving,), name="spark_2pc_sink copy", daemon=True
        )
        self._connection: Connection | None = None
        self._table: TableRows | None = None
        self._staged: StagedParts | None = None
        self._error: Exception | None = None
        self._received: dict[int, int] = {}
        self._given_up = False

    def __enter__(self) -> CopyThread:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait until all that has arrived is written; after an error of the job, only until nobody writes any more.

        Raises:
            Exception: what writing raised.
        """
        self._channel.end(self._attempt)
        if kind is None:
            self._thread.join()
            if self._error is not None:
                raise self._error
            return
        self._given_up = True
        self._thread.join(_GRACE_S)
        while self._thread.is_alive():
            if self._connection is not None:
                # A connection that has just broken by itself cannot be cut any more, and need not be.
                with suppress(psycopg2.Error, OSError):
                    cut(driver_connection(self._connection))
            self._thread.join(_GRACE_S)

    def finish(self, connection: Connection, encoded: Sequence[EncodeReceipt]) -> WrittenRows:
        """Write what is staged still, and say what the table has made of the rows.

        Args:
            connection: of the deciding transaction.
            encoded: the receipts of all encode tasks.

        Raises:
            BatchRetryError: what was written is not what they say.
            ConstraintError, DuplicateKeyError: see `TableRows.finish`.
        """
        staged = self._staged_parts(connection)
        if any(receipt.staged_parts for receipt in encoded):
            self._write_staged(connection)
        sent = {
            receipt.encode_task: (receipt.task_attempt, receipt.staged_parts)
            for receipt in encoded
            if receipt.copy_rows
        }
        written = {task: (task_attempt, 0) for task, task_attempt in self._received.items()} | staged.taken
        if sent != written:
            raise BatchRetryError(
                reason=f"encode tasks sent rows as {sent} says, (task attempt, staged parts) of each, and {written} "
                "were written"
            )
        table = self._table_rows(connection)
        table.delete()
        table.write()
        return table.finish(sum(receipt.copy_rows for receipt in encoded))

    def _copy_arriving(self) -> None:
        try:
            if self._early:
                self._table_rows(self._opened())
            while not self._given_up:
                arrived = self._channel.take(self._attempt, self._look_s)
                if isinstance(arrived, TransferEnd):
                    return
                if arrived is not None:
                    self._write(arrived)
                else:
                    self._write_staged(self._opened())
        except Exception as error:  # noqa: BLE001 - raised again in the thread that waits for this one
            self._error = error

    def _write(self, transfer: Transfer) -> None:
        if transfer.encode_task in self._received:
            raise BatchRetryError(
                reason=f"encode task {transfer.encode_task} ran again, and its rows were on their way already"
            )
        self._received[transfer.encode_task] = transfer.task_attempt
        self._table_rows(self._opened()).copy(transfer.stream)

    def _write_staged(self, connection: Connection) -> None:
        for stream in self._staged_parts(connection).arrived():
            self._table_rows(connection).copy(stream)
            if self._given_up:
                return

    def _opened(self) -> Connection:
        if self._connection is None:
            self._connection = self._open_decision()
        return self._connection

    def _table_rows(self, connection: Connection) -> TableRows:
        if self._table is None:
            self._table = self._open_table(connection)
        return self._table

    def _staged_parts(self, connection: Connection) -> StagedParts:
        if self._staged is None:
            self._staged = self._open_staged(connection)
        return self._staged
