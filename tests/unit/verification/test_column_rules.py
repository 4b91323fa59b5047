"""The rules of comparing a column with a field: which are left out. What is equal, real servers tell (test_tables)."""

from __future__ import annotations

import json

import pytest

from spark_2pc_sink.options.names import TableName
from spark_2pc_sink.verification.columns import (
    Column,
    RecordColumn,
    RecordFacts,
    TableShape,
    as_object,
    compared_columns,
)


def shape(*columns: Column) -> TableShape:
    return TableShape(TableName("target"), columns)


def facts(*values: object) -> RecordFacts:
    found = RecordFacts()
    found.note(json.dumps(value).encode() for value in values)
    return found


def compared(base: str, *values: object) -> tuple[str, str, str]:
    """Of a column of this type: the type of the field, and the SQL of both sides."""
    (column,) = compared_columns(shape(Column("c", base, base)), facts(*({"c": value} for value in values))).columns
    return column.field_type, column.of_record, column.of_table


def test_a_type_without_a_hash_is_compared_as_text() -> None:
    assert compared("", "x")[1:] == ('"c"::text', '"c"::text')


def test_a_key_that_ignores_case_is_compared_by_its_own_equality() -> None:
    table = shape(Column("a", "public.citext", ""), Column("b", "public.citext", ""))
    found = compared_columns(table, facts({"a": "x", "b": "x"}), keys=["a"]).columns
    assert [(each.of_record, each.of_table) for each in found] == [('"a"', '"a"'), ('"b"::text', '"b"::text')]


@pytest.mark.parametrize(
    ("column", "value", "why"),
    [
        (Column("c", "interval[]", "_interval", is_array=True), ["INTERVAL '1' DAY"], "intervals"),
        (Column("c", "bytea[]", "_bytea", is_array=True), ["AA=="], "elements"),
        (Column("c", "text", "text"), {"a": 1}, "an object or an array"),
    ],
)
def test_what_is_spelt_otherwise_is_left_out_and_named(column: Column, value: object, why: str) -> None:
    found = compared_columns(shape(column), facts({"c": value}))
    assert found.columns == ()
    assert why in found.not_checked[0].why


def test_columns_and_fields_without_a_counterpart_are_named() -> None:
    table = shape(
        Column("id", "bigint", "int8"),
        Column("serial", "bigint", "int8", filled=True),
        Column("sum", "bigint", "int8", generated=True),
        Column("other", "text", "text"),
    )
    found = compared_columns(table, facts({"id": 1, "more": 2}))
    assert (found.names, found.unseen) == (("id",), ("serial", "sum", "other"))
    assert [(part.what, part.why) for part in found.not_checked] == [
        ("column serial", "the table fills it, and no record has a field of that name"),
        ("column sum", "the table computes it, and no record has a field of that name"),
        ("column other", "no record has a field of that name"),
        ("fields more of the records", "the table has no column of that name"),
    ]


def test_with_expressions_of_the_user_only_their_columns_are_compared() -> None:
    table = shape(
        Column("id", "numeric(5,2)", "numeric"), Column("at", "timestamptz", "timestamptz"), Column("x", "text", "text")
    )
    found = compared_columns(table, RecordFacts(), [RecordColumn("id", "key::int"), RecordColumn("at", "now()")])
    assert (found.names, found.unseen) == (("id", "at"), ())
    assert [column.read for column in found.columns] == [
        '(key::int)::pg_catalog."numeric"',
        '(now())::pg_catalog."timestamptz"',
    ]
    assert [part.what for part in found.not_checked] == ["finer parts of column at", "column x"]


def test_facts_tell_fields_and_how_they_are_spelt() -> None:
    found = facts({"a": None, "n": 1.5, "t": "2023-01-01T00:00:00.12Z"}, {"a": {"x": "2023-01-01T00:00:00.123456Z"}}, 3)
    found.note([b"{broken", None])
    assert (found.records, found.others, list(found.fields)) == (2, 3, ["a", "n", "t"])
    assert found.fields["n"].point
    assert found.fields["t"].fraction_digits == 2
    assert (found.fields["a"].other, found.fields["a"].fraction_digits) == (True, 6)


def test_an_object_has_its_numbers_as_they_are_spelt() -> None:
    found = as_object(b'{"a": 1.10, "b": NaN}')
    assert found == {"a": "1.10", "b": "NaN"}


@pytest.mark.parametrize("given", [[], [RecordColumn("c", "key"), RecordColumn("id", "key")]], ids=["fields", "given"])
def test_where_other_texts_are_equal_too_both_sides_have_one_collation(given: list[RecordColumn]) -> None:
    """PostgreSQL's hash of a text depends on such a collation: a key is one in all spellings, else bytes count."""
    loose = [Column(name, "text", "text", loose_collation='public."ci"') for name in ("id", "c")]
    table = shape(*loose, Column("d", "text", "text"))
    key, other, *_ = compared_columns(table, facts({"id": "a", "c": "b", "d": "c"}), given, keys=["id"]).columns
    assert (key.of_record, key.of_table) == ('("id") COLLATE public."ci"', '("id") COLLATE public."ci"')
    assert (other.of_record, other.of_table) == ('("c") COLLATE pg_catalog."C"', '("c") COLLATE pg_catalog."C"')
