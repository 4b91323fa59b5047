"""Rows that carry no value for a column, as Debezium's placeholder of one that was not changed."""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from spark_2pc_sink import BatchReport, DualWriteSink, Records, Rows
from spark_2pc_sink.errors import ConfigurationError, ConstraintError
from spark_2pc_sink.testing import assert_same_multiset
from tests.integration.postgres.database_tables import run
from tests.integration.sink.targets import SCHEMA, Row, Target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.harness.streams import FileStream

PLACEHOLDER = "__debezium_unavailable_value"
#: The amount is the order.
FIRST: list[Row] = [(1, "one", 1), (2, "two", 1), (3, "three", 1)]
SECOND: list[Row] = [
    (1, PLACEHOLDER, 2),
    *[(2, "TWO", 2), (2, PLACEHOLDER, 3)],
    *[(3, PLACEHOLDER, 2), (3, "gone", 3)],
    *[(4, "four", 1), (4, PLACEHOLDER, 2), (4, PLACEHOLDER, 3)],
]
LEFT: list[Row] = [(1, "one", 2), (2, "TWO", 3), (4, "four", 3)]
ROWS: dict[str, Any] = {
    "mode": "upsert",
    "delete_when": "name = 'gone'",
    "unchanged_when": {"name": f"name = '{PLACEHOLDER}'"},
}


def one_table(target: Target, **options: Any) -> DualWriteSink:
    given = {"key": "id", "upsert_keys": ["id"], "upsert_order_by": "amount", "tombstones": True}
    return target.sink(**{**ROWS, **given, **options})


def several(target: Target, **options: Any) -> DualWriteSink:
    keyed: dict[str, Any] = {**ROWS, "keys": ["id"], "order_by": "amount"}
    return target.sink(
        writes=[
            Records(target.topic, key="id", tombstone_when="name = 'gone'"),
            Rows("other", **keyed, where="id > 1", create_table=True),
            Rows("target", **keyed),
        ],
        **options,
    )


# Shorter than the placeholder: it must not even be staged.
@pytest.fixture(autouse=True)
def narrow(target: Target) -> None:
    run(target.database, "CREATE TABLE target (id bigint PRIMARY KEY, name varchar(9) NOT NULL, amount integer)")


@pytest.mark.parametrize("make", [one_table, several])
def test_the_table_keeps_the_newest_value(stream: FileStream, target: Target, make: Any) -> None:
    """From the batch before, or from the same batch; and records are as the job has made them."""
    reports: list[BatchReport] = []
    stream.add(FIRST)
    stream.add(SECOND)
    stream.run(make(target, on_batch=reports.append))
    assert_same_multiset(target.rows(), LEFT, what="rows")
    if make is several:
        assert_same_multiset(target.rows(table="other"), LEFT[1:], what="rows of the other table")
    else:
        assert (reports[-1].row_count, reports[-1].rows_deleted, reports[-1].rows_left_out) == (8, 1, 4)
    last = {record.key: record.value for record in target.records()}
    assert (last[b"3"], json.loads(last[b"1"] or b"")["name"]) == (None, PLACEHOLDER)
    report = target.verify()
    # No topic has the records of the other table alone.
    assert (report.verdict, report.differences) == ("same" if make is one_table else "inconclusive", ())
    assert any("column name" in each.what and "unchanged_when" in each.why for each in report.not_checked)


def test_a_row_without_any_value_is_a_bad_row(stream: FileStream, target: Target) -> None:
    stream.add([*FIRST, (9, PLACEHOLDER, 1)])
    with pytest.raises(ConstraintError, match="id=9 have no value for some of name"):
        stream.run(one_table(target))
    assert target.rows() == []
    stream.add(SECOND)
    stream.run(one_table(target, bad_rows="dead_letter"))
    assert_same_multiset(target.rows(), LEFT, what="rows")
    letters = target.rows("row->>'id'", "kafka_transaction_state_dead_letters")
    assert {key for (key,) in letters} == {"9"}


def test_what_says_nothing_of_a_column_is_refused(spark: SparkSession, target: Target) -> None:
    refused = {
        r"unchanged_when\['name'\]='name': its type is string, and the type of a unchanged_when": {"name": "name"},
        "unchanged_when=.*'nme' is not among the columns": {"nme": "true"},
        r"unchanged_when\['name'\]=.*is not an expression over the batch's columns": {"name": "nme = ''"},
    }
    batch = spark.createDataFrame(FIRST, SCHEMA)
    for said, told in refused.items():
        with (
            pytest.raises(ConfigurationError, match=said),
            closing(one_table(target, unchanged_when=told)) as sink,
        ):
            sink.write(batch, batch_id=0)
