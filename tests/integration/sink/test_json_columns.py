"""Values of records beside columns of all kinds: Spark's bytes, whoever writes them; what is no UTF-8 is refused."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from spark_2pc_sink.errors import UnstorableValueError
from spark_2pc_sink.recipe.steps import Step
from spark_2pc_sink.sink.job.batch_size import SmallBatches
from spark_2pc_sink.sink.records.record_json import TIME_ZONE
from spark_2pc_sink.testing import assert_same_multiset
from tests.harness.streams import session_settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.harness.streams import FileStream
    from tests.integration.sink.targets import Row, Target

ROWS: list[Row] = [(number, None if number % 4 == 0 else f'n"{number}', number) for number in range(40)]
COLUMNS = {
    "ratio": "CASE WHEN id % 5 = 0 THEN double('NaN') ELSE id / 7 END",
    "item": "named_struct('name', name, 'half', CAST(id / 2 AS FLOAT))",
    "tags": "array(name, 'x')",
    "labels": "map('k', name)",
    "at": "timestamp_micros(id * 100000000000000)",
    "raw": "CAST(name AS BINARY)",
}
DDL = (
    "CREATE TABLE target (id bigint PRIMARY KEY, name text, amount int CHECK (amount <> 7), ratio double precision)",
    "ALTER TABLE target ADD item jsonb, ADD tags text[], ADD labels jsonb, ADD at timestamptz, ADD raw bytea",
)


def widened(frame: DataFrame, columns: dict[str, str]) -> DataFrame:
    for name, sql in columns.items():
        frame = frame.withColumn(name, F.expr(sql))
    return frame


def json_of(frame: DataFrame) -> list[bytes]:
    """What Spark's own to_json makes of the rows."""
    return [row.v.encode() for row in frame.selectExpr("to_json(struct(*)) AS v").collect()]


def test_the_values_are_spark_s_also_when_they_are_sent_again(
    spark: SparkSession, stream: FileStream, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A21, B7: Kafka loses the transaction; what is sent again, and the replay of the batch, have the same bytes.

    One row is bad for the table, which the sink finds out by its own selects.
    """
    monkeypatch.setattr(SmallBatches, "expected", True)
    target.execute(*DDL)
    options: dict[str, Any] = {"key": "id", "bad_rows": "dead_letter", "mode": "upsert", "upsert_keys": ["id"]}
    stream.add(ROWS)
    made = widened(spark.createDataFrame([row for row in ROWS if row[2] != 7], stream.schema), COLUMNS)
    with session_settings(spark, {TIME_ZONE: "Europe/Berlin"}):
        expected = json_of(made)
        steps = target.abort_once(monkeypatch)
        for again in (False, True):
            stream.run(target.sink(**options, upsert_order_by="amount"), widened(stream.frame(), COLUMNS))
            if not again:
                monkeypatch.undo()
                assert steps.count(Step.PRODUCE) >= 2
                shutil.rmtree(stream.checkpoint / "commits")
            assert_same_multiset([record.value for record in target.records()], expected, what=f"values, {again=}")
    assert target.rows("count(*)") == [(len(ROWS) - 1,)]


#: A text that is none in row 2, and the character that would stand for it in all others.
TEXT = "IF(id = 2, CAST(X'61ff' AS STRING), 'a\N{REPLACEMENT CHARACTER}')"
NESTED = {
    "a_struct": f"struct(id AS n, {TEXT} AS `a b`)",
    "an_array": f"array('fine', {TEXT})",
    "map_key": f"map({TEXT}, id)",
    "map_value": f"map('k', {TEXT})",
    "deep": f"array(struct(map('k', array({TEXT})) AS m))",
}


JSON = "CREATE TABLE target (id bigint, name text, amount int, nested jsonb)"
TEXTS = "CREATE TABLE target (id bigint, name text)"
WITH_NAME = {"id": "id", "name": "name"}
#: The table, the column nested, options, and the column that is named.
INVALID: dict[str, tuple[str, str, dict[str, Any], str]] = {
    # The record's value is left out of it; two keys of a map could have become one.
    "a column of json": (JSON, NESTED["map_key"], {"value": "'v'"}, "nested"),
    "a column of json, deep, by the driver": (JSON, NESTED["deep"], {"value": "'v'"}, "nested"),
    # Of what Spark makes of that column alone, or of the JSON that the table gets.
    "json that tasks build": (JSON, NESTED["an_array"], {}, "nested"),
    # The table has no such column, or takes its JSON as text.
    "the default value": (TEXTS, NESTED["map_key"], {"columns": WITH_NAME}, "value"),
    "a value of the job's": (
        TEXTS,
        NESTED["map_key"],
        {"columns": WITH_NAME, "value": "to_json(struct(*), map('ignoreNullFields', 'false')) -- all of it"},
        "value",
    ),
    "a column of the job's": (
        TEXTS, NESTED["map_key"], {"columns": {"id": "id", "name": "to_json(nested)"}, "value": "'v'"}, "name"
    ),
    # In JSON that Spark makes because of the session's time zone.
    "a text that only the record has": (TEXTS, TEXT, {"columns": {"id": "id"}}, "value"),
}  # fmt: skip


@pytest.mark.parametrize("case", INVALID)
def test_a_text_that_is_no_utf_8_is_refused(
    spark: SparkSession, stream: FileStream, target: Target, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """A24: it is named, and nothing is on either side."""
    ddl, column, options, named = INVALID[case]
    monkeypatch.setattr(SmallBatches, "expected", case.endswith("by the driver"))
    target.execute(ddl)
    stream.add([(number, "name", 0) for number in range(5)])
    zone = "Asia/Kathmandu" if column == TEXT else "UTC"
    with session_settings(spark, {TIME_ZONE: zone}), pytest.raises(UnstorableValueError, match="UTF-8") as refused:
        stream.run(target.sink(key="id", **options), stream.frame().withColumn("nested", F.expr(column)))
    assert (refused.value.column, refused.value.row_key) == (named, "key='2'")
    assert (target.records(), target.rows("count(*)")) == ([], [(0,)])


def test_the_character_itself_is_text(stream: FileStream, target: Target) -> None:
    """A24: U+FFFD in the data is taken, with the same bytes that Spark's own to_json has."""
    rows: list[Row] = [(number, "name", 0) for number in (0, 1)]
    stream.add(rows)
    sink = target.sink(table="nested_rows", columns={"id": "id", "deep": "deep"})
    stream.run(sink, widened(stream.frame(), NESTED))
    [(deep,)] = target.rows("DISTINCT deep::text", "nested_rows")
    assert deep == '[{"m": {"k": ["a\N{REPLACEMENT CHARACTER}"]}}]'
    expected = json_of(widened(stream.spark.createDataFrame(rows, stream.schema), NESTED))
    assert_same_multiset([record.value for record in target.records()], expected, what="values")
