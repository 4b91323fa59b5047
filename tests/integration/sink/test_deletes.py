"""Deletes through the sink: the table loses the row, a compacted topic the key; also when a batch comes again."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from spark_2pc_sink import BatchReport, DualWriteSink
from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.recipe.steps import Step
from spark_2pc_sink.testing import assert_same_multiset, wait_until
from tests.integration.sink.targets import SCHEMA, Row, Target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.harness.streams import FileStream

DELETES: dict[str, Any] = {
    "key": "id",
    "mode": "upsert",
    "upsert_keys": ["id"],
    "upsert_order_by": "amount",
    "delete_when": "name = 'gone'",
    "tombstones": True,
}
#: The amount is the order. A deletion wins against one upsert and loses against another; a null name deletes nothing.
FIRST: list[Row] = [(1, "a", 1), (2, "b", 1), (3, "c", 1), (4, None, 1)]
SECOND: list[Row] = [(1, "gone", 2), (2, "gone", 2), (2, "back", 3), (5, "e", 2), (5, "gone", 3), (6, "f", 1)]
LEFT: list[Row] = [(2, "back", 3), (3, "c", 1), (4, None, 1), (6, "f", 1)]


def sink(target: Target, reports: list[BatchReport] | None = None, **options: Any) -> DualWriteSink:
    return target.sink(**{**DELETES, "on_batch": None if reports is None else reports.append, **options})


def add(stream: FileStream, *batches: Iterable[Row]) -> None:
    for rows in batches:
        stream.add(list(rows))


def last_values(target: Target, records: int) -> dict[int, Any]:
    """What a reader has that keeps the last record of each key; without those that a tombstone removes."""
    wait_until(lambda: len(target.records()) >= records, deadline_s=30, what=f"{records} records")
    last = {int(record.key or b"0"): record.value for record in target.records()}
    return {key: json.loads(value) for key, value in last.items() if value is not None}


def check(target: Target, records: int = len(FIRST) + len(SECOND)) -> None:
    """The table, a reader of the compacted topic, and `verify` agree."""
    assert_same_multiset(target.rows(), LEFT, what="rows")
    values = [(value["id"], value.get("name"), value.get("amount")) for value in last_values(target, records).values()]
    assert_same_multiset(values, LEFT, what="last records")
    report = target.verify()
    assert report.verdict == "same", report.differences


def test_a_deleted_row_is_on_neither_side(stream: FileStream, target: Target) -> None:
    reports: list[BatchReport] = []
    add(stream, FIRST, SECOND)
    stream.run(sink(target, reports, upsert_superseded="leave_out"))
    check(target, len(FIRST) + 4)
    last = reports[-1]
    assert (last.row_count, last.rows_deleted, last.rows_left_out) == (6, 1, 2)


def test_deletions_that_kafka_is_owed_are_sent_again(
    stream: FileStream, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B7: the second transaction is lost behind its decision; the table is asked for nothing."""
    add(stream, FIRST, SECOND)
    steps = target.abort_once(monkeypatch, batch=1)
    stream.run(
        sink(
            target,
            on_decide=["CREATE TABLE IF NOT EXISTS audit (batch bigint)", "INSERT INTO audit VALUES (:batch_id)"],
        )
    )
    assert steps.count(Step.PRODUCE) == 3
    check(target)
    assert target.rows("batch", "audit") == [(0,), (1,)]


def test_without_tombstones_the_event_is_a_record_as_any(stream: FileStream, target: Target) -> None:
    add(stream, FIRST, SECOND)
    stream.run(sink(target, tombstones=False))
    assert_same_multiset(target.rows(), LEFT, what="rows")
    assert last_values(target, len(FIRST) + len(SECOND))[1]["name"] == "gone"


def test_what_cannot_be_deleted_by_is_refused(spark: SparkSession, target: Target) -> None:
    batch = spark.createDataFrame(FIRST, SCHEMA)
    refused: dict[str, dict[str, Any]] = {
        "tombstone_when=.*the records have no key": {"key": None},
        "its type is string, and the type of a delete_when must be boolean": {"delete_when": "name"},
        "delete_when=.*is not an expression over the batch's columns": {"delete_when": "nme = 'd'"},
    }
    for said, options in refused.items():
        with pytest.raises(ConfigurationError, match=said), closing(sink(target, **options)) as refusing:
            refusing.write(batch, batch_id=0)
