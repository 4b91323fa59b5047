"""Where text may be in a value, and the SQL that looks there; what Spark makes of it is an integration test's."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import types as t

from spark_2pc_sink.sink.rows.text_guards import guarded, guarded_sql, not_utf8

TEXT, NUMBER = t.StringType(), t.LongType()
PAIR = t.StructType([t.StructField("n", NUMBER), t.StructField("a b", TEXT)])


@pytest.mark.parametrize(
    ("kind", "condition"),
    [
        (TEXT, "NOT is_valid_utf8(x)"),
        (t.VarcharType(3), "NOT is_valid_utf8(x)"),
        (NUMBER, None),
        (t.BinaryType(), None),
        (t.ArrayType(NUMBER), None),
        (t.MapType(NUMBER, NUMBER), None),
        (t.StructType([t.StructField("n", NUMBER)]), None),
        (PAIR, "NOT is_valid_utf8(x.`a b`)"),
        (t.ArrayType(TEXT), "exists(x, _2pc_0 -> NOT is_valid_utf8(_2pc_0))"),
        (t.ArrayType(PAIR), "exists(x, _2pc_0 -> NOT is_valid_utf8(_2pc_0.`a b`))"),
        (t.ArrayType(t.ArrayType(TEXT)), "exists(x, _2pc_0 -> exists(_2pc_0, _2pc_1 -> NOT is_valid_utf8(_2pc_1)))"),
        (t.MapType(TEXT, NUMBER), "exists(map_keys(x), _2pc_0 -> NOT is_valid_utf8(_2pc_0))"),
        (t.MapType(NUMBER, PAIR), "exists(map_values(x), _2pc_0 -> NOT is_valid_utf8(_2pc_0.`a b`))"),
    ],
    ids=str,
)
def test_where_text_may_be(kind: t.DataType, condition: str | None) -> None:
    assert not_utf8("x", kind) == condition


def test_both_sides_of_a_map() -> None:
    found = not_utf8("x", t.MapType(TEXT, TEXT))
    assert found is not None
    assert found.split(" OR ") == [not_utf8("x", t.MapType(TEXT, NUMBER)), not_utf8("x", t.MapType(NUMBER, TEXT))]


def test_json_without_text_stays_as_it_is() -> None:
    assert guarded("to_json(x)", [("x", t.ArrayType(NUMBER)), ("y", NUMBER)]) == "to_json(x)"


@pytest.mark.parametrize("sql", ["id", "to_jsonish(x)", "`to_json`"])
def test_nobody_is_asked_about_what_makes_no_json(sql: str) -> None:
    frame: Any = None
    assert guarded_sql(sql, frame) == sql
