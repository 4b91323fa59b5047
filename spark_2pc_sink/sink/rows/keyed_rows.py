"""The rows of a batch that are written by key: inserted, updated, left out as planned, or deleted.

They are collected in a temporary table, for which the role needs the TEMPORARY privilege. Deletions come first: a batch
may give a deleted row's unique value, such as a name, to another row.

The others are written in key order, so that two sinks on one table lock rows in the same order and cannot deadlock. If
one of them also deletes, they can: PostgreSQL then aborts one of the transactions, and that attempt of its batch is
repeated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import psycopg2.errors
import psycopg2.extensions
from psycopg2 import sql

from spark_2pc_sink.errors import BatchRetryError, DuplicateKeyError
from spark_2pc_sink.sink.report import WrittenRows
from spark_2pc_sink.sink.rows.catalog import SqlTableName, identifiers
from spark_2pc_sink.sink.rows.column_plan import DELETE_COLUMN, UNCHANGED_COLUMN
from spark_2pc_sink.sink.rows.refused_rows import refused_rows
from spark_2pc_sink.sink.rows.table_copy import TableRows, altered_error, count

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sqlalchemy import Connection

    from spark_2pc_sink.sink.rows.catalog import TableTree
    from spark_2pc_sink.sink.rows.column_plan import ColumnPlan
    from spark_2pc_sink.sink.rows.table_copy import Rows


#: Maximum number of duplicate keys named in a message.
SHOWN_KEYS_MAX: Final = 5

#: Counts the rows that guards keep out during the rest of the transaction.
KEPT_SETTING: Final = "spark_2pc_sink.kept"
# ON CONFLICT evaluates this once for each row whose key exists, after locking that row. Only here is it visible whether
# a row was kept out: earlier triggers may have changed values that the guard compares, or may drop the row later.
_COUNTED: Final = (
    "CASE WHEN {guard} THEN true ELSE set_config({name}, (current_setting({name})::bigint + 1)::text, true) IS NULL END"
)

# The target's rows in a statement that compares them with those of the batch.
_THERE: Final = "there"
_EXCLUDED: Final = "excluded"
_WINNERS: Final = "winners"
# Batch rows that lack a value, and those of the same keys that have it.
_GIVEN: Final = "given"
_KNOWN: Final = "known"
_FLAGS: Final = sql.Identifier(UNCHANGED_COLUMN)


def gathered(plan: ColumnPlan) -> SqlTableName:
    """The staging table for the rows. It exists until the transaction ends, in the session's own schema."""
    return SqlTableName(name=f"_2pc_upsert_{plan.lane}" if plan.lane else "_2pc_upsert", schema="pg_temp")


def gathered_ddl(plan: ColumnPlan) -> sql.Composable:
    """A table with the columns that tasks encode, with the target's types and collations.

    A deleting row has no values but its key, one may lack others (``unchanged_when``), and a domain may reject null. So
    if there are such rows, columns of domains have their base types: the domain checks only rows that are written.
    """
    named = [
        sql.SQL("{0}::{1} AS {0}").format(sql.Identifier(column.name), sql.SQL(column.target.stored_type))
        if plan.delete is not None or plan.conflict.unchanged
        else sql.Identifier(column.name)
        for column in plan.columns
    ]
    own = [
        sql.SQL(", NULL::{} AS {}").format(sql.SQL(column.target.type_name), sql.Identifier(column.name))
        for column in plan.own_columns
    ]
    return sql.SQL("CREATE TEMPORARY TABLE {} ON COMMIT DROP AS SELECT {}{} FROM {} WITH NO DATA").format(
        gathered(plan).identifier, sql.SQL(", ").join(named), sql.SQL("").join(own), plan.table.identifier
    )


def target_alias(plan: ColumnPlan) -> str:
    """Alias of the row in the table: the table's name, for a user's condition, unless that is the other row's."""
    return _THERE if plan.conflict.where is None or plan.table.name == _EXCLUDED else plan.table.name


def winners(
    plan: ColumnPlan, *, deleting: bool | None = None, whole: bool | None = None, alias: str = _WINNERS
) -> sql.Composable:
    """The rows that may be written, as a table of a FROM clause.

    They are compared by order keys (`copy_encoder.order_keys`), which have one order everywhere.

    Args:
        plan: plan of the batch.
        deleting: those that delete a row, or those that do not; None for both.
        whole: those that carry every value, or those that do not (``unchanged_when``); None for both.
        alias: their alias.
    """
    delete = plan.delete
    conditions: list[sql.Composable] = []
    source: sql.Composable = gathered(plan).identifier
    if plan.order is not None:
        source = sql.SQL(
            "(SELECT *, rank() OVER (PARTITION BY {keys} ORDER BY {order} DESC NULLS LAST) AS _2pc_rank "
            "FROM {source}) AS ranked"
        ).format(
            keys=identifiers(plan.upsert_keys),
            order=sql.Identifier(plan.order.name),
            source=gathered(plan).identifier,
        )
        conditions.append(sql.SQL("_2pc_rank = 1"))
    if delete is not None and deleting is not None:
        conditions.append(sql.SQL("" if deleting else "NOT ") + sql.Identifier(delete.name))
    if plan.conflict.unchanged and whole is not None:
        conditions.append(sql.SQL("pg_catalog.strpos({}, '1') {} 0").format(_FLAGS, sql.SQL("=" if whole else ">")))
    named = sql.SQL(" AS {}").format(sql.Identifier(alias))
    if not conditions:
        return source + named
    columns = [name for name in plan.copied_names if plan.order is None or name != plan.order.name]
    chosen = sql.SQL("(SELECT {} FROM {} WHERE {})").format(
        identifiers(columns), source, sql.SQL(" AND ").join(conditions)
    )
    return chosen + named


def write_statement(
    plan: ColumnPlan, *, counting: bool = False, source: sql.Composable | None = None
) -> sql.Composable:
    """Insert the winners in key order, and update existing rows as planned.

    Args:
        plan: plan of the batch.
        counting: count the rows that the plan's guards keep out, see `KEPT_SETTING`.
        source: rows to write instead of the winners that do not delete.
    """
    there = target_alias(plan)
    updated = plan.updated
    update = sql.SQL(", ").join(sql.SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(name)) for name in updated)
    guards: list[sql.Composable] = []
    if plan.late_rows is not None:
        guards.append(plan.late_rows.not_older(given=_EXCLUDED, there=there))
    if plan.conflict.where is not None:
        # A newline follows: the condition may end with a comment.
        guards.append(sql.SQL("({}\n)").format(sql.SQL(plan.conflict.where)))
    guard = sql.SQL(" AND ").join(guards)
    if counting:
        guard = sql.SQL(_COUNTED).format(guard=guard, name=sql.Literal(KEPT_SETTING))
    where = sql.SQL(" WHERE {}").format(guard) if guards else sql.SQL("")
    return sql.SQL(
        "INSERT INTO {target} AS {there} ({columns}) OVERRIDING SYSTEM VALUE "
        "SELECT {columns} FROM {source} ORDER BY {keys} ON CONFLICT ({keys}) {action}"
    ).format(
        target=plan.table.identifier,
        there=sql.Identifier(there),
        columns=identifiers(plan.names),
        source=winners(plan, deleting=False, whole=True) if source is None else source,
        keys=identifiers(plan.upsert_keys),
        action=sql.SQL("DO UPDATE SET {}{}").format(update, where) if updated else sql.SQL("DO NOTHING"),
    )


def complete_statement(plan: ColumnPlan, column: str) -> sql.Composable:
    """Give rows that carry no value for a column the newest value in the batch for their key.

    Args:
        plan: plan of the batch, with an order.
        column: one of ``unchanged_when``.
    """
    if plan.order is None:
        raise AssertionError("without an order a key has one row")
    place = plan.conflict.unchanged.index(column) + 1
    return sql.SQL(
        "UPDATE {gathered} AS {given} SET {column} = {known}.{column}, "
        "{flags} = pg_catalog.overlay({flags}, '0', {place}) "
        "FROM (SELECT DISTINCT ON ({keys}) {keys}, {column} FROM {gathered} "
        "WHERE pg_catalog.substr({flags}, {place}, 1) = '0'{kept} ORDER BY {keys}, {order} DESC NULLS LAST) AS {known} "
        "WHERE pg_catalog.substr({flags}, {place}, 1) = '1' AND {same}"
    ).format(
        gathered=gathered(plan).identifier,
        given=sql.Identifier(_GIVEN),
        known=sql.Identifier(_KNOWN),
        column=sql.Identifier(column),
        flags=_FLAGS,
        place=sql.Literal(place),
        keys=identifiers(plan.upsert_keys),
        order=sql.Identifier(plan.order.name),
        kept=sql.SQL("" if plan.delete is None else " AND NOT {}").format(sql.Identifier(DELETE_COLUMN)),
        same=_same(plan, _GIVEN, _KNOWN),
    )


def update_statement(plan: ColumnPlan, *, partitioned: bool) -> sql.Composable:
    """Update the rows in the table with the winners that lack values; an INSERT would need all values.

    Args:
        plan: plan of the batch, with ``unchanged_when``.
        partitioned: the target is partitioned; tables that inherit from a plain table are excluded.
    """
    places = {name: place for place, name in enumerate(plan.conflict.unchanged, start=1)}
    assignments = [
        sql.SQL(
            "{0} = CASE WHEN pg_catalog.substr({flags}, {place}, 1) = '1' THEN {there}.{0} ELSE {winners}.{0} END"
            if name in places
            else "{0} = {winners}.{0}"
        ).format(
            sql.Identifier(name),
            flags=_FLAGS,
            place=sql.Literal(places.get(name)),
            there=sql.Identifier(_THERE),
            winners=sql.Identifier(_WINNERS),
        )
        for name in plan.updated
    ]
    return sql.SQL("UPDATE {only}{target} AS {there} SET {assignments} FROM {winners} WHERE {same}").format(
        only=sql.SQL("" if partitioned else "ONLY "),
        target=plan.table.identifier,
        there=sql.Identifier(_THERE),
        assignments=sql.SQL(", ").join(assignments),
        winners=winners(plan, deleting=False, whole=False),
        same=_same(plan, _WINNERS, _THERE),
    )


def missing_query(plan: ColumnPlan, *, partitioned: bool) -> sql.Composable:
    """The first keys, as texts, of winners that lack values and have no row in the table."""
    return sql.SQL(
        "SELECT {texts} FROM {winners} WHERE NOT EXISTS (SELECT FROM {only}{target} AS {there} WHERE {same}) "
        "ORDER BY {keys} LIMIT {most}"
    ).format(
        texts=_texts(plan),
        winners=winners(plan, deleting=False, whole=False),
        only=sql.SQL("" if partitioned else "ONLY "),
        target=plan.table.identifier,
        there=sql.Identifier(_THERE),
        same=_same(plan, _WINNERS, _THERE),
        keys=identifiers(plan.upsert_keys),
        most=sql.Literal(SHOWN_KEYS_MAX),
    )


def explain_statement(plan: ColumnPlan) -> sql.Composable:
    """Have PostgreSQL plan `write_statement` for no rows, without executing it."""
    nothing = sql.SQL("(SELECT {} FROM {} LIMIT 0) AS {}").format(
        identifiers(plan.names), plan.table.identifier, sql.Identifier(_WINNERS)
    )
    return sql.SQL("EXPLAIN ") + write_statement(plan, source=nothing)


def delete_statement(plan: ColumnPlan, *, partitioned: bool) -> sql.Composable:
    """Delete the rows whose keys are those of deleting winners.

    Args:
        plan: plan of the batch.
        partitioned: the target is partitioned; tables that inherit from a plain table are excluded.
    """
    return sql.SQL("DELETE FROM {only}{target} AS {there} USING {gone} WHERE {same}").format(
        only=sql.SQL("" if partitioned else "ONLY "),
        target=plan.table.identifier,
        there=sql.Identifier(_THERE),
        gone=winners(plan, deleting=True),
        same=_same(plan, _WINNERS, _THERE),
    )


def duplicates_query(plan: ColumnPlan) -> sql.Composable:
    """The first keys, as texts, that more than one winner has.

    If an existing row stays, equal rows count as one: whichever is written, the table is the same.
    """
    keys = identifiers(plan.upsert_keys)
    equal_is_one: sql.Composable = sql.SQL("")
    if plan.conflict.ignore:
        row = sql.SQL(", ").join(sql.Identifier(_WINNERS, name) for name in plan.names)
        equal_is_one = sql.SQL(" AND count(DISTINCT ROW({})::text) > 1").format(row)
    twice = sql.SQL("SELECT {keys} FROM {winners} GROUP BY {keys} HAVING count(*) > 1").format(
        keys=keys, winners=winners(plan)
    )
    source = sql.SQL("{} JOIN ({}) AS twice USING ({})").format(winners(plan), twice, keys)
    return sql.SQL(
        "SELECT {texts} FROM {source} GROUP BY {keys} HAVING count(*) > 1{equal_is_one} ORDER BY {keys} LIMIT {most}"
    ).format(
        texts=_texts(plan),
        source=source if plan.conflict.ignore else winners(plan),
        keys=keys,
        equal_is_one=equal_is_one,
        most=sql.Literal(SHOWN_KEYS_MAX),
    )


# --- counts ------------------------------------------------------------------------------------------------------


def count_winners(plan: ColumnPlan, *, deleting: bool, whole: bool | None = None) -> sql.Composable:
    """Count rows, with an order one per key. See `winners`.

    A separate statement: counting within the INSERT, by a WITH, took longer, and every batch would incur the cost.
    """
    return sql.SQL("SELECT count(*) FROM {}").format(winners(plan, deleting=deleting, whole=whole))


def count_in_table(plan: ColumnPlan, *, deleting: bool, partitioned: bool) -> sql.Composable:
    """Count the winners whose keys are in the table; one changed by a trigger is missing.

    Args:
        plan: plan of the batch.
        deleting: those that delete a row, or those that do not.
        partitioned: the target is partitioned; rows of tables that inherit from a plain table are not counted.
    """
    return sql.SQL(
        "SELECT count(*) FROM {winners} WHERE EXISTS (SELECT FROM {only}{target} AS {there} WHERE {same})"
    ).format(
        winners=winners(plan, deleting=deleting),
        only=sql.SQL("" if partitioned else "ONLY "),
        target=plan.table.identifier,
        there=sql.Identifier(_THERE),
        same=_same(plan, _WINNERS, _THERE),
    )


def reset_kept() -> sql.Composable:
    """Reset the count."""
    return sql.SQL("SELECT pg_catalog.set_config({}, '0', true)").format(sql.Literal(KEPT_SETTING))


def count_kept() -> sql.Composable:
    """The rows kept out by guards since `reset_kept`."""
    return sql.SQL("SELECT pg_catalog.current_setting({})").format(sql.Literal(KEPT_SETTING))


def _texts(plan: ColumnPlan) -> sql.Composable:
    return sql.SQL(", ").join(sql.SQL("{}::text").format(sql.Identifier(key)) for key in plan.upsert_keys)


def _same(plan: ColumnPlan, one: str, other: str) -> sql.Composable:
    """SQL that is true for two rows of one key, none of it null; a domain cannot be compared with its base type."""
    types = {column.name: sql.SQL(column.target.stored_type) for column in plan.columns}
    left, right = (
        sql.SQL(", ").join(sql.SQL("{}::{}").format(sql.Identifier(it, key), types[key]) for key in plan.upsert_keys)
        for it in (one, other)
    )
    return sql.SQL("ROW({}) = ROW({})").format(left, right)


#: Sort memory for an upsert, unless the server allows more: with PostgreSQL's default of 4 MB rows are sorted on disk
#: (measured for 500 000 rows: 2.7 s of CPU instead of 3.6 s). Only as much is used as the rows need.
UPSERT_WORK_MEM_KB: Final = 64 * 1024

_SAVEPOINT: Final = sql.Identifier("_2pc_upsert")


class KeyedRows(TableRows):
    """Rows with new keys are inserted; the plan determines the treatment of the others. Each key is written once.

    PostgreSQL itself detects a key that the batch has twice if ON CONFLICT DO UPDATE writes every row, as it affects no
    row twice in one statement; only then are the keys searched. Otherwise they are searched first.

    Args:
        connection: connection inside the deciding transaction.
        plan: plan with upsert keys.
    """

    def __init__(self, connection: Connection, plan: ColumnPlan) -> None:
        super().__init__(connection, plan)
        self._deleting = self._deleted = self._written = self._partial = 0
        with self._connection.cursor() as cursor, refused_rows(plan.table):
            cursor.execute(gathered_ddl(plan))

    def copy(self, pieces: Iterable[Rows]) -> int:
        """See `TableRows.copy`."""
        return self._copy(pieces, gathered(self._plan))

    def delete(self) -> None:
        """See `TableRows.delete`."""
        plan = self._plan
        with self._connection.cursor() as cursor:
            _allow_sorting(cursor)
            if plan.delete is not None:
                self._deleting = count(cursor, count_winners(plan, deleting=True))
            if plan.conflict.unchanged:
                self._partial = count(cursor, count_winners(plan, deleting=False, whole=False))
            if self._deleting or self._partial or not plan.updated or plan.conflict.where is not None:
                _refuse_duplicates(cursor, plan)  # the write statement would silently skip some of them
            if self._deleting:
                with refused_rows(plan.table):
                    cursor.execute(delete_statement(plan, partitioned=self._tree.partitioned))
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
                # Perhaps other rows were deleted, or a conflicting insertion was undone: looking up the keys tells.
                self._refuse_missing(self._count_given(cursor), self._count_arrived(cursor))
            if self._deleting and tree.triggers:
                self._refuse_kept(self._count_in_table(cursor, deleting=True))
        return WrittenRows(given=rows, written=self._written, deleted=self._deleted, left_out=given - self._written)

    def forget(self) -> None:
        """See `TableRows.forget`."""
        super().forget()
        with self._connection.cursor() as cursor:
            cursor.execute(sql.SQL("DROP TABLE {}").format(gathered(self._plan).identifier))

    def _write(self, cursor: psycopg2.extensions.cursor) -> int:
        """Insert and update; returns the number of rows."""
        plan = self._plan
        if self._partial and plan.order is not None:
            for column in plan.conflict.unchanged:
                cursor.execute(complete_statement(plan, column))
            self._partial = count(cursor, count_winners(plan, deleting=False, whole=False))
        if self._counts_kept:
            cursor.execute(reset_kept())
        cursor.execute(sql.SQL("SAVEPOINT {}").format(_SAVEPOINT))
        try:
            with refused_rows(plan.table):
                cursor.execute(write_statement(plan, counting=self._counts_kept))
        except psycopg2.errors.CardinalityViolation:
            cursor.execute(sql.SQL("ROLLBACK TO SAVEPOINT {}").format(_SAVEPOINT))
            _refuse_duplicates(cursor, plan)
            raise  # not one of our keys: a trigger's own statement
        except psycopg2.errors.InvalidColumnReference as error:
            if error.diag.context:
                raise  # a trigger's own statement too
            raise altered_error(f"({', '.join(plan.upsert_keys)}) is no unique key any more") from error
        written = cursor.rowcount
        cursor.execute(sql.SQL("RELEASE SAVEPOINT {}").format(_SAVEPOINT))
        return written + self._update(cursor) if self._partial else written

    def _update(self, cursor: psycopg2.extensions.cursor) -> int:
        """Update with the rows that lack values; returns the number of rows."""
        plan, partitioned = self._plan, self._tree.partitioned
        with refused_rows(plan.table):
            cursor.execute(update_statement(plan, partitioned=partitioned))
        updated = cursor.rowcount
        if updated < self._partial:
            cursor.execute(missing_query(plan, partitioned=partitioned))
            if keys := _named_keys(plan, cursor.fetchall()):
                raise self._refused(
                    f"rows with {' and '.join(keys)} carry no value for some of {', '.join(plan.conflict.unchanged)} "
                    "(unchanged_when), and neither the table nor the batch has another row of their key to take it from"
                )
        return updated

    @property
    def _counts_kept(self) -> bool:
        """If both a guard of the plan and a trigger may keep rows out, the guard's rows are counted."""
        guarded = self._plan.conflict.where is not None or self._plan.late_rows is not None
        return guarded and self._tree.skipping_triggers

    def _check_written(self, cursor: psycopg2.extensions.cursor, tree: TableTree, given: int) -> None:
        """Check that every row is written, or left out for a reason in the plan.

        Rows are counted only if a trigger could have left one out: otherwise the table writes all rows, or fails; and
        with a million rows, counting takes a third of the time that the upsert itself takes.
        """
        plan = self._plan
        if plan.order is None and plan.updated and plan.conflict.where is None:
            self._refuse_missing(given, self._written)
        elif not tree.skipping_triggers:
            return
        elif not plan.updated:
            # DO NOTHING does not count existing keys, so every key is looked up.
            self._refuse_missing(self._count_given(cursor), self._count_arrived(cursor))
        elif self._tree.skipping_triggers:
            kept = count(cursor, count_kept()) if self._counts_kept else 0
            self._refuse_missing(self._count_given(cursor) - kept, self._written)
        else:
            raise BatchRetryError(reason=f"{plan.table} was given a partition with triggers during the batch")

    def _count_given(self, cursor: psycopg2.extensions.cursor) -> int:
        return count(cursor, count_winners(self._plan, deleting=False))

    def _count_arrived(self, cursor: psycopg2.extensions.cursor) -> int:
        return self._count_in_table(cursor, deleting=False)

    def _count_in_table(self, cursor: psycopg2.extensions.cursor, *, deleting: bool) -> int:
        return count(
            cursor,
            count_in_table(self._plan, deleting=deleting, partitioned=self._tree.partitioned),
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
    # If equal rows count as one, they are compared as texts: different numbers have different texts.
    cursor.execute("SET LOCAL extra_float_digits = 1")
    cursor.execute(duplicates_query(plan))
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
