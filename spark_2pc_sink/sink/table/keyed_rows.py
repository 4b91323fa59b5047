"""The rows of a batch that are written by key: inserted, updated, left out as the plan says, or deleted.

They gather in a temporary table, for which the role needs the TEMPORARY privilege. Rows that delete come first: a
batch may give what a deleted row had and no other row may have, such as a unique name, to another one.

The others are written in the order of their keys, so that two sinks on one table lock rows in the same order and
cannot deadlock each other. Where one of them deletes too, they can: PostgreSQL ends one of the transactions, and that
attempt of its batch is made again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import psycopg2.errors
import psycopg2.extensions
from psycopg2 import sql

from spark_2pc_sink.errors import BatchRetryError, DuplicateKeyError
from spark_2pc_sink.sink.table import keyed_statements as statements
from spark_2pc_sink.sink.table.row_errors import refused_rows
from spark_2pc_sink.sink.table.table_writer import BatchRows, altered_error, count
from spark_2pc_sink.sink.written_rows import WrittenRows

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sqlalchemy import Connection

    from spark_2pc_sink.sink.table.column_plan import ColumnPlan
    from spark_2pc_sink.sink.table.copy_stream import Rows
    from spark_2pc_sink.sink.table.table_tree import TableTree

#: Memory for sorting the rows of an upsert, unless the server allows more: with PostgreSQL's default of 4 MB they go
#: through files (measured for 500 000 rows: 2.7 s of CPU instead of 3.6 s). Only as much is taken as there are rows.
UPSERT_WORK_MEM_KB: Final = 64 * 1024

_SAVEPOINT: Final = sql.Identifier("_2pc_upsert")


class KeyedRows(BatchRows):
    """Rows with new keys are inserted; the plan says what becomes of the others. Each key is written once.

    A key that the batch has twice is found by PostgreSQL itself where ON CONFLICT DO UPDATE writes every row, as it
    affects no row twice in one statement; only then are the keys looked for. Else they are looked for first.

    Args:
        connection: inside the deciding transaction.
        plan: with upsert keys.
    """

    def __init__(self, connection: Connection, plan: ColumnPlan) -> None:
        super().__init__(connection, plan)
        self._deleting = self._deleted = self._written = self._partial = 0
        with self._connection.cursor() as cursor, refused_rows(plan.table):
            cursor.execute(statements.gathered_ddl(plan))

    def copy(self, pieces: Iterable[Rows]) -> int:
        """See `TableRows.copy`."""
        return self._copy(pieces, statements.gathered(self._plan))

    def delete(self) -> None:
        """See `TableRows.delete`."""
        plan = self._plan
        with self._connection.cursor() as cursor:
            _allow_sorting(cursor)
            if plan.delete is not None:
                self._deleting = count(cursor, statements.count_winners(plan, deleting=True))
            if plan.conflict.unchanged:
                self._partial = count(cursor, statements.count_winners(plan, deleting=False, whole=False))
            if self._deleting or self._partial or not plan.updated or plan.conflict.where is not None:
                _refuse_duplicates(cursor, plan)  # the statement that writes would be silent about some of them
            if self._deleting:
                with refused_rows(plan.table):
                    cursor.execute(statements.delete_statement(plan, partitioned=self._tree.partitioned))
                self._deleted = cursor.rowcount

    def write(self) -> None:
        """See `TableRows.write`."""
        with self._connection.cursor() as cursor:
            self._written = self._write(cursor)

    def finish(self, rows: int) -> WrittenRows:
        """See `TableRows.finish`."""
        given = rows - self._deleting
        with self._connection.cursor() as cursor:
            tree = self._look_again(cursor)
            self._check_written(cursor, tree, given)
            if tree is not self._tree and tree.may_have_lost(self._tree, self._deleted):
                # Perhaps others, or what a row in the way of an insertion took back: looking for the keys tells.
                self._refuse_missing(self._count_given(cursor), self._count_arrived(cursor))
            if self._deleting and tree.triggers:
                self._refuse_kept(self._count_in_table(cursor, deleting=True))
        return WrittenRows(given=rows, written=self._written, deleted=self._deleted, left_out=given - self._written)

    def forget(self) -> None:
        """See `TableRows.forget`."""
        super().forget()
        with self._connection.cursor() as cursor:
            cursor.execute(sql.SQL("DROP TABLE {}").format(statements.gathered(self._plan).identifier))

    def _write(self, cursor: psycopg2.extensions.cursor) -> int:
        """Insert and update; how many rows."""
        plan = self._plan
        if self._partial and plan.order is not None:
            for column in plan.conflict.unchanged:
                cursor.execute(statements.complete_statement(plan, column))
            self._partial = count(cursor, statements.count_winners(plan, deleting=False, whole=False))
        if self._counts_kept:
            cursor.execute(statements.reset_kept())
        cursor.execute(sql.SQL("SAVEPOINT {}").format(_SAVEPOINT))
        try:
            with refused_rows(plan.table):
                cursor.execute(statements.write_statement(plan, counting=self._counts_kept))
        except psycopg2.errors.CardinalityViolation:
            cursor.execute(sql.SQL("ROLLBACK TO SAVEPOINT {}").format(_SAVEPOINT))
            _refuse_duplicates(cursor, plan)
            raise  # not by a key of ours: a trigger's own statement
        except psycopg2.errors.InvalidColumnReference as error:
            if error.diag.context:
                raise  # a trigger's own statement too
            raise altered_error(f"({', '.join(plan.upsert_keys)}) is no unique key any more") from error
        written = cursor.rowcount
        cursor.execute(sql.SQL("RELEASE SAVEPOINT {}").format(_SAVEPOINT))
        return written + self._update(cursor) if self._partial else written

    def _update(self, cursor: psycopg2.extensions.cursor) -> int:
        """Update with the rows that do not carry every value; how many rows."""
        plan, partitioned = self._plan, self._tree.partitioned
        with refused_rows(plan.table):
            cursor.execute(statements.update_statement(plan, partitioned=partitioned))
        updated = cursor.rowcount
        if updated < self._partial:
            cursor.execute(statements.missing_query(plan, partitioned=partitioned))
            if keys := _named_keys(plan, cursor.fetchall()):
                raise self._refused(
                    f"rows with {' and '.join(keys)} carry no value for some of {', '.join(plan.conflict.unchanged)} "
                    "(unchanged_when), and neither the table nor the batch has another row of their key to take it from"
                )
        return updated

    @property
    def _counts_kept(self) -> bool:
        """Where a guard of the plan and a trigger may both keep rows out, those of the guard are counted."""
        guarded = self._plan.conflict.where is not None or self._plan.late_rows is not None
        return guarded and self._tree.skipping_triggers

    def _check_written(self, cursor: psycopg2.extensions.cursor, tree: TableTree, given: int) -> None:
        """Every row is written, or left out for a reason that the plan names.

        Counted only where a trigger could have left one out: without, the table writes what it is given, or fails; and
        with a million rows, counting takes a third of the time that the upsert itself takes.
        """
        plan = self._plan
        if plan.order is None and plan.updated and plan.conflict.where is None:
            self._refuse_missing(given, self._written)
        elif not tree.skipping_triggers:
            return
        elif not plan.updated:
            # DO NOTHING counts no key that is there already, so every key is looked for.
            self._refuse_missing(self._count_given(cursor), self._count_arrived(cursor))
        elif self._tree.skipping_triggers:
            kept = count(cursor, statements.count_kept()) if self._counts_kept else 0
            self._refuse_missing(self._count_given(cursor) - kept, self._written)
        else:
            raise BatchRetryError(reason=f"{plan.table} was given a partition with triggers during the batch")

    def _count_given(self, cursor: psycopg2.extensions.cursor) -> int:
        return count(cursor, statements.count_winners(self._plan, deleting=False))

    def _count_arrived(self, cursor: psycopg2.extensions.cursor) -> int:
        return self._count_in_table(cursor, deleting=False)

    def _count_in_table(self, cursor: psycopg2.extensions.cursor, *, deleting: bool) -> int:
        return count(
            cursor,
            statements.count_in_table(self._plan, deleting=deleting, partitioned=self._tree.partitioned),
        )

    def _refuse_kept(self, kept: int) -> None:
        if kept:
            raise self._refused(
                f"{kept} rows were to be deleted and are there: a trigger of the table keeps rows, or puts them back"
            )


def _allow_sorting(cursor: psycopg2.extensions.cursor) -> None:
    cursor.execute(
        "SELECT pg_catalog.set_config('work_mem', %s, true) FROM pg_catalog.pg_settings "
        "WHERE name = 'work_mem' AND setting::bigint < %s",
        (f"{UPSERT_WORK_MEM_KB}kB", UPSERT_WORK_MEM_KB),
    )


def _refuse_duplicates(cursor: psycopg2.extensions.cursor, plan: ColumnPlan) -> None:
    """Name keys that would be written more than once, if there are any."""
    # Where equal rows count as one they are compared as texts: numbers that differ have texts that do.
    cursor.execute("SET LOCAL extra_float_digits = 1")
    cursor.execute(statements.duplicates_query(plan))
    found = cursor.fetchall()
    if found:
        raise DuplicateKeyError(
            table=str(plan.table),
            key_columns=plan.upsert_keys,
            keys=_named_keys(plan, found),
            tied=plan.order is not None,
        )


def _named_keys(plan: ColumnPlan, found: Sequence[Sequence[str]]) -> tuple[str, ...]:
    return tuple(", ".join(f"{key}={value}" for key, value in zip(plan.upsert_keys, row, strict=True)) for row in found)
