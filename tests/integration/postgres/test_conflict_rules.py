"""Conflict rules: insert_ignore, update_columns and upsert_where, and the triggers that could hide behind them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from pyspark.sql import types as t

from spark_2pc_sink.errors import ConfigurationError, ConstraintError, DuplicateKeyError
from spark_2pc_sink.sink.job.table_loader import check_condition
from spark_2pc_sink.sink.report import WrittenRows
from spark_2pc_sink.sink.rows.conflict_rule import REPLACE, ConflictRule
from tests.integration.postgres.database_tables import (
    create,
    keyed,
    plan_of,
    put,
    rows,
    run,
    table,
    transaction,
    trigger,
)

LONG = t.LongType()
VERSIONS = {"id": LONG, "version": LONG, "note": t.StringType()}
IGNORE = ConflictRule(ignore=True)
NEWER = ConflictRule(where="orders.version < EXCLUDED.version  -- the table's own name")


def versions(url: str, *values: tuple[Any, ...], **planned: Any) -> WrittenRows:
    """Write rows of `VERSIONS`; behind them come the order and whether they delete."""
    return put(url, plan_of(url, VERSIONS, keys=["id"], **planned), *values)


def test_a_column_that_is_always_an_identity_is_written(database: str) -> None:
    """By COPY and by key; PostgreSQL updates none, and the remedy of the refusal works."""
    run(
        database,
        """CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, item text UNIQUE,
           twice bigint GENERATED ALWAYS AS (id * 2) STORED)""",
    )
    put(database, plan_of(database), (7, "a"))
    for conflict in (REPLACE, IGNORE):
        put(database, plan_of(database, keys=["id"], conflict=conflict), (7, "b"), (8, "c"))
    put(database, plan_of(database, keys=["id"], deletes=True), (8, None, True), (9, "d", False))
    assert table(database) == [(7, "b", 14), (9, "d", 18)]

    with pytest.raises(ConfigurationError, match="but not update it") as caught:
        plan_of(database, keys=["item"])
    run(database, caught.value.remedy.removeprefix("have the owner run: "))
    put(database, plan_of(database, keys=["item"]), (5, "b"))
    assert rows(database, "SELECT id FROM orders WHERE item = 'b'") == [(5,)]


# --- insert_ignore ---------------------------------------------------------------------------------------------------


def test_a_row_that_is_there_stays(database: str) -> None:
    plan = keyed(database, conflict=IGNORE)
    assert put(database, plan, (1, "a"), (2, "b")) == WrittenRows(given=2, written=2)
    assert put(database, plan, (2, "B"), (3, "c")) == WrittenRows(given=2, written=1, left_out=1)
    assert table(database) == [(1, "a"), (2, "b"), (3, "c")]


def test_equal_rows_of_a_batch_are_one_and_others_need_an_order(database: str) -> None:
    plan = keyed(database, conflict=IGNORE)
    done = put(database, plan, (1, "a"), (1, "a"), (2, None), (2, None))
    assert done == WrittenRows(given=4, written=2, left_out=2)
    with pytest.raises(DuplicateKeyError, match="with id=3;"):
        put(database, plan, (1, "x"), (3, "a"), (3, "b"))
    ordered = plan_of(database, keys=["id"], order=LONG, conflict=IGNORE)
    assert put(database, ordered, (3, "a", 1), (3, "b", 2)) == WrittenRows(given=2, written=1, left_out=1)
    assert table(database) == [(1, "a"), (2, None), (3, "b")]


def test_a_row_that_a_trigger_swallows_is_not_taken_for_one_that_was_there(database: str) -> None:
    plan = keyed(database, conflict=IGNORE)
    put(database, plan, (1, "a"))
    trigger(database, "BEFORE INSERT ON orders FOR EACH ROW WHEN (NEW.id = 2)", "RETURN NULL;")
    assert put(database, plan, (1, "x"), (3, "c")) == WrittenRows(given=2, written=1, left_out=1)
    with pytest.raises(ConstraintError, match="2 rows were written and 1 arrived: a trigger"):
        put(database, plan, (1, "x"), (2, "b"))


# --- update_columns --------------------------------------------------------------------------------------------------


def test_only_some_columns_are_updated(database: str) -> None:
    create(database, VERSIONS, keys=["id"])
    rule = ConflictRule(update_columns=("version",))
    versions(database, (1, 1, "first"), conflict=rule)
    done = versions(database, (1, 2, "second"), (2, 1, "new"), conflict=rule)
    assert done == WrittenRows(given=2, written=2)
    assert table(database) == [(1, 2, "first"), (2, 1, "new")]


@pytest.mark.parametrize(("column", "said"), [("nte", "not among the columns"), ("id", "an upsert key")])
def test_columns_that_a_rule_cannot_name(column: str, said: str) -> None:
    rules = {
        "update_columns": ConflictRule(update_columns=(column,)),
        "unchanged_when": ConflictRule(unchanged=(column,)),
    }
    for option, rule in rules.items():
        with pytest.raises(ConfigurationError, match=f"{option}=.*{said}"):
            rule.check(list(VERSIONS), ["id"])


def test_late_rows_need_the_column_that_tells_them() -> None:
    rule = ConflictRule(update_columns=("note",))
    rule.check(list(VERSIONS), ["id"])
    with pytest.raises(ConfigurationError, match="late rows are detected by column 'version'"):
        rule.check(list(VERSIONS), ["id"], order_column="version")


# --- unchanged_when --------------------------------------------------------------------------------------------------

LACKING = ConflictRule(unchanged=("version", "note"))


def test_a_row_without_a_value_keeps_the_newest(database: str) -> None:
    """That of the table, or of an older row of its batch; NOT NULL and domains hold for what is written."""
    run(
        database,
        "CREATE DOMAIN word AS text NOT NULL CHECK (VALUE <> '')",
        "CREATE TABLE orders (id bigint PRIMARY KEY, version bigint NOT NULL, note word) PARTITION BY RANGE (id)",
        "CREATE TABLE part PARTITION OF orders DEFAULT",
    )
    given: Mapping[str, Any] = {"conflict": LACKING, "order": LONG, "deletes": True}
    versions(database, *((number, 1, "a", 1, False, "00") for number in (1, 2, 3, 4)), **given)
    done = versions(
        database,
        (1, None, "A", 2, False, "10"),
        *[(2, 5, None, 2, False, "01"), (2, None, "B", 3, False, "10"), (2, None, None, 4, False, "11")],
        *[(3, None, None, 2, False, "11"), (3, None, None, 3, True, "00")],
        *[(5, 1, "e", 1, False, "00"), (5, None, None, 2, True, "00"), (5, None, None, 3, False, "11")],
        **given,
    )
    assert done == WrittenRows(given=9, written=3, deleted=1, left_out=5)
    assert table(database) == [(1, 1, "A"), (2, 5, "B"), (4, 1, "a"), (5, 1, "e")]
    with pytest.raises(ConstraintError, match="23502"):
        versions(database, (6, None, "f", 1, False, "00"), **given)


# --- upsert_where ----------------------------------------------------------------------------------------------------


def test_a_condition_says_which_rows_are_updated(database: str) -> None:
    create(database, VERSIONS, keys=["id"])
    versions(database, (1, 5, "a"), (2, 5, "b"), (3, None, "c"), conflict=NEWER)
    done = versions(database, (1, 6, "A"), (2, 4, "B"), (3, 1, "C"), (4, None, "d"), conflict=NEWER)
    assert done == WrittenRows(given=4, written=2, left_out=2)
    assert table(database) == [(1, 6, "A"), (2, 5, "b"), (3, None, "c"), (4, None, "d")]


def test_a_key_twice_is_refused_although_the_condition_would_hide_it(database: str) -> None:
    create(database, VERSIONS, keys=["id"])
    versions(database, (1, 5, "a"), conflict=NEWER)
    with pytest.raises(DuplicateKeyError, match="with id=1;"):
        versions(database, (1, 3, "x"), (1, 4, "y"), conflict=NEWER)


@pytest.mark.parametrize(("before", "key"), [("INSERT", 9), ("UPDATE", 2)])
def test_a_row_that_a_trigger_swallows_is_not_taken_for_one_that_the_condition_keeps_out(
    database: str, before: str, key: int
) -> None:
    create(database, VERSIONS, keys=["id"])
    versions(database, (1, 5, "a"), (2, 5, "b"), conflict=NEWER)
    trigger(database, f"BEFORE {before} ON orders FOR EACH ROW WHEN (NEW.note = 'skip')", "RETURN NULL;")
    done = versions(database, (1, 4, "A"), (2, 6, "B"), (3, 1, "c"), conflict=NEWER)
    assert done == WrittenRows(given=3, written=2, left_out=1)
    with pytest.raises(ConstraintError, match="1 rows were written and 0 arrived: a trigger"):
        versions(database, (1, 4, "A"), (key, 7, "skip"), conflict=NEWER)


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("orders.version <", "syntax error"),
        ("EXCLUDED.version", "must be type boolean"),
        ("true); DELETE FROM orders; SELECT (true", "single condition"),
    ],
)
def test_a_condition_that_is_none(database: str, where: str, said: str) -> None:
    create(database, VERSIONS, keys=["id"])
    run(database, "INSERT INTO orders VALUES (1)")
    plan = plan_of(database, VERSIONS, keys=["id"], conflict=ConflictRule(where=where))
    with pytest.raises(ConfigurationError, match=f"upsert_where=.*{said}"), transaction(database) as connection:
        check_condition(connection, plan)
    assert rows(database, "SELECT id FROM orders") == [(1,)]
