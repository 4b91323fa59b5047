"""Conflict rules: insert_ignore, update_columns and upsert_where, and the triggers that could hide behind them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from pyspark.sql import types as t

from spark_2pc_sink.errors import ConfigurationError, ConstraintError, DuplicateKeyError
from spark_2pc_sink.sink.table.column_plan import ColumnPlan
from spark_2pc_sink.sink.table.condition_check import check_condition
from spark_2pc_sink.sink.table.conflict_rule import ConflictRule
from spark_2pc_sink.sink.table.privileges import check_privileges
from spark_2pc_sink.sink.written_rows import WrittenRows
from tests.integration.postgres.database_tables import (
    ORDERS,
    create,
    orders,
    plan_of,
    rows,
    run,
    stream,
    transaction,
    write_by_key,
)

LONG = t.LongType()
VERSIONS = {"id": LONG, "version": LONG, "note": t.StringType()}
IGNORE = ConflictRule(ignore=True)
NEWER = ConflictRule(where="orders.version < EXCLUDED.version  -- the table's own name")


def ignoring(url: str, *, order: t.DataType | None = None) -> ColumnPlan:
    create(url, ORDERS, keys=["id"])
    return plan_of(url, keys=["id"], order=order, conflict=IGNORE)


def put(url: str, plan: ColumnPlan, *values: tuple[Any, ...]) -> WrittenRows:
    with transaction(url) as connection:
        return write_by_key(connection, plan, [orders(plan, value) for value in values])


def table(url: str) -> list[tuple[Any, ...]]:
    return rows(url, "SELECT * FROM orders ORDER BY id")


def versions(
    url: str, *values: tuple[Any, ...], conflict: ConflictRule, order: t.DataType | None = None, deletes: bool = False
) -> WrittenRows:
    """Write rows of `VERSIONS`; behind them come the order and whether they delete."""
    plan = plan_of(url, VERSIONS, keys=["id"], order=order, deletes=deletes, conflict=conflict)
    columns = [
        pa.array(column, planned.arrow_type)
        for column, planned in zip(zip(*values, strict=True), plan.copied, strict=True)
    ]
    with transaction(url) as connection:
        batch = pa.record_batch(columns, names=list(plan.copied_names))
        return write_by_key(connection, plan, [stream(plan, batch)])


def trigger(url: str, condition: str, *, before: str, action: str = "RETURN NULL") -> None:
    run(
        url,
        f"CREATE FUNCTION act() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {action}; END $$",
        f"CREATE TRIGGER act BEFORE {before} ON orders FOR EACH ROW WHEN ({condition}) EXECUTE FUNCTION act()",
    )


# --- insert_ignore ---------------------------------------------------------------------------------------------------


def test_a_row_that_is_there_stays(database: str) -> None:
    plan = ignoring(database)
    assert put(database, plan, (1, "a"), (2, "b")) == WrittenRows(given=2, written=2)
    assert put(database, plan, (2, "B"), (3, "c")) == WrittenRows(given=2, written=1, left_out=1)
    assert table(database) == [(1, "a"), (2, "b"), (3, "c")]


def test_equal_rows_of_a_batch_are_one_and_others_need_an_order(database: str) -> None:
    plan = ignoring(database)
    done = put(database, plan, (1, "a"), (1, "a"), (2, None), (2, None))
    assert done == WrittenRows(given=4, written=2, left_out=2)
    with pytest.raises(DuplicateKeyError, match="with id=3;"):
        put(database, plan, (1, "x"), (3, "a"), (3, "b"))
    ordered = plan_of(database, keys=["id"], order=LONG, conflict=IGNORE)
    assert put(database, ordered, (3, "a", 1), (3, "b", 2)) == WrittenRows(given=2, written=1, left_out=1)
    assert table(database) == [(1, "a"), (2, None), (3, "b")]


def test_another_unique_column_is_not_ignored(database: str) -> None:
    """Only a row with the same keys is the same row."""
    run(database, "CREATE TABLE orders (id bigint PRIMARY KEY, item text UNIQUE)")
    plan = plan_of(database, keys=["id"], conflict=IGNORE)
    put(database, plan, (1, "a"))
    with pytest.raises(ConstraintError, match=r"\(constraint orders_item_key\)"):
        put(database, plan, (2, "a"))


def test_a_row_that_a_trigger_swallows_is_not_taken_for_one_that_was_there(database: str) -> None:
    plan = ignoring(database)
    put(database, plan, (1, "a"))
    trigger(database, "NEW.id = 2", before="INSERT")
    assert put(database, plan, (1, "x"), (3, "c")) == WrittenRows(given=2, written=1, left_out=1)
    with pytest.raises(ConstraintError, match="2 rows were given to it and 1 arrived: a trigger"):
        put(database, plan, (1, "x"), (2, "b"))


# --- update_columns --------------------------------------------------------------------------------------------------


def test_only_some_columns_are_updated(database: str) -> None:
    create(database, VERSIONS, "orders", keys=["id"])
    rule = ConflictRule(update_columns=("version",))
    versions(database, (1, 1, "first"), conflict=rule)
    done = versions(database, (1, 2, "second"), (2, 1, "new"), conflict=rule)
    assert done == WrittenRows(given=2, written=2)
    assert table(database) == [(1, 2, "first"), (2, 1, "new")]


@pytest.mark.parametrize(("column", "said"), [("nte", "not among the columns"), ("id", "an upsert key")])
def test_columns_that_cannot_be_updated(database: str, column: str, said: str) -> None:
    create(database, VERSIONS, "orders", keys=["id"])
    with pytest.raises(ConfigurationError, match=f"update_columns=.*{said}"):
        plan_of(database, VERSIONS, keys=["id"], conflict=ConflictRule(update_columns=(column,)))


def test_late_rows_need_the_column_that_tells_them() -> None:
    rule = ConflictRule(update_columns=("note",))
    rule.check(["id", "version", "note"], ["id"])
    with pytest.raises(ConfigurationError, match="column 'version' tells late rows"):
        rule.check(["id", "version", "note"], ["id"], order_column="version")


def test_the_privilege_is_asked_for_what_is_updated(database: str) -> None:
    create(database, VERSIONS, "orders", keys=["id"])
    run(database, "DROP ROLE IF EXISTS updater", "CREATE ROLE updater")
    try:
        run(database, "GRANT SELECT, INSERT, UPDATE (note) ON orders TO updater")
        for name, granted in (("note", True), ("version", False)):
            plan = plan_of(database, VERSIONS, keys=["id"], conflict=ConflictRule(update_columns=(name,)))
            with transaction(database, commit=False) as connection:
                connection.exec_driver_sql("SET LOCAL ROLE updater")
                if granted:
                    check_privileges(connection, plan)
                    continue
                with pytest.raises(ConfigurationError, match=r"lacks UPDATE, which mode='upsert' needs"):
                    check_privileges(connection, plan)
    finally:
        run(database, "DROP OWNED BY updater", "DROP ROLE updater")


# --- upsert_where ----------------------------------------------------------------------------------------------------


def test_a_condition_says_which_rows_are_updated(database: str) -> None:
    create(database, VERSIONS, "orders", keys=["id"])
    versions(database, (1, 5, "a"), (2, 5, "b"), (3, None, "c"), conflict=NEWER)
    done = versions(database, (1, 6, "A"), (2, 4, "B"), (3, 1, "C"), (4, None, "d"), conflict=NEWER)
    assert done == WrittenRows(given=4, written=2, left_out=2)
    assert table(database) == [(1, 6, "A"), (2, 5, "b"), (3, None, "c"), (4, None, "d")]


@pytest.mark.parametrize("rows_of_one_key", [[(1, 7, "x"), (1, 4, "y")], [(1, 3, "x"), (1, 4, "y")]])
def test_a_key_twice_is_refused_although_the_condition_would_hide_it(
    database: str, rows_of_one_key: list[tuple[Any, ...]]
) -> None:
    create(database, VERSIONS, "orders", keys=["id"])
    versions(database, (1, 5, "a"), conflict=NEWER)
    with pytest.raises(DuplicateKeyError, match="with id=1;"):
        versions(database, *rows_of_one_key, conflict=NEWER)


def test_with_an_order_and_deletions(database: str) -> None:
    create(database, VERSIONS, "orders", keys=["id"])
    given: Mapping[str, Any] = {"conflict": NEWER, "order": LONG, "deletes": True}
    versions(database, (1, 5, "a", 1, False), (2, 5, "b", 1, False), (3, 5, "c", 1, False), **given)
    done = versions(
        database,
        *[(1, 9, "lost", 1, False), (1, 4, "won", 2, False), (2, 9, "B", 2, False), (3, None, None, 3, True)],
        **given,
    )
    assert done == WrittenRows(given=4, written=1, deleted=1, left_out=2)
    assert table(database) == [(1, 5, "a"), (2, 9, "B")]


@pytest.mark.parametrize(("before", "key"), [("INSERT", 9), ("UPDATE", 2)])
def test_a_row_that_a_trigger_swallows_is_not_taken_for_one_that_the_condition_keeps_out(
    database: str, before: str, key: int
) -> None:
    create(database, VERSIONS, "orders", keys=["id"])
    versions(database, (1, 5, "a"), (2, 5, "b"), conflict=NEWER)
    trigger(database, "NEW.note = 'skip'", before=before)
    done = versions(database, (1, 4, "A"), (2, 6, "B"), (3, 1, "c"), conflict=NEWER)
    assert done == WrittenRows(given=3, written=2, left_out=1)
    with pytest.raises(ConstraintError, match="1 rows were given to it and 0 arrived: a trigger"):
        versions(database, (1, 4, "A"), (key, 7, "skip"), conflict=NEWER)


def test_a_trigger_that_changes_what_the_condition_reads_is_in_nobody_s_way(database: str) -> None:
    create(database, VERSIONS, "orders", keys=["id"])
    trigger(database, "true", before="INSERT OR UPDATE", action="NEW.version := 0; RETURN NEW")
    versions(database, (1, 1, "a"), (2, 1, "b"), conflict=NEWER)
    assert versions(database, (1, 9, "A"), (2, 0, "B"), (3, 1, "c"), conflict=NEWER).left_out == 2
    assert table(database) == [(1, 0, "a"), (2, 0, "b"), (3, 0, "c")]


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("orders.version <", "syntax error"),
        ("version > 1", "ambiguous"),
        ("there.version > 1", 'missing FROM-clause entry for table "there"'),
        ("orders.vershion > 1", "column orders.vershion does not exist"),
        ("EXCLUDED.version", "must be type boolean"),
        ("true); DELETE FROM orders; SELECT (true", "one condition"),
    ],
)
def test_a_condition_that_is_none(database: str, where: str, said: str) -> None:
    create(database, VERSIONS, "orders", keys=["id"])
    run(database, "INSERT INTO orders VALUES (1)")
    plan = plan_of(database, VERSIONS, keys=["id"], conflict=ConflictRule(where=where))
    with pytest.raises(ConfigurationError, match=f"upsert_where=.*{said}"), transaction(database) as connection:
        check_condition(connection, plan)
    assert rows(database, "SELECT id FROM orders") == [(1,)]


def test_a_condition_is_checked_and_not_carried_out(database: str) -> None:
    create(database, VERSIONS, "orders", keys=["id"])
    run(database, "INSERT INTO orders VALUES (1, 1)")
    with transaction(database) as connection:
        check_condition(connection, plan_of(database, VERSIONS, keys=["id"]))
        check_condition(connection, plan_of(database, VERSIONS, keys=["id"], conflict=NEWER))
        assert connection.execute(sa.text("SELECT version FROM orders")).scalar() == 1


@pytest.mark.parametrize("name", ["winners", "ranked", "written", "there", "%s"])
def test_tables_with_the_names_of_aliases(database: str, name: str) -> None:
    quoted = f'"{name}"'
    create(database, VERSIONS, quoted, keys=["id"])
    rule = ConflictRule(where=f"{quoted}.version < EXCLUDED.version")
    plan = plan_of(database, VERSIONS, quoted, keys=["id"], order=LONG, deletes=True, conflict=rule)
    run(
        database,
        "CREATE FUNCTION pass() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$",
        f"CREATE TRIGGER pass BEFORE UPDATE ON {quoted} FOR EACH ROW EXECUTE FUNCTION pass()",
    )
    for version, written in ((5, 1), (4, 0), (6, 1)):
        columns = [
            pa.array([value], planned.arrow_type)
            for value, planned in zip((1, version, "", 1, False), plan.copied, strict=True)
        ]
        with transaction(database) as connection:
            batch = pa.record_batch(columns, names=list(plan.copied_names))
            assert write_by_key(connection, plan, [stream(plan, batch)]).written == written


@pytest.mark.parametrize("child", ["INSERT INTO child VALUES (NEW.*);", ""], ids=["put there", "there before"])
def test_a_row_of_a_child_is_no_row_of_the_table(database: str, child: str) -> None:
    """C17: a trigger leaves a row out, and one of its key is in a table that inherits from the target."""
    plan = ignoring(database)
    run(
        database,
        "CREATE TABLE child () INHERITS (orders)",
        "INSERT INTO child VALUES (9, 'old')",
        f"CREATE FUNCTION act() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {child} RETURN NULL; END $$",
        "CREATE TRIGGER act BEFORE INSERT ON orders FOR EACH ROW WHEN (NEW.id = 9) EXECUTE FUNCTION act()",
    )
    with pytest.raises(ConstraintError, match="2 rows were given to it and 1 arrived"):
        put(database, plan, (1, "a"), (9, "b"))
    assert rows(database, "SELECT id FROM ONLY orders") == []


def test_rows_are_equal_with_all_their_digits(database: str) -> None:
    """Whatever digits the database, or the role, has for the texts of numbers."""
    run(
        database,
        "CREATE TABLE orders (id bigint PRIMARY KEY, size double precision)",
        f'ALTER DATABASE "{sa.make_url(database).database}" SET extra_float_digits = -10',
    )
    plan = plan_of(database, {"id": LONG, "size": t.DoubleType()}, keys=["id"], conflict=IGNORE)
    with pytest.raises(DuplicateKeyError, match="id=1"):
        put(database, plan, (1, 0.1234567890123), (1, 0.1234567899999))
    assert put(database, plan, (1, 0.1), (1, 0.1)).written == 1
