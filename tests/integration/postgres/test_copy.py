"""Append: the rows of all tasks by one COPY, in the caller's transaction. C8, C12 (constraint error)."""

from __future__ import annotations

import pickle
from typing import Any

import psycopg2
import psycopg2.errors
import pyarrow as pa
import pytest
from pyspark.sql import types as t

from spark_2pc_sink.errors import BatchRetryError, ConstraintError
from tests.integration.postgres.database_tables import (
    ORDERS,
    append,
    create,
    orders,
    plan_of,
    rows,
    run,
    stream,
    transaction,
)

RAISING_TRIGGER = """
CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not %', NEW.id; END $$;
CREATE TRIGGER no BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION no()
"""


@pytest.mark.parametrize(
    ("ddl", "values", "said"),
    [
        (
            "ALTER TABLE orders ADD PRIMARY KEY (id)",
            [(1, "a"), (1, "b")],
            r"\(constraint orders_pkey\): .*\(id\)=\(1\)",
        ),
        ("ALTER TABLE orders ADD CONSTRAINT c CHECK (id > 0)", [(0, "a")], r"\(constraint c\): .*contains \(0, a\)"),
        ("ALTER TABLE orders ALTER item TYPE jsonb USING null", [(1, "no")], r'"no" is invalid.* \[22P02\]'),
        (RAISING_TRIGGER, [(7, "a")], "not 7.*P0001"),
    ],
)
def test_row_that_the_table_refuses_is_named(database: str, ddl: str, values: Any, said: str) -> None:
    run(database, "CREATE TABLE orders (id bigint, item text)", ddl)
    plan = plan_of(database)
    with pytest.raises(ConstraintError, match=said) as caught, transaction(database) as connection:
        append(connection, plan, [orders(plan, *values)])
    assert caught.value.table == '"public"."orders"'
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # noqa: S301 - our own bytes
    assert rows(database, "SELECT * FROM orders") == []


def test_errors_that_say_nothing_about_rows_pass_unchanged(database: str) -> None:
    """C7: whoever owns the transaction sees what it was."""
    create(database, ORDERS)
    plan = plan_of(database)
    with transaction(database) as blocker, transaction(database) as connection:
        blocker.exec_driver_sql("LOCK TABLE orders")
        connection.exec_driver_sql("SET LOCAL lock_timeout = 100")
        with pytest.raises(psycopg2.errors.LockNotAvailable):
            append(connection, plan, [orders(plan, (1, "a"))])
        connection.rollback()


@pytest.mark.parametrize(
    ("ddl", "said"),
    [
        ("ALTER id TYPE double precision", "'id' .* was bigint and is double precision"),
        ("RENAME item TO name", "'item' .* was text and is gone"),
    ],
)
def test_table_that_was_altered_since_it_was_planned_takes_no_rows(database: str, ddl: str, said: str) -> None:
    """COPY BINARY has no types: a bigint's eight bytes would be read as a double without any error. C12."""
    create(database, ORDERS)
    plan = plan_of(database)
    streams = [orders(plan, (1, "long"))]
    run(database, f"ALTER TABLE orders {ddl}", "ALTER TABLE orders ADD unrelated int")
    with pytest.raises(BatchRetryError, match=said), transaction(database) as connection:
        append(connection, plan, streams)
    assert rows(database, "SELECT * FROM orders") == []


def test_deferred_constraints_are_checked_after_all_rows(database: str) -> None:
    """A row may refer to one that another task brings; COMMIT is too late to tell a bad row from a lost answer."""
    run(
        database,
        "CREATE TABLE orders (id bigint PRIMARY KEY, item text, "
        "parent bigint REFERENCES orders DEFERRABLE INITIALLY DEFERRED)",
    )
    fields = {"id": t.LongType(), "parent": t.LongType()}
    plan = plan_of(database, fields)

    def children(*pairs: tuple[int, int]) -> list[bytes]:
        ids, parents = zip(*pairs, strict=True)
        return stream(plan, pa.record_batch({"id": ids, "parent": parents}))

    with transaction(database) as connection:
        assert append(connection, plan, [children((1, 2)), children((2, 1))]) == 2
    refused = r"orders_parent_fkey\): .*\(parent\)=\(9\) is not present"
    with transaction(database, commit=False) as connection, pytest.raises(ConstraintError, match=refused):
        append(connection, plan, [children((3, 9))])
    assert rows(database, "SELECT count(*) FROM orders") == [(2,)]
