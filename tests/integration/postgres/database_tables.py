"""Rows through the whole path: planned, encoded, copied into a real table, and read back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from pyspark.sql import types as t

from spark_2pc_sink.options import Rows
from spark_2pc_sink.sink.report import WrittenRows
from spark_2pc_sink.sink.rows.catalog import read_target, utf8_connection
from spark_2pc_sink.sink.rows.column_plan import ColumnPlan, create_table_ddl, plan_columns
from spark_2pc_sink.sink.rows.copy_encoder import CopyEncoder
from spark_2pc_sink.sink.rows.keyed_rows import KeyedRows
from spark_2pc_sink.sink.rows.table_copy import AppendedRows, CopyBytes

#: The columns of most tests: the key, and something to overwrite.
ORDERS = {"id": t.LongType(), "item": t.StringType()}


@contextmanager
def transaction(url: str, *, commit: bool = True) -> Iterator[sa.Connection]:
    """A transaction on a connection of its own, which is closed afterwards."""
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.connect() as connection, connection.begin() as begun:
        yield connection
        if not commit:
            begun.rollback()


def run(url: str, *statements: str) -> None:
    """Statements in one transaction."""
    with transaction(url) as connection, utf8_connection(connection).cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def run_alone(url: str, statement: str) -> None:
    """A statement that is to be in no transaction, as CREATE DATABASE."""
    engine = sa.create_engine(url, poolclass=sa.NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection, utf8_connection(connection).cursor() as cursor:
        cursor.execute(statement)


def rows(url: str, query: str) -> list[tuple[Any, ...]]:
    with transaction(url) as connection:
        return [tuple(row) for row in connection.exec_driver_sql(query)]


def write(
    connection: sa.Connection,
    plan: ColumnPlan,
    streams: Iterable[Sequence[CopyBytes]],
    *,
    given: int | None = None,
    meanwhile: Callable[[], None] = lambda: None,
) -> WrittenRows:
    """Rows of streams into the target, by key where the plan has one.

    Args:
        given: how many they are; else as many as the server has taken.
        meanwhile: called before their end.
    """
    target = (KeyedRows if plan.upsert_keys else AppendedRows)(connection, plan)
    for pieces in streams:
        target.copy(pieces)
    meanwhile()
    target.delete()
    target.write()
    return target.finish(target.copied if given is None else given)


def put(
    url: str, plan: ColumnPlan, *values: tuple[Any, ...], meanwhile: Callable[[], None] = lambda: None
) -> WrittenRows:
    """The same in a transaction of its own, each row as the stream of a task."""
    with transaction(url) as connection:
        streams = [orders(plan, value) for value in values]
        return write(connection, plan, streams, given=len(values), meanwhile=meanwhile)


def table(url: str) -> list[tuple[Any, ...]]:
    return rows(url, "SELECT * FROM orders ORDER BY id")


def trigger(url: str, when: str, body: str, *, kind: str = "TRIGGER") -> None:
    """Add a trigger; ``when`` ends with its condition."""
    run(
        url,
        f"CREATE FUNCTION act() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} END $$",
        f"CREATE {kind} act {when} EXECUTE FUNCTION act()",
    )


def create(url: str, fields: Mapping[str, t.DataType], table: str = "orders", *, keys: Sequence[str] = ()) -> None:
    """The table that the sink would create."""
    run(url, create_table_ddl([t.StructField(*field) for field in fields.items()], table, upsert_keys=keys))


def plan_of(
    url: str,
    fields: Mapping[str, t.DataType] = ORDERS,
    table: str = "orders",
    *,
    keys: Sequence[str] = (),
    order: t.DataType | None = None,
    deletes: bool = False,
    **options: Any,
) -> ColumnPlan:
    """A plan against the table as it is; ``options`` are others of the table's."""
    given = {"mode": "upsert" if keys else "append", "keys": keys, **options}
    if order is not None:
        given.setdefault("order_by", "version")
    if deletes:
        given["delete_when"] = "gone"
    options_of_table = Rows(table, **given)
    with transaction(url) as connection:
        target = read_target(connection, options_of_table)
        return plan_columns(list(fields.items()), target, options_of_table, order=order)


def stream(plan: ColumnPlan, *batches: Any) -> list[bytes]:
    """One task's stream, in the pieces in which its encoder returned it."""
    encoder = CopyEncoder(plan.copy_plan)
    return [*(encoder.encode(encoder.checked(batch)) for batch in batches), encoder.finish()]


def keyed(url: str, fields: Mapping[str, t.DataType] = ORDERS, **planned: Any) -> ColumnPlan:
    """The table that the sink would create with the key id, and a plan of upserts."""
    create(url, fields, keys=["id"])
    return plan_of(url, fields, keys=["id"], **planned)


def orders(plan: ColumnPlan, *values: tuple[Any, ...]) -> list[bytes]:
    """One task's stream of such rows; behind their columns come the order and whether they delete."""
    columns = [list(column) for column in zip(*values, strict=True)] or [[] for _ in plan.copied]
    arrays = [pa.array(column, planned.arrow_type) for column, planned in zip(columns, plan.copied, strict=True)]
    return stream(plan, pa.record_batch(arrays, names=list(plan.copied_names)))
