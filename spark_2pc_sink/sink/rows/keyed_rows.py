"""The rows of a batch that are written by key: inserted, updated, left out as planned, or deleted.

They are collected in a temporary table, for which the role needs the TEMPORARY privilege. Deletions come first: a batch
may give a deleted row's unique value, such as a name, to another row.

The others are written in key order, so that two sinks on one table lock rows in the same order and cannot deadlock. If
one of them also deletes, they can: PostgreSQL then aborts one of the transactions, and that attempt of its batch is
repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import psycopg2.errors
from sqlalchemy import Connection

from spark_2pc_sink.errors import BatchRetryError, DuplicateKeyError
from spark_2pc_sink.options.names import TableName, quote_identifier
from spark_2pc_sink.sink.report import WrittenRows
from spark_2pc_sink.sink.rows.catalog import TableTree, identifiers
from spark_2pc_sink.sink.rows.column_plan import BYTE_ORDERED, ColumnPlan
from spark_2pc_sink.sink.rows.copy_encoder import DELETE_COLUMN, ORDER_COLUMN, UNCHANGED_COLUMN
from spark_2pc_sink.sink.rows.table_copy import TableRows, altered_error, refused_rows

#: Keys named in a message.
SHOWN_KEYS_MAX: Final = 5
#: Sort memory for an upsert, unless the server allows more: with PostgreSQL's default of 4 MB rows are sorted on disk
#: (measured for 500 000 rows: 2.7 s of CPU instead of 3.6 s). Only as much is used as the rows need.
UPSERT_WORK_MEM_KB: Final = 64 * 1024

#: Counts the rows that guards skip during the rest of the transaction.
_SKIPPED: Final = "'spark_2pc_sink.skipped'"
_EXCLUDED: Final = "excluded"


def staging_table(plan: ColumnPlan) -> TableName:
    """It exists until the transaction ends."""
    return TableName(f"_2pc_upsert_{plan.lane}" if plan.lane else "_2pc_upsert", "pg_temp")


def _staging_ddl(plan: ColumnPlan) -> str:
    """A table with the columns that tasks encode, with the target's types and collations.

    A deleting row has only its key, and one may lack other values (``unchanged_when``). If there are such rows, columns
    of domains, which may reject null, have their base types: the domain checks only rows that are written.
    """
    based = plan.deletes or plan.unchanged
    columns = [(quote_identifier(column.name), column.target.stored_type) for column in plan.columns]
    selected = [f"{name}::{stored} AS {name}" if based else name for name, stored in columns]
    selected += [f"NULL::{column.target.type_name} AS {column.name}" for column in plan.own_columns]
    return (
        f"CREATE TEMPORARY TABLE {staging_table(plan)} ON COMMIT DROP AS "
        f"SELECT {', '.join(selected)} FROM {plan.table} WITH NO DATA"
    )


def target_alias(plan: ColumnPlan) -> str:
    """Alias of the row in the table: the table's name, for a user's condition, unless that is the other row's."""
    return "there" if plan.rows.upsert_where is None or plan.table.name == _EXCLUDED else plan.table.name


def _winners(plan: ColumnPlan, *, deleting: bool | None = None, complete: bool | None = None) -> str:
    """The rows that may be written, as a table of a FROM clause.

    They are compared by order keys (`copy_encoder.order_keys`), which have one order everywhere. ``deleting`` chooses
    those that delete a row, or that do not, ``complete`` those that carry every value, or not (``unchanged_when``).
    """
    source, conditions = str(staging_table(plan)), []
    if plan.order is not None:
        rank = f"rank() OVER (PARTITION BY {identifiers(plan.upsert_keys)} ORDER BY {ORDER_COLUMN} DESC NULLS LAST)"
        source = f"(SELECT *, {rank} AS _2pc_rank FROM {source}) AS ranked"
        conditions.append("_2pc_rank = 1")
    if plan.deletes and deleting is not None:
        conditions.append(DELETE_COLUMN if deleting else f"NOT {DELETE_COLUMN}")
    if plan.unchanged and complete is not None:
        conditions.append(f"pg_catalog.strpos({UNCHANGED_COLUMN}, '1') {'=' if complete else '>'} 0")
    if not conditions:
        return f"{source} AS winners"
    columns = identifiers(name for name in plan.copied_names if name != ORDER_COLUMN)
    return f"(SELECT {columns} FROM {source} WHERE {' AND '.join(conditions)}) AS winners"


def _write_statement(plan: ColumnPlan, *, counting: bool = False, source: str | None = None) -> str:
    """Insert the winners that do not delete, or ``source``, in key order, and update existing rows as planned.

    With ``counting`` the rows that the plan's guards skip are counted, see `_SKIPPED`.
    """
    columns, keys, there = identifiers(plan.names), identifiers(plan.upsert_keys), quote_identifier(target_alias(plan))
    guards = []
    if plan.late_by is not None:
        # Null is less than any value, as among the rows of a batch.
        column = quote_identifier(plan.late_by.name)
        collated = ' COLLATE pg_catalog."C"' if plan.late_by.base_type in BYTE_ORDERED else ""
        known, given = f"{there}.{column}", f"{_EXCLUDED}.{column}"
        guards.append(f"({known} IS NULL OR {given}{collated} >= {known}{collated})")
    if plan.rows.upsert_where is not None:
        # A newline follows: the condition may end with a comment.
        guards.append(f"({plan.rows.upsert_where}\n)")
    guard = " AND ".join(guards)
    if counting:
        # ON CONFLICT evaluates this once for each row whose key exists, after locking that row. Only here is it visible
        # whether a row was skipped: earlier triggers may have changed values that the guard compares, or may drop the
        # row later.
        count_one = f"set_config({_SKIPPED}, (current_setting({_SKIPPED})::bigint + 1)::text, true)"
        guard = f"CASE WHEN {guard} THEN true ELSE {count_one} IS NULL END"
    where = f" WHERE {guard}" if guards else ""
    updates = ", ".join(f"{name} = {_EXCLUDED}.{name}" for name in map(quote_identifier, plan.updated))
    return (
        f"INSERT INTO {plan.table} AS {there} ({columns}) OVERRIDING SYSTEM VALUE "
        f"SELECT {columns} FROM {source or _winners(plan, deleting=False, complete=True)} ORDER BY {keys} "
        f"ON CONFLICT ({keys}) {f'DO UPDATE SET {updates}{where}' if updates else 'DO NOTHING'}"
    )


def explain_statement(plan: ColumnPlan) -> str:
    """Have PostgreSQL plan the write statement for no rows, without executing it."""
    nothing = f"(SELECT {identifiers(plan.names)} FROM {plan.table} LIMIT 0) AS winners"
    return f"EXPLAIN {_write_statement(plan, source=nothing)}"


class KeyedRows(TableRows):
    """Rows with new keys are inserted; the plan determines the treatment of the others. Each key is written once.

    In statements ``winners`` are the rows of the batch that are to be written, and ``there`` is a row of the target.

    PostgreSQL itself detects a key that the batch has twice if ON CONFLICT DO UPDATE writes every row, as it affects no
    row twice in one statement; only then are the keys searched. Otherwise they are searched first.
    """

    def __init__(self, connection: Connection, plan: ColumnPlan) -> None:
        super().__init__(connection, plan, collects=staging_table(plan))
        self._keys = identifiers(plan.upsert_keys)
        self._key_texts = ", ".join(f"{quote_identifier(key)}::text" for key in plan.upsert_keys)
        # A domain cannot be compared with its base type.
        types = {column.name: column.target.stored_type for column in plan.columns}
        typed = [f"{quote_identifier(key)}::{types[key]}" for key in plan.upsert_keys]
        winner, there = (", ".join(f"{row}.{key}" for key in typed) for row in ("winners", "there"))
        self._same_key = f"ROW({winner}) = ROW({there})"
        # If both a guard of the plan and a trigger may skip rows, those of the guard are counted.
        guarded = plan.rows.upsert_where is not None or plan.late_by is not None
        self._counts_skipped = guarded and self._tree.skipping_triggers
        self._deleting = self._deleted = self._written = self._incomplete = 0
        with refused_rows(plan.table):
            self._cursor.execute(_staging_ddl(plan))

    def delete(self) -> None:
        plan = self._plan
        self._cursor.execute(
            f"SELECT pg_catalog.set_config('work_mem', '{UPSERT_WORK_MEM_KB}kB', true) "
            f"FROM pg_catalog.pg_settings WHERE name = 'work_mem' AND setting::bigint < {UPSERT_WORK_MEM_KB}"
        )
        if plan.deletes:
            self._deleting = self._count_winners(deleting=True)
        if plan.unchanged:
            self._incomplete = self._count_winners(deleting=False, complete=False)
        if self._deleting or self._incomplete or not plan.updated or plan.rows.upsert_where is not None:
            self._refuse_duplicates()  # the write statement would silently skip some of them
        if self._deleting:
            with refused_rows(plan.table):
                deleting = _winners(plan, deleting=True)
                self._cursor.execute(f"DELETE FROM {self._target} AS there USING {deleting} WHERE {self._same_key}")
            self._deleted = self._cursor.rowcount

    def write(self) -> None:
        plan = self._plan
        if self._incomplete and plan.order is not None:
            for place, name in enumerate(plan.unchanged, start=1):
                self._complete(quote_identifier(name), place)
            self._incomplete = self._count_winners(deleting=False, complete=False)
        if self._counts_skipped:
            self._cursor.execute(f"SELECT pg_catalog.set_config({_SKIPPED}, '0', true)")
        self._cursor.execute("SAVEPOINT _2pc_upsert")
        try:
            with refused_rows(plan.table):
                self._cursor.execute(_write_statement(plan, counting=self._counts_skipped))
        except psycopg2.errors.CardinalityViolation:
            self._cursor.execute("ROLLBACK TO SAVEPOINT _2pc_upsert")
            self._refuse_duplicates()
            raise  # not one of our keys: a trigger's own statement
        except psycopg2.errors.InvalidColumnReference as error:
            if error.diag.context:
                raise  # a trigger's own statement too
            raise altered_error(f"({', '.join(plan.upsert_keys)}) is no longer a unique key") from error
        self._written = self._cursor.rowcount
        self._cursor.execute("RELEASE SAVEPOINT _2pc_upsert")
        if self._incomplete:
            self._written += self._update()

    def finish(self, rows: int) -> WrittenRows:
        given = rows - self._deleting
        tree = self._reread_tree()
        self._check_written(tree, given)
        if tree is not self._tree and tree.may_have_lost(self._tree, self._deleted):
            # Perhaps other rows were deleted, or a conflicting insertion was undone: looking up the keys tells.
            self._look_up_keys()
        if self._deleting and tree.triggers and (there := self._count_winners(deleting=True, in_target=True)):
            reason = "a trigger of the table prevents the deletion, or inserts rows again"
            raise self._refused(f"{there} rows that were to be deleted are still there: {reason}")
        return WrittenRows(given=rows, written=self._written, deleted=self._deleted, left_out=given - self._written)

    def forget(self) -> None:
        super().forget()
        self._cursor.execute(f"DROP TABLE {self._into}")

    def _count_winners(self, *, deleting: bool, complete: bool | None = None, in_target: bool = False) -> int:
        """Count winners, or those whose keys are in the table; one changed by a trigger is missing.

        A separate statement: counting within the INSERT, by a WITH, took longer, and every batch would incur the cost.
        """
        where = f" WHERE EXISTS (SELECT FROM {self._target} AS there WHERE {self._same_key})" if in_target else ""
        winners = _winners(self._plan, deleting=deleting, complete=complete)
        return self._count(f"SELECT count(*) FROM {winners}{where}")

    def _look_up_keys(self) -> None:
        arrived = self._count_winners(deleting=False, in_target=True)
        self._refuse_missing(self._count_winners(deleting=False), arrived)

    def _complete(self, column: str, place: int) -> None:
        """Give rows of the batch that lack a column's value the newest one that the batch has for their key."""
        kept = f" AND NOT {DELETE_COLUMN}" if self._plan.deletes else ""
        self._cursor.execute(
            f"UPDATE {self._into} AS winners SET {column} = there.{column}, "
            f"{UNCHANGED_COLUMN} = pg_catalog.overlay({UNCHANGED_COLUMN}, '0', {place}) "
            f"FROM (SELECT DISTINCT ON ({self._keys}) {self._keys}, {column} FROM {self._into} "
            f"WHERE pg_catalog.substr({UNCHANGED_COLUMN}, {place}, 1) = '0'{kept} "
            f"ORDER BY {self._keys}, {ORDER_COLUMN} DESC NULLS LAST) AS there "
            f"WHERE pg_catalog.substr({UNCHANGED_COLUMN}, {place}, 1) = '1' AND {self._same_key}"
        )

    def _update(self) -> int:
        """Update with the rows that lack values: an INSERT would need all."""
        plan, incomplete = self._plan, _winners(self._plan, deleting=False, complete=False)
        places = {name: place for place, name in enumerate(plan.unchanged, start=1)}
        assignments = []
        for name in plan.updated:
            column, value = quote_identifier(name), f"winners.{quote_identifier(name)}"
            if name in places:
                lacks = f"pg_catalog.substr({UNCHANGED_COLUMN}, {places[name]}, 1) = '1'"
                value = f"CASE WHEN {lacks} THEN there.{column} ELSE {value} END"
            assignments.append(f"{column} = {value}")
        with refused_rows(plan.table):
            self._cursor.execute(
                f"UPDATE {self._target} AS there SET {', '.join(assignments)} FROM {incomplete} WHERE {self._same_key}"
            )
        updated = self._cursor.rowcount
        if updated < self._incomplete:
            self._cursor.execute(
                f"SELECT {self._key_texts} FROM {incomplete} "
                f"WHERE NOT EXISTS (SELECT FROM {self._target} AS there WHERE {self._same_key}) "
                f"ORDER BY {self._keys} LIMIT {SHOWN_KEYS_MAX}"
            )
            if keys := self._named_keys(self._cursor.fetchall()):
                raise self._refused(
                    f"rows with {' and '.join(keys)} have no value for some of {', '.join(plan.unchanged)} "
                    "(unchanged_when), and neither the table nor the batch has another row with their key to take it "
                    "from"
                )
        return updated

    def _check_written(self, tree: TableTree, given: int) -> None:
        """Check that every row is written, or left out for a reason in the plan.

        Rows are counted only if a trigger could have left one out: otherwise the table writes all rows, or fails; and
        with a million rows, counting takes a third of the time that the upsert itself takes.
        """
        plan = self._plan
        if plan.order is None and plan.updated and plan.rows.upsert_where is None:
            self._refuse_missing(given, self._written)
        elif not tree.skipping_triggers:
            return
        elif not plan.updated:
            # DO NOTHING does not count existing keys, so every key is looked up.
            self._look_up_keys()
        elif self._tree.skipping_triggers:
            query = f"SELECT pg_catalog.current_setting({_SKIPPED})"
            skipped = self._count(query) if self._counts_skipped else 0
            self._refuse_missing(self._count_winners(deleting=False) - skipped, self._written)
        else:
            raise BatchRetryError(reason=f"a partition with triggers was attached to {plan.table} during the batch")

    def _refuse_duplicates(self) -> None:
        """Name the first keys that more than one winner has, if there are any.

        If an existing row stays, equal rows count as one: whichever is written, the table is the same. They are
        compared as texts: different numbers have different texts.
        """
        plan, keys, source, differing = self._plan, self._keys, _winners(self._plan), ""
        if plan.rows.mode == "insert_ignore":
            row = ", ".join(f"winners.{quote_identifier(name)}" for name in plan.names)
            differing = f" AND count(DISTINCT ROW({row})::text) > 1"
            source += f" JOIN (SELECT {keys} FROM {source} GROUP BY {keys} HAVING count(*) > 1) AS twice USING ({keys})"
        self._cursor.execute("SET LOCAL extra_float_digits = 1")
        self._cursor.execute(
            f"SELECT {self._key_texts} FROM {source} GROUP BY {keys} HAVING count(*) > 1{differing} "
            f"ORDER BY {keys} LIMIT {SHOWN_KEYS_MAX}"
        )
        if found := self._cursor.fetchall():
            named, tied = self._named_keys(found), plan.order is not None
            raise DuplicateKeyError(table=str(plan.table), key_columns=plan.upsert_keys, keys=named, tied=tied)

    def _named_keys(self, found: Sequence[Sequence[str]]) -> tuple[str, ...]:
        names = self._plan.upsert_keys
        return tuple(", ".join(f"{key}={value}" for key, value in zip(names, row, strict=True)) for row in found)
