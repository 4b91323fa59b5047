"""The search for bad rows: it goes by fingerprints, and no row is left out for having the fingerprint of a bad one."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from pyspark.sql import functions as F

from spark_2pc_sink.errors import ConfigurationError, TooManyBadRowsError
from spark_2pc_sink.options import SinkOptions
from spark_2pc_sink.sink.bad_rows.bad_row import RefusedRow, fingerprint_bytes
from spark_2pc_sink.sink.bad_rows.dead_letters import DeadLetters
from spark_2pc_sink.sink.bad_rows.row_sql import fingerprint_sql, identity_sql
from spark_2pc_sink.sink.job.filtered_batch import FilteredBatch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OPTIONS = SinkOptions.parse(
    transactional_id="orders",
    kafka={"bootstrap.servers": "none:1"},
    database="postgresql://none/none",
    topic="orders",
    table="orders",
    bad_rows="dead_letter",
    max_bad_rows=2,
)


class NoLetters(DeadLetters):
    """Nothing is asked of the table before the decision."""

    def __init__(self) -> None:
        """It has no database."""


def split_of(batch: DataFrame) -> FilteredBatch:
    return FilteredBatch(batch, 0, OPTIONS, NoLetters())


def refused(batch: DataFrame, where: str, *, exact: bool = False) -> list[RefusedRow]:
    """The rows as a search names them."""
    schema = batch.schema
    name = identity_sql(schema) if exact else fingerprint_sql(schema)
    found = [name for (name,) in batch.where(where).select(F.expr(name)).collect()]
    names = [bytes(name) if exact else fingerprint_bytes(name) for name in found]
    return [RefusedRow(name, number, "table orders", "why", "23514") for number, name in enumerate(names)]


def test_a_bad_row_is_found_by_its_fingerprint(spark: SparkSession) -> None:
    """And left out by its identity; a second search finds others beside it."""
    batch = spark.range(100).selectExpr("id", "if(id % 2 = 0, 'even', 'odd') AS kind", "array(id) AS list")
    split = split_of(batch)
    assert split.leave_out([refused(batch, "id = 7"), []])
    assert sorted(row.id for row in split.frame.collect()) == [number for number in range(100) if number != 7]
    [row] = split.bad_rows.values()
    assert (row.row, row.occurrences, row.all_of_them) == ('{"id":7,"kind":"odd","list":[7]}', 1, True)
    assert split.leave_out([refused(batch, "id = 98")])
    assert split.frame.count() == 98
    with pytest.raises(TooManyBadRowsError, match="3 of the 100 rows") as error:
        split.leave_out([refused(batch, "id = 50")])
    assert [shown.partition(",")[0] for shown in error.value.first] == ['{"id":7', '{"id":98', '{"id":50']
    assert not split.leave_out([[]])


@pytest.mark.parametrize("policy", [pytest.param("CORRECTED", marks=pytest.mark.thorough), "LEGACY"])
def test_a_letter_has_each_value_in_full(spark: SparkSession, policy: str) -> None:
    """In each session, and wherever in a row a value is."""
    values = {
        "TIMESTAMP'2024-05-01 08:01:00.123456+02:00'": "2024-05-01T06:01:00.123456Z",
        "TIMESTAMP'-0043-03-15 12:00:00.000001 UTC'": "-0043-03-15T12:00:00.000001Z",
        "timestamp_micros(9223372036854775807)": "+294247-01-10T04:00:54.775807Z",
        "timestamp_micros(-9223372036854775807)": "-290308-12-21T19:59:05.224193Z",
        "TIMESTAMP_NTZ'2024-05-01 08:01:00.123456'": "2024-05-01T08:01:00.123456",
        "TIMESTAMP_NTZ'-0043-03-15 12:00:00.000001'": "-0043-03-15T12:00:00.000001",
        "DATE'-0043-03-15'": "-0043-03-15",
        "DATE'+12345-03-15'": "+12345-03-15",
        "INTERVAL '1 02:03:04.000005' DAY TO SECOND": "INTERVAL '1 02:03:04.000005' DAY TO SECOND",
        "INTERVAL '-1-2' YEAR TO MONTH": "INTERVAL '-1-2' YEAR TO MONTH",
        "make_interval(1, 2, 0, 3, 4, 5, 6.000007)": "1 years 2 months 3 days 4 hours 5 minutes 6.000007 seconds",
        "X'00FF80'": "AP+A",
        "concat('a', char(0), 'b')": r"\x610062",
        "CAST(X'61FF' AS STRING)": r"\x61ff",
        r"'\\x61 \uFFFD'": "\\x61 \ufffd",
        "12345678901234567890.123456789012345678BD": Decimal("12345678901234567890.123456789012345678"),
        "0.1D + 0.2D": Decimal("0.30000000000000004"),
        "9223372036854775807": Decimal(9223372036854775807),
        "double('NaN')": "NaN",
        "float('-Infinity')": "-Infinity",
        "CAST(NULL AS TIMESTAMP)": None,
    }
    nested = [f"named_struct('a.b', {each}, 'list', array({each}, NULL), 'map', map('k', {each})) AS n{number}"
              for number, each in enumerate(values)]  # fmt: skip
    keys = [f"map({each}, 1) AS k{number}" for number, (each, shown) in enumerate(values.items()) if shown is not None
            and "make_interval" not in each]  # fmt: skip
    structs = "map(struct(X'FF' AS b, DATE'-0043-03-15' AS d), 1) AS s, map(X'00FF80', 1) AS b"
    plain = [f"{each} AS v{number}" for number, each in enumerate(values)]
    before = spark.conf.get("spark.sql.legacy.timeParserPolicy")
    spark.conf.set("spark.sql.legacy.timeParserPolicy", policy)
    try:
        batch = spark.sql(
            f"SELECT {', '.join([*plain, *nested, *keys, structs])}, CAST(NULL AS struct<t: date>) AS none"
        )
        split = split_of(batch)
        assert split.leave_out([refused(batch, "true")])
    finally:
        spark.conf.set("spark.sql.legacy.timeParserPolicy", str(before))
    [letter] = split.bad_rows.values()
    row = json.loads(letter.row, parse_float=Decimal, parse_int=Decimal)
    for number, shown in enumerate(values.values()):
        assert row[f"v{number}"] == shown
        assert row[f"n{number}"] == {"a.b": shown, "list": [shown, None], "map": {"k": shown}}
        assert f"k{number}" not in row or row[f"k{number}"] == {str(shown): 1}
    assert row["s"] == {'{"b":"/w==","d":"-0043-03-15"}': 1}
    assert (row["b"], row["none"]) == ({"AP+A": 1}, None)


def test_rows_that_differ_each_time_they_are_read_are_named(spark: SparkSession) -> None:
    """Spark takes the function for one that returns the same result each time."""
    batch = spark.range(3).select("id", F.udf(lambda _: str(uuid4()))("id").alias("made"))
    with pytest.raises(ConfigurationError, match=r"different rows each time .* refused \(why\)"):
        split_of(batch).leave_out([refused(batch, "id = 1")])


def test_a_row_with_the_fingerprint_of_a_bad_one_stays(spark: SparkSession) -> None:
    """A26: Spark makes none of maps, so two rows that differ in nothing else have one: the next sift is exact."""
    batch = spark.sql("SELECT 1 AS id, map('a', n) AS tags FROM VALUES (1), (2) AS t(n)")
    split = split_of(batch)
    assert split.leave_out([refused(batch, "tags['a'] = 2")])
    assert (split.exact, len(split.bad_rows), split.frame.count()) == (True, 0, 2)
    assert split.leave_out([refused(batch, "tags['a'] = 2", exact=True)])
    assert [row.tags for row in split.frame.collect()] == [{"a": 1}]


def test_only_some_of_equal_rows_are_left_out(spark: SparkSession) -> None:
    """As with a primary key: the first of them is kept."""
    batch = spark.sql("SELECT id, 'text' AS text FROM VALUES (1), (2), (2), (2) AS t(id)")
    split = split_of(batch)
    assert split.leave_out([refused(batch, "id = 2")[:2]])
    assert sorted(row.id for row in split.frame.collect()) == [1, 2]
