"""Deletes: a row of the batch removes the row of its key, and the last event of a key decides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import types as t

from spark_2pc_sink.errors import ConfigurationError, ConstraintError, DuplicateKeyError, UnstorableValueError
from spark_2pc_sink.sink.report import WrittenRows
from spark_2pc_sink.sink.rows.catalog import read_target
from spark_2pc_sink.sink.rows.column_plan import ColumnPlan
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
KEEP, GONE = False, True


def deleting(url: str, fields: Mapping[str, t.DataType] = ORDERS, *, order: t.DataType | None = LONG) -> ColumnPlan:
    return plan_of(url, fields, keys=["id"], order=order, deletes=True)


def keyed(url: str, *, order: t.DataType | None = LONG) -> ColumnPlan:
    create(url, ORDERS, keys=["id"])
    return deleting(url, order=order)


def put(url: str, plan: ColumnPlan, *values: tuple[Any, ...]) -> WrittenRows:
    with transaction(url) as connection:
        return write_by_key(connection, plan, [orders(plan, value) for value in values])


def table(url: str) -> list[tuple[Any, ...]]:
    return rows(url, "SELECT id, item FROM orders ORDER BY id")


def test_a_deletion_and_a_row_that_nothing_tells_apart_are_refused(database: str) -> None:
    plan = keyed(database)
    with pytest.raises(DuplicateKeyError, match="id=1"):
        put(database, plan, (1, "a", 5, KEEP), (1, "", 5, GONE))
    assert table(database) == []


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=12)
@given(
    batches=st.lists(
        st.dictionaries(
            st.tuples(st.integers(0, 3), st.integers(0, 5)),
            st.tuples(st.text("ab", max_size=2), st.booleans()),
            min_size=1,
            max_size=8,
        ),
        min_size=1,
        max_size=4,
    )
)
def test_upserts_and_deletions_are_a_dictionary(
    database: str, batches: list[dict[tuple[int, int], tuple[str, bool]]]
) -> None:
    """Against a dict that takes the events of each batch in their order."""
    run(database, "DROP TABLE IF EXISTS orders")
    plan = keyed(database)
    expected: dict[int, str] = {}
    for batch in batches:
        before = dict(expected)
        for (key, _), (item, gone) in sorted(batch.items(), key=lambda event: event[0][1]):
            expected.pop(key, None)
            if not gone:
                expected[key] = item
        done = put(database, plan, *((key, item, order, gone) for (key, order), (item, gone) in batch.items()))
        keys = {key for key, _ in batch}
        assert dict(table(database)) == expected
        assert done.written == len(keys & expected.keys())
        assert done.deleted == len((keys & before.keys()) - expected.keys())
        assert done.left_out == len(batch) - len(keys)


def test_the_event_of_a_deletion_need_not_have_values(database: str) -> None:
    """Debezium's has none, and a table may want them; other rows are checked as ever."""
    run(database, "CREATE TABLE orders (id bigint PRIMARY KEY, item varchar(3) NOT NULL, tags text[] NOT NULL)")
    plan = deleting(database, {**ORDERS, "tags": t.ArrayType(t.StringType())}, order=None)

    def batch(*events: tuple[int, str | None, list[str] | None, bool]) -> list[bytes]:
        ids, items, tags, gone = zip(*events, strict=True)
        columns = [
            pa.array(ids, pa.int64()),
            pa.array(items, pa.string()),
            pa.array(tags, pa.list_(pa.string())),
            pa.array(gone),
        ]
        return stream(plan, pa.record_batch(columns, names=list(plan.copied_names)))

    with transaction(database) as connection:
        write_by_key(connection, plan, [batch((1, "abc", ["x"], KEEP), (2, "b", [], KEEP))])
    with transaction(database) as connection:
        write_by_key(
            connection, plan, [batch((1, None, None, GONE), (2, "far too long", [], GONE), (3, "c", [], KEEP))]
        )
    assert rows(database, "SELECT id, item FROM orders") == [(3, "c")]
    with pytest.raises(UnstorableValueError, match="column 'item' of the row with id=4: null cannot be stored"):
        batch((1, None, None, GONE), (4, None, [], KEEP))
    with pytest.raises(UnstorableValueError, match="column 'id' of the row with id=None"):
        batch((None, "x", [], GONE))  # type: ignore[arg-type]


def test_what_a_deleted_row_had_may_go_to_another(database: str) -> None:
    run(database, "CREATE TABLE orders (id bigint PRIMARY KEY, item text UNIQUE)")
    plan = deleting(database, order=None)
    put(database, plan, (1, "name", KEEP))
    put(database, plan, (2, "name", KEEP), (1, None, GONE))
    assert table(database) == [(2, "name")]


def test_a_domain_judges_rows_that_are_written_alone(database: str) -> None:
    """A row that deletes has no values but its key, whatever the domain of a column says of null."""
    domain = "CREATE DOMAIN label AS text NOT NULL CHECK (VALUE <> '')"
    run(database, domain, "CREATE TABLE orders (id bigint PRIMARY KEY, item label)")
    plan = deleting(database, order=None)
    put(database, plan, (1, "a", KEEP), (2, "b", KEEP))
    assert put(database, plan, (1, None, GONE), (3, "c", KEEP)).deleted == 1
    with pytest.raises(ConstraintError, match="label_check"):
        put(database, plan, (2, None, GONE), (4, "", KEEP))
    assert table(database) == [(2, "b"), (3, "c")]


# --- foreign keys, triggers and rules --------------------------------------------------------------------------------


def trigger(url: str, body: str, *, when: str) -> None:
    run(
        url,
        f"CREATE FUNCTION act() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} END $$",
        f"CREATE TRIGGER act {when} ON orders FOR EACH ROW EXECUTE FUNCTION act()",
    )


@pytest.mark.parametrize(
    ("body", "when"),
    [
        ("IF OLD.id = 2 THEN RETURN NULL; END IF; RETURN OLD;", "BEFORE DELETE"),
        ("IF OLD.id = 2 THEN INSERT INTO orders VALUES (2, 'back'); END IF; RETURN NULL;", "AFTER DELETE"),
    ],
    ids=["keeps it", "puts it back"],
)
def test_a_trigger_that_undoes_a_deletion_is_noticed(database: str, body: str, when: str) -> None:
    plan = keyed(database)
    put(database, plan, (1, "a", 1, KEEP), (2, "b", 1, KEEP))
    trigger(database, body, when=when)
    with pytest.raises(ConstraintError, match="1 rows that were to be deleted are still there"):
        put(database, plan, (1, None, 2, GONE), (2, None, 2, GONE))
    assert table(database) == [(1, "a"), (2, "b")]
    put(database, plan, (1, None, 2, GONE))
    assert table(database) == [(2, "b")]


def test_a_trigger_that_deletes_rows_of_the_batch_is_noticed_beside_deletions(database: str) -> None:
    """Our own deletions do not hide it, and are not taken for it."""
    plan = keyed(database)
    trigger(database, "DELETE FROM orders WHERE item = 'victim'; RETURN NULL;", when="AFTER INSERT")
    put(database, plan, (1, "a", 1, KEEP), (2, "b", 1, KEEP))
    assert put(database, plan, (1, None, 2, GONE), (3, "c", 2, KEEP)).deleted == 1
    with pytest.raises(ConstraintError, match="2 rows were written and 1 arrived"):
        put(database, plan, (2, None, 3, GONE), (4, "victim", 3, KEEP), (5, "e", 3, KEEP))


def test_a_rule_for_delete_is_refused(database: str) -> None:
    """Rows would stay, and nobody would know; without deletions it is in nobody's way."""
    plan = keyed(database)
    run(database, "CREATE RULE keep AS ON DELETE TO orders DO INSTEAD NOTHING")
    with pytest.raises(ConfigurationError, match=r"its rule 'keep' rewrites deletions.*DROP RULE \"keep\""):
        put(database, plan, (1, None, 1, GONE))
    with transaction(database) as connection:
        read_target(connection, "orders", upsert=True)
        with pytest.raises(ConfigurationError, match="its rule 'keep'"):
            read_target(connection, "orders", upsert=True, deletes=True)
