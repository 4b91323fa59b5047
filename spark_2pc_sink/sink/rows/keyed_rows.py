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
from spark_2pc_sink.sink.rows.column_plan import BYTE_ORDERED
from spark_2pc_sink.sink.rows.copy_encoder import DELETE_COLUMN, UNCHANGED_COLUMN
from spark_2pc_sink.sink.rows.refused_rows import refused_rows
from spark_2pc_sink.sink.rows.table_copy import TableRows, altered_error, count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from spark_2pc_sink.sink.rows.catalog import TableTree, TargetColumn
    from spark_2pc_sink.sink.rows.column_plan import ColumnPlan


#: Keys named in a message.
SHOWN_KEYS_MAX: Final = 5
#: Sort memory for an upsert, unless the server allows more: with PostgreSQL's default of 4 MB rows are sorted on disk
#: (measured for 500 000 rows: 2.7 s of CPU instead of 3.6 s). Only as much is used as the rows need.
UPSERT_WORK_MEM_KB: Final = 64 * 1024

#: Counts the rows that guards skip during the rest of the transaction.
SKIPPED_SETTING: Final = "spark_2pc_sink.skipped"
# ON CONFLICT evaluates this once for each row whose key exists, after locking that row. Only here is it visible whether
# a row was skipped: earlier triggers may have changed values that the guard compares, or may drop the row later.
_COUNTED: Final = (
    "CASE WHEN {guard} THEN true ELSE set_config({name}, (current_setting({name})::bigint + 1)::text, true) IS NULL END"
)
_EXCLUDED: Final = "excluded"
_FLAGS: Final = sql.Identifier(UNCHANGED_COLUMN)
_SAVEPOINT: Final = sql.Identifier("_2pc_upsert")

# Aliases: `there` is a row of the target, `winners` are the rows of the batch that are to be written.
_COUNT: Final = "SELECT count(*) FROM {counted}"
_IN_TARGET: Final = " WHERE EXISTS (SELECT FROM {only}{target} AS there WHERE {same})"
_MISSING: Final = (
    "SELECT {texts} FROM {incomplete} WHERE NOT EXISTS (SELECT FROM {only}{target} AS there WHERE {same}) "
    "ORDER BY {keys} LIMIT {most}"
)
_DUPLICATES: Final = (
    "SELECT {texts} FROM {source} GROUP BY {keys} HAVING count(*) > 1{differing} ORDER BY {keys} LIMIT {most}"
)
_DELETE: Final = "DELETE FROM {only}{target} AS there USING {deleting} WHERE {same}"
# An INSERT would need all values.
_UPDATE: Final = "UPDATE {only}{target} AS there SET {assignments} FROM {incomplete} WHERE {same}"
# Rows of the batch that lack a column's value get the newest one that the batch has for their key.
_COMPLETE: Final = (
    "UPDATE {staging} AS winners SET {column} = there.{column}, "
    "{flags} = pg_catalog.overlay({flags}, '0', {place}) "
    "FROM (SELECT DISTINCT ON ({keys}) {keys}, {column} FROM {staging} "
    "WHERE pg_catalog.substr({flags}, {place}, 1) = '0'{kept} ORDER BY {keys}, {order} DESC NULLS LAST) AS there "
    "WHERE pg_catalog.substr({flags}, {place}, 1) = '1' AND {same}"
)


def staging_table(plan: ColumnPlan) -> SqlTableName:
    """It exists until the transaction ends."""
    return SqlTableName(name=f"_2pc_upsert_{plan.lane}" if plan.lane else "_2pc_upsert", schema="pg_temp")


def _staging_ddl(plan: ColumnPlan) -> sql.Composable:
    """A table with the columns that tasks encode, with the target's types and collations.

    A deleting row has only its key, and one may lack other values (``unchanged_when``). If there are such rows, columns
    of domains, which may reject null, have their base types: the domain checks only rows that are written.
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
        staging_table(plan).identifier, sql.SQL(", ").join(named), sql.SQL("").join(own), plan.table.identifier
    )


def target_alias(plan: ColumnPlan) -> str:
    """Alias of the row in the table: the table's name, for a user's condition, unless that is the other row's."""
    return "there" if plan.conflict.where is None or plan.table.name == _EXCLUDED else plan.table.name


def _winners(plan: ColumnPlan, *, deleting: bool | None = None, complete: bool | None = None) -> sql.Composable:
    """The rows that may be written, as a table of a FROM clause.

    They are compared by order keys (`copy_encoder.order_keys`), which have one order everywhere. ``deleting`` chooses
    those that delete a row, or that do not, ``complete`` those that carry every value, or not (``unchanged_when``).
    """
    staging = staging_table(plan).identifier
    conditions: list[sql.Composable] = []
    source: sql.Composable = staging
    if plan.order is not None:
        source = sql.SQL(
            "(SELECT *, rank() OVER (PARTITION BY {keys} ORDER BY {order} DESC NULLS LAST) AS _2pc_rank "
            "FROM {source}) AS ranked"
        ).format(keys=identifiers(plan.upsert_keys), order=sql.Identifier(plan.order.name), source=staging)
        conditions.append(sql.SQL("_2pc_rank = 1"))
    if plan.delete is not None and deleting is not None:
        conditions.append(sql.SQL("" if deleting else "NOT ") + sql.Identifier(plan.delete.name))
    if plan.conflict.unchanged and complete is not None:
        conditions.append(sql.SQL("pg_catalog.strpos({}, '1') {} 0").format(_FLAGS, sql.SQL("=" if complete else ">")))
    if not conditions:
        return source + sql.SQL(" AS winners")
    columns = [name for name in plan.copied_names if plan.order is None or name != plan.order.name]
    return sql.SQL("(SELECT {} FROM {} WHERE {}) AS winners").format(
        identifiers(columns), source, sql.SQL(" AND ").join(conditions)
    )


def _write_statement(
    plan: ColumnPlan, *, counting: bool = False, source: sql.Composable | None = None
) -> sql.Composable:
    """Insert the winners that do not delete, or ``source``, in key order, and update existing rows as planned.

    With ``counting`` the rows that the plan's guards skip are counted, see `SKIPPED_SETTING`.
    """
    there = target_alias(plan)
    update = sql.SQL(", ").join(sql.SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(name)) for name in plan.updated)
    guards: list[sql.Composable] = []
    if plan.late_by is not None:
        guards.append(_not_older(plan.late_by, there))
    if plan.conflict.where is not None:
        # A newline follows: the condition may end with a comment.
        guards.append(sql.SQL("({}\n)").format(sql.SQL(plan.conflict.where)))
    guard = sql.SQL(" AND ").join(guards)
    if counting:
        guard = sql.SQL(_COUNTED).format(guard=guard, name=sql.Literal(SKIPPED_SETTING))
    where = sql.SQL(" WHERE {}").format(guard) if guards else sql.SQL("")
    return sql.SQL(
        "INSERT INTO {target} AS {there} ({columns}) OVERRIDING SYSTEM VALUE "
        "SELECT {columns} FROM {source} ORDER BY {keys} ON CONFLICT ({keys}) {action}"
    ).format(
        target=plan.table.identifier,
        there=sql.Identifier(there),
        columns=identifiers(plan.names),
        source=_winners(plan, deleting=False, complete=True) if source is None else source,
        keys=identifiers(plan.upsert_keys),
        action=sql.SQL("DO UPDATE SET {}{}").format(update, where) if plan.updated else sql.SQL("DO NOTHING"),
    )


def _not_older(column: TargetColumn, there: str) -> sql.Composable:
    """True if the new row may replace ``there``, the one in the table: it is as new, or newer.

    Null is less than any value, as among the rows of a batch. The result may be null instead of false.
    """
    collated = sql.SQL(' COLLATE pg_catalog."C"') if column.base_type in BYTE_ORDERED else sql.SQL("")
    return sql.SQL("({there} IS NULL OR {given}{collated} >= {there}{collated})").format(
        given=sql.Identifier(_EXCLUDED, column.name), there=sql.Identifier(there, column.name), collated=collated
    )


def explain_statement(plan: ColumnPlan) -> sql.Composable:
    """Have PostgreSQL plan the write statement for no rows, without executing it."""
    nothing = sql.SQL("(SELECT {} FROM {} LIMIT 0) AS winners").format(identifiers(plan.names), plan.table.identifier)
    return sql.SQL("EXPLAIN ") + _write_statement(plan, source=nothing)


def _same_key(plan: ColumnPlan) -> sql.Composable:
    """True for a winner and a row with its key, none of it null; a domain cannot be compared with its base type."""
    types = {column.name: sql.SQL(column.target.stored_type) for column in plan.columns}
    left, right = (
        sql.SQL(", ").join(sql.SQL("{}::{}").format(sql.Identifier(row, key), types[key]) for key in plan.upsert_keys)
        for row in ("winners", "there")
    )
    return sql.SQL("ROW({}) = ROW({})").format(left, right)


class KeyedRows(TableRows):
    """Rows with new keys are inserted; the plan determines the treatment of the others. Each key is written once.

    PostgreSQL itself detects a key that the batch has twice if ON CONFLICT DO UPDATE writes every row, as it affects no
    row twice in one statement; only then are the keys searched. Otherwise they are searched first.
    """

    def __init__(self, connection: Connection, plan: ColumnPlan) -> None:
        super().__init__(connection, plan, collects=staging_table(plan))
        self._deleting = self._deleted = self._written = self._incomplete = 0
        with self._connection.cursor() as cursor, refused_rows(plan.table):
            cursor.execute(_staging_ddl(plan))

    def delete(self) -> None:
        plan = self._plan
        with self._connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_catalog.set_config('work_mem', %s, true) FROM pg_catalog.pg_settings "
                "WHERE name = 'work_mem' AND setting::bigint < %s",
                (f"{UPSERT_WORK_MEM_KB}kB", UPSERT_WORK_MEM_KB),
            )
            if plan.delete is not None:
                self._deleting = self._count(cursor, deleting=True)
            if plan.conflict.unchanged:
                self._incomplete = self._count(cursor, deleting=False, complete=False)
            if self._deleting or self._incomplete or not plan.updated or plan.conflict.where is not None:
                self._refuse_duplicates(cursor)  # the write statement would silently skip some of them
            if self._deleting:
                with refused_rows(plan.table):
                    cursor.execute(self._sql(_DELETE, deleting=_winners(plan, deleting=True)))
                self._deleted = cursor.rowcount

    def write(self) -> None:
        plan = self._plan
        with self._connection.cursor() as cursor:
            if self._incomplete and plan.order is not None:
                kept = sql.SQL("" if plan.delete is None else " AND NOT {}").format(sql.Identifier(DELETE_COLUMN))
                parts = {"kept": kept, "order": sql.Identifier(plan.order.name)}
                for place, name in enumerate(plan.conflict.unchanged, start=1):
                    column, at = sql.Identifier(name), sql.Literal(place)
                    cursor.execute(self._sql(_COMPLETE, **parts, column=column, place=at))
                self._incomplete = self._count(cursor, deleting=False, complete=False)
            if self._counts_skipped:
                cursor.execute("SELECT pg_catalog.set_config(%s, '0', true)", (SKIPPED_SETTING,))
            cursor.execute(sql.SQL("SAVEPOINT {}").format(_SAVEPOINT))
            try:
                with refused_rows(plan.table):
                    cursor.execute(_write_statement(plan, counting=self._counts_skipped))
            except psycopg2.errors.CardinalityViolation:
                cursor.execute(sql.SQL("ROLLBACK TO SAVEPOINT {}").format(_SAVEPOINT))
                self._refuse_duplicates(cursor)
                raise  # not one of our keys: a trigger's own statement
            except psycopg2.errors.InvalidColumnReference as error:
                if error.diag.context:
                    raise  # a trigger's own statement too
                raise altered_error(f"({', '.join(plan.upsert_keys)}) is no longer a unique key") from error
            self._written = cursor.rowcount
            cursor.execute(sql.SQL("RELEASE SAVEPOINT {}").format(_SAVEPOINT))
            if self._incomplete:
                self._written += self._update(cursor)

    def finish(self, rows: int) -> WrittenRows:
        given = rows - self._deleting
        with self._connection.cursor() as cursor:
            tree = self._reread_tree(cursor)
            self._check_written(cursor, tree, given)
            if tree is not self._tree and tree.may_have_lost(self._tree, self._deleted):
                # Perhaps other rows were deleted, or a conflicting insertion was undone: looking up the keys tells.
                self._look_up_keys(cursor)
            if self._deleting and tree.triggers and (there := self._count(cursor, deleting=True, in_target=True)):
                raise self._refused(
                    f"{there} rows that were to be deleted are still there: a trigger of the table prevents the "
                    "deletion, or inserts rows again"
                )
        return WrittenRows(given=rows, written=self._written, deleted=self._deleted, left_out=given - self._written)

    def forget(self) -> None:
        super().forget()
        with self._connection.cursor() as cursor:
            cursor.execute(sql.SQL("DROP TABLE {}").format(self._into.identifier))

    def _sql(self, statement: str, **parts: sql.Composable) -> sql.Composable:
        plan = self._plan
        keys = sql.SQL(", ").join(sql.SQL("{}::text").format(sql.Identifier(key)) for key in plan.upsert_keys)
        return sql.SQL(statement).format(
            # If the target is partitioned, rows are in its partitions; tables that inherit from a plain one are others.
            only=sql.SQL("" if self._tree.partitioned else "ONLY "),
            target=plan.table.identifier,
            staging=self._into.identifier,
            same=_same_key(plan),
            keys=identifiers(plan.upsert_keys),
            texts=keys,
            most=sql.Literal(SHOWN_KEYS_MAX),
            flags=_FLAGS,
            incomplete=_winners(plan, deleting=False, complete=False),
            **parts,
        )

    def _count(
        self,
        cursor: psycopg2.extensions.cursor,
        *,
        deleting: bool,
        complete: bool | None = None,
        in_target: bool = False,
    ) -> int:
        """Count winners, or those whose keys are in the table; one changed by a trigger is missing.

        A separate statement: counting within the INSERT, by a WITH, took longer, and every batch would incur the cost.
        """
        counted = _winners(self._plan, deleting=deleting, complete=complete)
        return count(cursor, self._sql(_COUNT + _IN_TARGET if in_target else _COUNT, counted=counted))

    def _look_up_keys(self, cursor: psycopg2.extensions.cursor) -> None:
        arrived = self._count(cursor, deleting=False, in_target=True)
        self._refuse_missing(self._count(cursor, deleting=False), arrived)

    def _update(self, cursor: psycopg2.extensions.cursor) -> int:
        """Update with the rows that lack values."""
        plan = self._plan
        places = {name: place for place, name in enumerate(plan.conflict.unchanged, start=1)}
        assignments = [
            sql.SQL(
                "{0} = CASE WHEN pg_catalog.substr({1}, {2}, 1) = '1' THEN there.{0} ELSE winners.{0} END"
                if name in places
                else "{0} = winners.{0}"
            ).format(sql.Identifier(name), _FLAGS, sql.Literal(places.get(name)))
            for name in plan.updated
        ]
        with refused_rows(plan.table):
            cursor.execute(self._sql(_UPDATE, assignments=sql.SQL(", ").join(assignments)))
        updated = cursor.rowcount
        if updated < self._incomplete:
            cursor.execute(self._sql(_MISSING))
            if keys := self._named_keys(cursor.fetchall()):
                raise self._refused(
                    f"rows with {' and '.join(keys)} have no value for some of {', '.join(plan.conflict.unchanged)} "
                    "(unchanged_when), and neither the table nor the batch has another row with their key to take it "
                    "from"
                )
        return updated

    @property
    def _counts_skipped(self) -> bool:
        """If both a guard of the plan and a trigger may skip rows, those of the guard are counted."""
        guarded = self._plan.conflict.where is not None or self._plan.late_by is not None
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
            self._look_up_keys(cursor)
        elif self._tree.skipping_triggers:
            skipped = 0
            if self._counts_skipped:
                query = sql.SQL("SELECT pg_catalog.current_setting({})").format(sql.Literal(SKIPPED_SETTING))
                skipped = count(cursor, query)
            self._refuse_missing(self._count(cursor, deleting=False) - skipped, self._written)
        else:
            raise BatchRetryError(reason=f"a partition with triggers was attached to {plan.table} during the batch")

    def _refuse_duplicates(self, cursor: psycopg2.extensions.cursor) -> None:
        """Name the first keys that more than one winner has, if there are any.

        If an existing row stays, equal rows count as one: whichever is written, the table is the same. They are
        compared as texts: different numbers have different texts.
        """
        plan, source = self._plan, _winners(self._plan)
        differing: sql.Composable = sql.SQL("")
        if plan.conflict.ignore:
            row = sql.SQL(", ").join(sql.Identifier("winners", name) for name in plan.names)
            differing = sql.SQL(" AND count(DISTINCT ROW({})::text) > 1").format(row)
            twice = "{0} JOIN (SELECT {1} FROM {0} GROUP BY {1} HAVING count(*) > 1) AS twice USING ({1})"
            source = sql.SQL(twice).format(source, identifiers(plan.upsert_keys))
        cursor.execute("SET LOCAL extra_float_digits = 1")
        cursor.execute(self._sql(_DUPLICATES, source=source, differing=differing))
        if found := cursor.fetchall():
            keys, tied = self._named_keys(found), plan.order is not None
            raise DuplicateKeyError(table=str(plan.table), key_columns=plan.upsert_keys, keys=keys, tied=tied)

    def _named_keys(self, found: Sequence[Sequence[str]]) -> tuple[str, ...]:
        names = self._plan.upsert_keys
        return tuple(", ".join(f"{key}={value}" for key, value in zip(names, row, strict=True)) for row in found)
