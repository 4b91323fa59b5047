"""The rules of comparing a column with a field: which are left out. What is equal, real servers tell (test_tables)."""

from __future__ import annotations

import json

import pytest

from spark_2pc_sink.options.names import TableName
from spark_2pc_sink.verification.columns import Column, RecordFacts, TableShape, compared_columns


def shape(*columns: Column) -> TableShape:
    return TableShape(TableName("target"), columns)


def facts(*values: object) -> RecordFacts:
    found = RecordFacts()
    found.note(json.dumps(value).encode() for value in values)
    return found


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
