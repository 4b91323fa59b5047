"""Types that Spark does not have: text goes into them as PostgreSQL reads it, into columns and arrays. C8."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as t

from spark_2pc_sink.errors import ConfigurationError, ConstraintError, UnstorableValueError
from spark_2pc_sink.sink.rows.column_plan import ColumnPlan
from tests.harness.providers import Database
from tests.integration.postgres.database_tables import append, plan_of, rows, run, stream, transaction, write_by_key

TEXT, LONG = t.StringType(), t.LongType()
#: What the tables of these tests are made with: names that need quotes, in a schema that is not on the search path.
TYPES = (
    'CREATE SCHEMA "the Types"',
    """CREATE TYPE "the Types"."Mood" AS ENUM ('sad', 'so "so"', 'ok')""",
    'CREATE DOMAIN "the Types"."Good mood" AS "the Types"."Mood" NOT NULL CHECK (VALUE > \'sad\')',
    'CREATE DOMAIN "the Types".address AS inet CHECK (family(VALUE) = 4)',
    'CREATE TYPE "the Types"."Pair" AS (n int, "Odd name" text, m "the Types"."Mood")',
    'CREATE TYPE "the Types".span AS RANGE (subtype = float8)',
)
#: The type of a column; two texts that it takes, in PostgreSQL's own spelling, the greater one first; one that it does
#: not take.
KINDS = {
    "enum": ('"the Types"."Mood"', "ok", 'so "so"', "happy"),
    "domain over an enum": ('"the Types"."Good mood"', "ok", 'so "so"', "sad"),
    "domain": ('"the Types".address', "10.0.0.2", "10.0.0.1", "::1"),
    "name": ("name", "é" * 31, "a", "a" * 64),
    "char": ('"char"', "b", "a", "ab"),
    "inet": ("inet", "::1", "10.0.0.1/8", "10.0.0.256"),
    "cidr": ("cidr", "::/0", "10.0.0.0/8", "10.0.0.1/8"),
    "macaddr": ("macaddr", "08:00:2b:01:02:04", "08:00:2b:01:02:03", "08"),
    "macaddr8": ("macaddr8", "08:00:2b:01:02:03:04:06", "08:00:2b:01:02:03:04:05", "08"),
    "money": ("money", "$12.50", "-$1.00", "1.2.3"),
    "timetz": ("timetz", "12:00:00.000001+02", "00:00:00+00", "25:00"),
    "timetz(1)": ("timetz(1)", "12:00:00.5+02", "00:00:00+00", "12:00:00.55+02"),
    "time(2)": ("time(2)", "12:00:00.25", "00:00:00", "00:00:00.001"),
    "range": ("int8range", "[2,)", "[1,3)", "[2,1)"),
    "multirange": ("tsmultirange", '{["2024-01-01 00:00:00",)}', "{}", "{["),
    "range of its own": ('"the Types".span', "[0.5,)", "empty", "[x,1)"),
    "bit": ("bit(3)", "110", "011", "0110"),
    "varbit": ("varbit(4)", "1", "0110", "01101"),
    "tsvector": ("tsvector", "'a':1 'b'", "'a'", "'a"),
    "tsquery": ("tsquery", "'a' & !'b'", "'a'", "a b"),
    "point": ("point", "(1,2.5)", "(0,0)", "1"),
    "polygon": ("polygon", "((0,0),(1,1),(2,0))", "((0,0))", "x"),
    "composite": ('"the Types"."Pair"', '(2,"a ""b"",",ok)', "(1,,)", "(x,,)"),
    "oid": ("oid", "4294967295", "0", "-x"),
    "regclass": ("regclass", "pg_type", "pg_class", "nowhere.at_all"),
    "regtype": ("regtype", "bigint", "integer", "number"),
    "regnamespace": ("regnamespace", '"the Types"', "pg_catalog", "nowhere"),
    "jsonpath": ("jsonpath", '$."b"', '$."a"', "$.["),
    "pg_lsn": ("pg_lsn", "1/A", "0/0", "x"),
    "interval": ("interval", "1 mon 2 days 00:00:00.000001", "-1 days", "soon"),
    "interval(0)": ("interval(0)", "1 mon", "00:00:01", "1.5 seconds"),
    "jsonb elements": ("jsonb", '{"a": 1}', "2", "{"),
    "xid8": ("xid8", "18446744073709551615", "1", "1" * 30),
}
#: The same of types that the server of the wheel does not have, that of the containers' image has.
IN_IMAGE = {
    "xml": ("xml", "<a>é</a>", "text", "<a"),
    "citext": ("citext", "B", "a", "\x00"),
    "hstore": ("hstore", '"a"=>"b"', "", "a=>"),
    "ltree": ("ltree", "a.c", "a.b", "a..b"),
}
#: Those that PostgreSQL does not compare, so that they are no key.
KEYLESS = {"xml", "point", "polygon", "jsonpath"}


def rows_of(plan: ColumnPlan, *values: tuple[Any, ...]) -> list[bytes]:
    columns = zip(zip(*values, strict=True), plan.copied, strict=True)
    arrays = [pa.array(list(column), planned.arrow_type) for column, planned in columns]
    return stream(plan, pa.record_batch(arrays, names=list(plan.copied_names)))


def put(url: str, plan: ColumnPlan, *values: tuple[Any, ...]) -> None:
    with transaction(url) as connection:
        if plan.upsert_keys:
            write_by_key(connection, plan, [rows_of(plan, *values)])
        else:
            append(connection, plan, [rows_of(plan, row) for row in values])


@pytest.fixture(scope="module")
def types(postgres: Database) -> Iterator[str]:
    """A database with `TYPES`."""
    name = f"types_{secrets.token_hex(4)}"
    url = postgres.create_database(name)
    run(url, *TYPES)
    yield url
    postgres.drop_database(name)


@pytest.mark.parametrize("kind", [*KINDS, *(pytest.param(kind, marks=pytest.mark.containers) for kind in IN_IMAGE)])
def test_text_goes_into_a_column_and_an_array(types: str, kind: str) -> None:
    """With rows that delete, whose other values are null; a text that the type does not take refuses its row."""
    sql, value, other, wrong = {**KINDS, **IN_IMAGE}[kind]
    if kind in IN_IMAGE and kind != "xml":
        run(types, f"CREATE EXTENSION IF NOT EXISTS {kind}")
    fields = {"id": LONG, "the x": TEXT, "xs": t.ArrayType(TEXT), "literal": TEXT, "n": t.IntegerType()}
    [(both,)] = rows(types, f"SELECT concat(ARRAY[$${value}$$, $${other}$$]::{sql}[])")
    for keys in ([], ["id"]):
        run(
            types,
            "DROP TABLE IF EXISTS orders",
            f'CREATE TABLE orders (id bigint PRIMARY KEY, "the x" {sql}, xs {sql}[], literal {sql}[], n int NOT NULL)',
        )
        plan = plan_of(types, fields, keys=keys, deletes=bool(keys))
        more = (False,) if keys else ()
        put(types, plan, (1, value, [value, other], "{}", 1, *more), (2, other, [], None, 2, *more))
        if keys:
            put(types, plan, (1, other, None, None, 3, False), (2, None, None, None, None, True))
        found = rows(types, 'SELECT id, concat("the x"), concat(xs), concat(literal), n FROM orders ORDER BY id')
        assert found == ([(1, other, "", "", 3)] if keys else [(1, value, both, "{}", 1), (2, other, "{}", "", 2)])
        for bad in ((3, wrong, None, None), (3, value, [value, wrong], None), (3, value, None, "{{")):
            with pytest.raises((ConstraintError, UnstorableValueError)):
                put(types, plan, (*bad, 1, *more))
    if kind not in KEYLESS | IN_IMAGE.keys():
        run(types, "DROP TABLE orders", f'CREATE TABLE orders ("the x" {sql} PRIMARY KEY, id bigint)')
        plan = plan_of(types, {"the x": TEXT, "id": LONG}, keys=["the x"], order=LONG, deletes=True)
        put(types, plan, (value, 1, 1, False), (value, 2, 2, False), (other, 3, 1, False))
        put(types, plan, (value, 4, 3, False), (other, None, 1, True))
        assert rows(types, 'SELECT concat("the x"), id FROM orders') == [(value, 4)]


@pytest.mark.parametrize(
    ("sql", "value", "spark_type"),
    [
        ('"the Types"."Pair"', "(1,a,ok)", t.StructType([t.StructField("n", t.IntegerType())])),
        ('"the Types"."Pair"[]', '{"(1,a,ok)"}', t.ArrayType(t.StructType([t.StructField("n", t.IntegerType())]))),
        ("int[]", "{1,2}", t.ArrayType(t.ArrayType(t.IntegerType()))),
        ("interval hour to minute", "01:02", t.DayTimeIntervalType()),
        ("interval year", "1 year", t.YearMonthIntervalType()),
        ("interval day", "1 day", t.CalendarIntervalType()),
    ],
)
def test_a_column_that_cannot_hold_a_value_is_altered_as_the_remedy_says(
    types: str, sql: str, value: str, spark_type: t.DataType
) -> None:
    run(types, "DROP TABLE IF EXISTS orders", f'CREATE TABLE orders ("the x" {sql})')
    run(types, f"INSERT INTO orders VALUES ('{value}')")
    with pytest.raises(ConfigurationError) as caught:
        plan_of(types, {"the x": spark_type})
    run(types, caught.value.remedy[caught.value.remedy.index("ALTER TABLE") :])
    assert plan_of(types, {"the x": spark_type}).names == ("the x",)
