"""Which expressions tasks take over from Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.types import IntegerType, StructField, StructType

from spark_2pc_sink.sink.frame import RecordExpressions, is_everything, record_columns, record_sql, with_json
from spark_2pc_sink.sink.json_values import IGNORE_NULLS, TIME_PARSER, TIME_ZONE, WHOLE_ROW, JsonField

SPARK: Any = SimpleNamespace(conf={IGNORE_NULLS: "true", TIME_PARSER: "CORRECTED", TIME_ZONE: "UTC"})


def taken_over(columns: dict[str, str], *, value: str = WHOLE_ROW) -> RecordExpressions:
    schema = StructType([StructField("1", IntegerType())])
    given = RecordExpressions(topic=None, key=None, value=value, headers=None, partition=None, columns=columns)
    return with_json(given, schema, SPARK)


def test_the_json_of_the_tables_columns_is_no_column_of_sparks() -> None:
    expressions = taken_over({"1": "`1`"})
    assert expressions.json == (JsonField("1", "IntegerType"),)
    assert record_columns(expressions) == []


@pytest.mark.parametrize(
    ("columns", "value"),
    [
        ({"1": "1"}, WHOLE_ROW),  # the number one, not the column
        ({"1": "`1` + 1"}, WHOLE_ROW),
        ({"other": "`1`"}, WHOLE_ROW),
        ({"1": "`1`"}, "to_json(struct(`1`))"),
    ],
)
def test_other_values_stay_with_spark(columns: dict[str, str], value: str) -> None:
    expressions = taken_over(columns, value=value)
    assert expressions.json is None
    assert record_columns(expressions) == ["_2pc_value"]


@pytest.mark.parametrize(
    ("selected", "columns", "everything"),
    [
        (["`a` AS `a`", "`b c` AS `b c`"], ["a", "b c"], True),
        (["`a` AS `a`"], ["a", "b c"], False),
        (["`a` AS `a`", "`b` AS `b`"], ["a"], False),
        (["a AS `a`"], ["a"], False),  # perhaps a literal
        (["`b` AS `a`", "`a` AS `b`"], ["a", "b"], False),
    ],
)
def test_a_select_of_everything_is_none(selected: list[str], columns: list[str], *, everything: bool) -> None:
    frame: Any = SimpleNamespace(columns=columns)
    assert is_everything(selected, frame) is everything


def test_a_partition_is_no_narrower_than_the_widest_type_that_it_may_have() -> None:
    """`test_bad_input` has what a narrower one does to a number that does not fit."""
    given = RecordExpressions(topic=None, key=None, value="'v'", headers=None, partition="p", columns={})
    assert record_sql(given)[0] == "CAST(p AS BIGINT) AS _2pc_partition"
