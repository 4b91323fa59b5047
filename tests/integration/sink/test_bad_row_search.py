"""The search for bad rows: it goes by fingerprints, and no row is left out for having the fingerprint of a bad one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from spark_2pc_sink.errors import TooManyBadRowsError
from spark_2pc_sink.options import SinkOptions
from spark_2pc_sink.sink.bad_rows.bad_row import RefusedRow
from spark_2pc_sink.sink.bad_rows.dead_letters import DeadLetters
from spark_2pc_sink.sink.bad_rows.row_identity import fingerprint_sql, identity_sql
from spark_2pc_sink.sink.bad_rows.row_names import fingerprint_bytes
from spark_2pc_sink.sink.job.batch_split import BatchSplit

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


def split_of(batch: DataFrame) -> BatchSplit:
    return BatchSplit(batch, 0, OPTIONS, NoLetters())


def refused(batch: DataFrame, where: str, *, exact: bool = False) -> list[RefusedRow]:
    """The rows as a sift names them."""
    schema = batch.schema
    name = identity_sql(schema) if exact else fingerprint_sql(schema)
    found = [name for (name,) in batch.where(where).select(F.expr(name)).collect()]
    names = [bytes(name) if exact else fingerprint_bytes(name) for name in found]
    return [RefusedRow(name, number, "table orders", "why", "23514") for number, name in enumerate(names)]


def test_a_bad_row_is_found_by_its_fingerprint(spark: SparkSession) -> None:
    """And left out by its identity; a second sift finds others beside it."""
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
