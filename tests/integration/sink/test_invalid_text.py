"""Bytes that are no UTF-8 in a text inside a struct, an array or a map: refused, as they are in a column of text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from spark_2pc_sink.errors import UnstorableValueError
from spark_2pc_sink.sink.job.batch_size import SmallBatches
from spark_2pc_sink.sink.records.record_json import TIME_ZONE
from spark_2pc_sink.testing import assert_same_multiset
from tests.harness.streams import session_settings
from tests.integration.postgres import database_tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.harness.streams import FileStream
    from tests.integration.sink.targets import Target

#: A text that is none in row 2, and the character that would stand for it in all others.
TEXT = "IF(id = 2, CAST(X'61ff' AS STRING), 'a\N{REPLACEMENT CHARACTER}')"
NESTED = {
    "a_struct": f"struct(id AS n, {TEXT} AS `a b`)",
    "an_array": f"array('fine', {TEXT})",
    "map_key": f"map({TEXT}, id)",
    "map_value": f"map('k', {TEXT})",
    "deep": f"array(struct(map('k', array({TEXT})) AS m))",
}


@pytest.fixture
def rows(stream: FileStream) -> None:
    stream.add([(number, "name", 0) for number in range(5)])


def refused(stream: FileStream, target: Target, column: str, **options: Any) -> UnstorableValueError:
    """Run with a column beside the others, which is refused; the error, when nothing is on either side."""
    with pytest.raises(UnstorableValueError, match="UTF-8") as raised:
        stream.run(target.sink(key="id", **options), stream.frame().withColumn("nested", F.expr(column)))
    assert target.records() == []
    assert target.rows("count(*)") == [(0,)]
    assert raised.value.row_key == "key='2'"
    return raised.value


@pytest.mark.usefixtures("rows")
@pytest.mark.parametrize(("nested", "collected"), [("map_key", False), ("deep", True)])
def test_in_a_column_of_json(
    stream: FileStream, target: Target, monkeypatch: pytest.MonkeyPatch, nested: str, *, collected: bool
) -> None:
    """A24: with the record's value left out of it; two keys of a map could have become one."""
    monkeypatch.setattr(SmallBatches, "expected", collected)
    database_tables.run(target.database, "CREATE TABLE target (id bigint, name text, amount int, nested jsonb)")
    assert refused(stream, target, NESTED[nested], value="'v'").column == "nested"


@pytest.mark.usefixtures("rows")
def test_in_json_that_tasks_build(stream: FileStream, target: Target) -> None:
    """A24: of what Spark makes of that column alone, or of the JSON that the table gets."""
    database_tables.run(target.database, "CREATE TABLE target (id bigint, name text, amount int, nested jsonb)")
    assert refused(stream, target, NESTED["an_array"]).column == "nested"


@pytest.mark.usefixtures("rows")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"value": "to_json(struct(*), map('ignoreNullFields', 'false')) -- all of it"},
        {"value": "'v'", "columns": {"id": "id", "name": "to_json(nested)"}},
    ],
    ids=["default", "value", "column"],
)
def test_in_json_that_the_job_makes(stream: FileStream, target: Target, options: dict[str, Any]) -> None:
    """A24: the table has no such column, or takes its JSON as text."""
    database_tables.run(target.database, "CREATE TABLE target (id bigint, name text)")
    options = {"columns": {"id": "id", "name": "name"}, **options}
    error = refused(stream, target, NESTED["map_key"], **options)
    assert error.column == ("name" if "nested" in str(options["columns"]) else "value")


@pytest.mark.usefixtures("rows")
def test_in_a_text_that_only_the_record_has(spark: SparkSession, stream: FileStream, target: Target) -> None:
    """A24: a plain column, in JSON that Spark makes because of the session's time zone."""
    database_tables.run(target.database, "CREATE TABLE target (id bigint)")
    with session_settings(spark, {TIME_ZONE: "Asia/Kathmandu"}):
        assert refused(stream, target, TEXT, columns={"id": "id"}).column == "value"


def test_the_character_itself_is_text(stream: FileStream, target: Target) -> None:
    """A24: U+FFFD in the data is taken, with the same bytes that Spark's own to_json has."""
    stream.add([(number, "name", 0) for number in (0, 1)])
    frame = stream.frame()
    for name, sql in NESTED.items():
        frame = frame.withColumn(name, F.expr(sql))
    stream.run(target.sink(table="nested_rows", columns={"id": "id", "deep": "deep"}), frame)
    [(deep,)] = target.rows("DISTINCT deep::text", "nested_rows")
    assert deep == '[{"m": {"k": ["a\N{REPLACEMENT CHARACTER}"]}}]'
    made = stream.spark.createDataFrame([(number, "name", 0) for number in (0, 1)], stream.schema)
    for name, sql in NESTED.items():
        made = made.withColumn(name, F.expr(sql))
    expected = [row.v.encode() for row in made.selectExpr("to_json(struct(*)) AS v").collect()]
    assert_same_multiset([record.value for record in target.records()], expected, what="values")
