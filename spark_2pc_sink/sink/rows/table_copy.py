"""The rows of an attempt, from the tasks' frames into the tables, inside the deciding transaction.

The caller begins and commits the transaction. Rows arrive as COPY bytes encoded by tasks (`CopyEncoder`), and a thread
copies them while tasks still run (`TableCopy`). No session state is used, so this works through PgBouncer in
transaction mode.
"""

from __future__ import annotations

import re
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import IO, TYPE_CHECKING, Any, Final

import psycopg2
import psycopg2.errors
import psycopg2.extensions
from sqlalchemy import Connection

from jdbc_state.sqlstate import AGAINST_POLICY, INSUFFICIENT_PRIVILEGE, is_retriable
from jdbc_state.watchdog import cut
from spark_2pc_sink.errors import BatchRetryError, ConstraintError
from spark_2pc_sink.options.names import TableName, quote_identifier
from spark_2pc_sink.options.settings import refused
from spark_2pc_sink.sink.report import NOTHING_WRITTEN, WrittenRows
from spark_2pc_sink.sink.rows.catalog import (
    TableTree,
    changed_column,
    identifiers,
    read_tree,
    refuse_unfit,
    utf8_connection,
)
from spark_2pc_sink.sink.rows.copy_encoder import COPY_TRAILER
from spark_2pc_sink.sink.stream.attempt_input import AttemptInput, BackgroundTask, Ended, Released
from spark_2pc_sink.sink.stream.task_stream import FrameKind

if TYPE_CHECKING:
    from spark_2pc_sink.sink.rows.column_plan import ColumnPlan

#: Signature, flags 0, header extension of 0 bytes.
HEADER = b"PGCOPY\n\xff\r\n\x00" + bytes(8)

#: Bytes passed to psycopg2 at a time: bounds the copies made by it and libpq. Measured with 93 MB, sizes from 8 KiB to
#: 8 MiB are equally fast, so a size was chosen that has no noticeable memory cost.
READ_BYTES = 256 * 1024

#: COPY bytes of whole rows, in an object with the buffer protocol.
CopyBytes = Any


class CopyReader:
    """The file read by ``copy_expert``: all rows after one header, and then the trailer."""

    def __init__(self, pieces: Iterable[CopyBytes]) -> None:
        self._slices = _slices(pieces)
        #: Raised by `read`: psycopg2 passes on only its text, as a canceled query.
        self.failure: Exception | None = None

    def read(self, size: int = READ_BYTES) -> bytes:
        """The next bytes, at most `READ_BYTES` of them; empty at the end."""
        del size  # psycopg2's preferred one; it accepts any
        try:
            return next(self._slices, b"")
        except Exception as error:
            self.failure = error
            raise


def copy_statement(table: TableName, columns: Iterable[str]) -> str:
    return f"COPY {table} ({identifiers(columns)}) FROM STDIN (FORMAT binary)"


def copy_rows(cursor: psycopg2.extensions.cursor, statement: str, pieces: Iterable[CopyBytes]) -> int:
    """Copy rows into a table by `copy_statement`, and return their number; raises what ``pieces`` raises."""
    reader = CopyReader(pieces)
    source: Any = reader  # COPY FROM calls only read() of a file's methods
    try:
        cursor.copy_expert(statement, source, READ_BYTES)
    except psycopg2.Error:
        if reader.failure is not None:
            raise reader.failure from None
        raise
    return cursor.rowcount


def _slices(pieces: Iterable[CopyBytes]) -> Iterator[bytes]:
    yield HEADER
    for piece in pieces:
        rows = memoryview(piece).cast("B")
        for start in range(0, len(rows), READ_BYTES):
            yield bytes(rows[start : start + READ_BYTES])
    yield COPY_TRAILER


# SQLSTATE classes of errors in a row, or in a trigger that it fires. Deterministic: the same rows would be refused
# again. 22: data exception (invalid JSON, a character missing in the database's encoding). 23: integrity constraint
# violation. 27: triggered data change violation. 38, 39: a function in another language. 44: WITH CHECK OPTION.
# P0: PL/pgSQL, such as RAISE without an explicit code.
_ROW_CLASSES: Final = frozenset({"22", "23", "27", "38", "39", "44", "P0"})
# All classes of PostgreSQL (its manual, appendix A). Any other was invented by the function that raises it.
_SERVER_CLASS: Final = re.compile(
    "0[0-3]|0[89ABFLPZ]|10|2[0-8]|2[BDF]|34|38|39|3[BDF]|40|42|44|5[3-578]|72|F0|HV|P0|XX", re.ASCII
)
# The server's functions that report an error raised by a trigger, in PL/pgSQL and PL/Python: with any code.
_RAISED_BY_TRIGGER: Final = frozenset({"exec_stmt_raise", "PLy_elog_impl"})
# A row beyond a limit: 54000 (too long for an index entry, a page or a tsvector), 54001 (JSON nested too deep), 42622
# (name too long).
_TOO_MUCH: Final = frozenset({"54000", "54001", "42622"})
# … and functions that report an exhausted limit of a transaction or the whole server, with the same code.
_NOT_OF_ROW: Final = frozenset({"GetNewTransactionId", "GetNewMultiXactId", "CommandCounterIncrement"})

# Errors of the table or the role, for every row: 0A000 (row-level security was enabled, which COPY does not support; or
# a column is xml, and the server was built without libxml), 55000 (no replica identity in a publication of updates).
_TABLE_CODES: Final = {
    INSUFFICIENT_PRIVILEGE: "have its owner grant the missing privilege. docs/permissions.md lists those that the "
    "sink needs; a trigger, or a table that it writes to, may need more",
    "0A000": "change what the message names: the table, or the type of a column (xml becomes text); or the sink's mode",
    "55000": "change the table as the message says",
}
# Errors of input functions about a text: 42 (an invalid tsvector or path, a missing regclass), 3F (no such schema),
# XX000 (an invalid hstore, before PostgreSQL 16).
_NO_VALUE: Final = re.compile("42...|3F000|XX000", re.ASCII)


@contextmanager
def refused_rows(table: TableName, *, casts: bool = False) -> Iterator[None]:
    """Turn PostgreSQL's refusal of a row, or of the role, into a ConstraintError or ConfigurationError with a sentence.

    Deadlocks, serialization failures, timeouts and lost connections are not about the rows: they are propagated
    unchanged, and the owner of the transaction decides how to proceed. A trigger that raises one of their codes
    requests the same. ``casts``: the statement converts texts to values.
    """
    try:
        yield
    except psycopg2.Error as error:
        code = error.pgcode or ""
        said = error.diag
        # PL/pgSQL or a similar language, which the error context names in every server language.
        in_function = "PL/" in (said.context or "")
        no_value = casts and not in_function and code != INSUFFICIENT_PRIVILEGE and _NO_VALUE.fullmatch(code)
        if no_value or _refuses_row(code, said.source_function or ""):
            named = {"constraint": said.constraint_name or "", "column": said.column_name or ""}
            raise ConstraintError(table=str(table), **named, sqlstate=code, detail=_detail(error)) from error
        remedy = _TABLE_CODES.get(code)
        # 42: a statement that PostgreSQL cannot run (a missing column or table, syntax).
        if remedy is None and code.startswith("42") and in_function:
            remedy = "correct the function that the message names, which a trigger runs, or drop the trigger"
        if remedy is not None:
            rule = f"PostgreSQL refused all rows: {_detail(error)} [{code}]"
            raise refused("table", str(table), rule, remedy) from error
        raise


def _refuses_row(code: str, source_function: str) -> bool:
    """True for an error that would recur with the same rows; ``code`` is '' for a connection that broke.

    The name of a server function does not depend on the language of messages.
    """
    if not code or is_retriable(code):
        return False
    if code in _TOO_MUCH:
        return source_function not in _NOT_OF_ROW
    if code[:2] in _ROW_CLASSES or not _SERVER_CLASS.fullmatch(code[:2]):
        return True
    return source_function in _RAISED_BY_TRIGGER or source_function == AGAINST_POLICY


def _detail(error: psycopg2.Error) -> str:
    """PostgreSQL's message in one line: text, detail with the key, hint, and the row of the COPY."""
    said = error.diag
    parts = (said.message_primary, said.message_detail, said.message_hint, said.context)
    return "; ".join(" ".join(part.split()) for part in parts if part)


class TableRows(ABC):
    """The rows of a batch to be written in the deciding transaction; creating it locks the target as COPY does.

    They are copied into the target, or into a table that ``collects`` them. A BatchRetryError if the table was altered
    since it was planned; a table that may no longer get rows is refused as by `refuse_unfit`.
    """

    def __init__(self, connection: Connection, plan: ColumnPlan, collects: TableName | None = None) -> None:
        self._cursor = utf8_connection(connection).cursor()
        self._plan = plan
        self._into = collects or plan.table
        # Staging table for rows some of whose columns are copied as text.
        self._texts = TableName(f"_2pc_texts_{plan.lane}", "pg_temp")
        self._copy_statement = copy_statement(self._texts if plan.casts else self._into, plan.copied_names)
        #: Number of rows that the server has received.
        self.copied: int = 0
        with refused_rows(plan.table):
            try:
                self._tree = self._read_tree(lock=True)
            except (psycopg2.errors.UndefinedTable, psycopg2.errors.InvalidSchemaName) as error:
                # Not planned again: create_table would create another one, with half of the rows in the old one.
                rule = "the table no longer exists: it was renamed, dropped, or moved to another schema"
                remedy = "restore it, or give its new name; then start the job again"
                raise refused("table", str(plan.table), rule, remedy) from error
            changed = changed_column(self._cursor, plan.table, (column.target for column in plan.columns))
            if changed is not None:
                raise altered_error(f"column {changed}")
            if plan.casts:
                columns = ", ".join(f"{quote_identifier(each.name)} {each.copied_type}" for each in plan.copied)
                self._cursor.execute(f"CREATE TEMPORARY TABLE {self._texts} ({columns}) ON COMMIT DROP")
        # If the target is partitioned, rows are in its partitions; tables that inherit from a plain one are others.
        self._target = f"{'' if self._tree.partitioned else 'ONLY '}{plan.table}"

    def copy(self, pieces: Iterable[CopyBytes]) -> None:
        """Copy rows; raises what ``pieces`` raises, and like the other methods a ConstraintError for a refused row."""
        plan = self._plan
        with refused_rows(plan.table, casts=plan.casts):
            copied = copy_rows(self._cursor, self._copy_statement, pieces)
            if plan.casts:
                values = (
                    f"{quote_identifier(column.name)}{f'::{column.target.stored_type}' if column.storage.cast else ''}"
                    for column in plan.copied
                )
                # Assignment to a column rejects values beyond its length, where a cast would truncate them.
                self._cursor.execute(
                    f"INSERT INTO {self._into} ({identifiers(plan.copied_names)}) OVERRIDING SYSTEM VALUE "
                    f"SELECT {', '.join(values)} FROM {self._texts}"
                )
                copied = self._cursor.rowcount
                self._cursor.execute(f"TRUNCATE {self._texts}")
        self.copied += copied

    def delete(self) -> None:  # noqa: B027 - only rows with keys delete others
        """Delete rows, if planned; all rows have been copied, and none of them is written yet."""

    def write(self) -> None:  # noqa: B027 - without a table that collects them, they are in the target
        """Write the collected rows."""

    @abstractmethod
    def finish(self, rows: int) -> WrittenRows:
        """Check that all ``rows`` that tasks encoded have arrived, and return the table's counts.

        Deferred constraints are checked now: with several tables, each is written before the first is finished. If a
        key occurs twice and there is no order, or twice with the greatest, any method may raise a DuplicateKeyError.
        """

    def forget(self) -> None:
        """Remove auxiliary tables: other rows may follow in the same transaction."""
        if self._plan.casts:
            self._cursor.execute(f"DROP TABLE {self._texts}")

    def _read_tree(self, *, lock: bool) -> TableTree:
        tree = read_tree(self._cursor, self._plan.table, lock=lock)
        refuse_unfit(tree, self._plan.table, self._plan.rows)
        return tree

    def _reread_tree(self) -> TableTree:
        """The table after its last row, and after triggers at the end of a transaction."""
        # Deferred constraints are checked now, while the rows that break one can still be named; once, after all rows
        # of the batch: a row may refer to another that was written in another way.
        with refused_rows(self._plan.table):
            self._cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        # The lock does not prevent attaching a partition. One that has our rows is locked at this point.
        return self._read_tree(lock=False) if self._tree.partitioned or self._tree.triggers else self._tree

    def _count(self, query: str) -> int:
        self._cursor.execute(query)
        [(found,)] = self._cursor.fetchall()
        return int(found)

    def _refuse_missing(self, given: int, arrived: int) -> None:
        if arrived != given:
            reason = "a trigger of the table drops or deletes rows"
            raise self._refused(f"{given} rows were written and {arrived} arrived: {reason}")

    def _refused(self, detail: str) -> ConstraintError:
        return ConstraintError(table=str(self._plan.table), constraint="", column="", sqlstate="", detail=detail)


class AppendedRows(TableRows):
    """Rows that are copied directly into the target."""

    def finish(self, rows: int) -> WrittenRows:
        tree = self._reread_tree()
        self._refuse_missing(rows, self.copied)
        if tree.may_have_lost(self._tree):
            # Possibly other rows: a trigger may delete old ones. Only reading all rows can tell, for which the role
            # needs SELECT.
            query = f"SELECT count(*) FROM {self._target} WHERE xmin = pg_catalog.pg_current_xact_id()::xid"
            with refused_rows(self._plan.table):
                arrived = self._count(query)
            self._refuse_missing(rows, min(rows, arrived))  # a trigger may have added some
        return WrittenRows(given=rows, written=rows)


def altered_error(what: str) -> BatchRetryError:
    """Planned again, the batch may fit the altered table, or the error says what is wrong."""
    return BatchRetryError(reason=f"the table was altered after the batch was planned: {what}")


#: Maximum duration of one COPY command, and maximum pause between its frames: the server limits the duration of
#: statements, and detects a row that it refuses at once.
_COPY_S_MAX: Final = 5.0
_PAUSE_S: Final = 0.02
_SPILL_READ_BYTES: Final = 1024 * 1024


@dataclass(frozen=True)
class CopyTarget:
    """The destination of one lane's rows; with ``waits`` they must follow all rows of the tables before it."""

    lane: int
    table: Callable[[Connection], TableRows]
    waits: bool = False


class TableCopy:
    """Copies the rows of one attempt in a thread, its `task`.

    The thread opens the deciding transaction for the first rows, and leaves it open: the driver's thread writes the
    rest there (`finish`) and commits, after this thread has ended. After ``idle_s`` seconds without rows, an empty
    query keeps it from exceeding the server's idle timeout. ``targets`` are in the order in which they are written.
    With ``early`` the transaction is opened before the first row: in a small batch all rows come at once, and would
    wait.
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
        self._spilled: dict[int, IO[bytes]] = {}
        self._next: Released | Ended | None = None
        self.task: BackgroundTask = BackgroundTask(self._work, "spark_2pc_sink copy", self._cut)

    def finish(self, connection: Connection, encoded: Mapping[int, int]) -> WrittenRows:
        """Write the rows that have waited, and return the tables' counts of all rows.

        Deletions come first, from the last table to the first; then tables are written in order, so that a row exists
        before another one that refers to it. Deferred constraints are checked after all of them. ``encoded`` are the
        numbers of rows that tasks have sent, by lane; a BatchRetryError if the server has received others.
        """
        for lane in reversed(self._targets):
            self._table_rows(lane, connection).delete()
        for lane in self._targets:
            rows = self._table_rows(lane, connection)
            if lane in self._spilled:
                self._spilled[lane].seek(0)
                # COPY accepts data split anywhere, so pieces need not be whole rows here.
                pieces = iter(partial(self._spilled[lane].read, _SPILL_READ_BYTES), b"")
                rows.copy(pieces)
            sent = encoded.get(lane, 0)
            if rows.copied != sent:
                reason = f"tasks sent {sent} rows for output {lane}, and the database received {rows.copied}"
                raise BatchRetryError(reason=reason)
            rows.write()
        written = (self._table_rows(lane, connection).finish(encoded.get(lane, 0)) for lane in self._targets)
        return sum(written, NOTHING_WRITTEN)

    def close(self) -> None:
        """Remove the files of rows that have waited."""
        for file in self._spilled.values():
            file.close()
        self._spilled.clear()

    def _work(self) -> None:
        with self._source.failing():
            for lane in self._targets if self._early else ():
                self._table_rows(lane, self._opened())
            while not isinstance(taken := self._next or self._source.take(FrameKind.ROWS, self._idle_s), Ended):
                self._next = None
                if taken is None:
                    if self._connection is not None:
                        with utf8_connection(self._connection).cursor() as cursor:
                            cursor.execute("SELECT 1")
                elif self._targets[taken.frame.lane].waits:
                    self._spill(taken)
                else:
                    self._table_rows(taken.frame.lane, self._opened()).copy(self._pieces(taken))

    def _pieces(self, first: Released) -> Iterator[CopyBytes]:
        """The rows of one COPY: consecutive frames of one lane."""
        end_s = monotonic() + _COPY_S_MAX
        taken: Released | Ended | None = first
        while taken is not None and not isinstance(taken, Ended) and taken.frame.lane == first.frame.lane:
            yield taken.frame.payload
            self._source.done(taken)
            if monotonic() >= end_s:
                return
            taken = self._source.take(FrameKind.ROWS, _PAUSE_S)
        self._next = taken

    def _spill(self, taken: Released) -> None:
        try:
            if taken.frame.lane not in self._spilled:
                # Deleted by the system when it is closed, even if the process is killed.
                self._spilled[taken.frame.lane] = tempfile.TemporaryFile(prefix="spark_2pc_")  # noqa: SIM115
            self._spilled[taken.frame.lane].write(taken.frame.payload)
        except OSError as error:
            reason = f"rows that wait for another table cannot be written to {tempfile.gettempdir()}: {error.strerror}"
            raise BatchRetryError(reason=f"{reason}; set TMPDIR of the driver to another directory") from error
        self._source.done(taken)

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
                cut(utf8_connection(self._connection))
