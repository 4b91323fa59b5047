"""Rows by key in both sides: the newest of a key wins, a row may delete, or lack a value for a column."""

from __future__ import annotations

import json
import random
import shutil
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_2pc_sink import BatchReport, Records, Rows
from spark_2pc_sink.errors import ConfigurationError, ConstraintError
from spark_2pc_sink.recipe.steps import Step
from spark_2pc_sink.testing import TopicRecord, assert_same_multiset, wait_until
from tests.harness.streams import FileStream
from tests.integration.sink.targets import SCHEMA, Row, Target, record_rows

KEYS = 200
#: Files of a batch: as many as tasks read at a time.
PARTS = 2
UPSERT: dict[str, Any] = {"key": "id", "mode": "upsert", "upsert_keys": ["id"], "upsert_order_by": "amount"}


def versions_of(batch: int, *, keys: int = KEYS, versions: int = 5) -> list[Row]:
    """Several rows of each key in any order, and as many keys with one row; the amount tells which is the newest."""
    rows: list[Row] = [
        (key, f"batch {batch}, version {version}", None if version == 0 else batch * 100 + version)
        for key in range(keys)
        for version in range(versions)
    ]
    rows += [(keys + key, f"batch {batch}, alone", key) for key in range(keys)]
    random.Random(batch).shuffle(rows)
    return rows


def committed(target: Target, count: int) -> list[TopicRecord]:
    """The committed records, in the order of each partition: the broker writes the last markers a moment later."""
    wait_until(lambda: len(target.records()) >= count, what=f"{count} records")
    return target.records()


def last_rows(records: list[TopicRecord]) -> list[Row]:
    """What a reader has at the end that keeps the last record of each key."""
    return list({record.key: row for record, row in zip(records, record_rows(records), strict=True)}.values())


def newest(rows: list[Row]) -> list[Row]:
    greatest = sorted(rows, key=lambda row: (row[2] is not None, row[2]))
    return list({row[0]: row for row in greatest}.values())


def check_winners(target: Target, batches: list[list[Row]], superseded: str) -> None:
    """The table has the newest of each key, a reader of the last records has the same, and each record came once."""
    kept: dict[int, Row] = {}
    for rows in batches:
        kept |= {row[0]: row for row in newest(rows)}
    assert_same_multiset(target.rows(), list(kept.values()), what="rows")
    sent = [row for rows in batches for row in (rows if superseded == "send_first" else newest(rows))]
    records = committed(target, len(sent))
    assert_same_multiset(record_rows(records), sent, what="records")
    assert_same_multiset(last_rows(records), list(kept.values()), what="last records")


def test_the_last_record_of_a_key_is_the_row_of_the_table(stream: FileStream, target: Target, written_by: str) -> None:
    """C9: several rows of a key in any order, across batches too, where later ones win on both sides."""
    superseded = {"tasks": "send_first", "driver": "leave_out"}[written_by]
    batches = [versions_of(1), versions_of(0)]
    for rows in batches:
        stream.add(rows, partitions=PARTS)
    stream.run(target.sink(**UPSERT, upsert_superseded=superseded), stream.frame(files_per_batch=PARTS))
    check_winners(target, batches, superseded)


def test_the_same_of_a_batch_of_many_frames(stream: FileStream, target: Target) -> None:
    """C9, C10: rows of several tasks, in many record batches."""
    rows = versions_of(0, keys=10_000)
    stream.add(rows, partitions=PARTS)
    sink = target.sink(
        **UPSERT,
        kafka={"bootstrap.servers": target.broker.bootstrap, "batch.size": "20000", "compression.type": "zstd"},
        upsert_superseded="leave_out",
    )
    stream.run(sink, stream.frame(files_per_batch=PARTS))
    check_winners(target, [rows], "leave_out")


def test_keys_of_several_columns_and_an_order_that_no_column_has(stream: FileStream, target: Target) -> None:
    """A text and a number are the key; the order is an expression."""
    rows: list[Row] = [(key, f"n-{key % 3}", version) for version in range(4) for key in range(300)]
    random.Random(1).shuffle(rows)
    stream.add(rows, partitions=PARTS)
    sink = target.sink(
        key="concat(name, '-', id)",
        mode="upsert",
        upsert_keys=["name", "id"],
        upsert_order_by="concat('v', 10 - amount)",
        upsert_superseded="leave_out",
    )
    stream.run(sink, stream.frame(files_per_batch=PARTS))
    # By its bytes 'v9' is the greatest, and 'v10' the least.
    kept = [row for row in rows if row[2] == 1]
    assert_same_multiset(target.rows(), kept, what="rows")
    assert_same_multiset(last_rows(committed(target, len(kept))), kept, what="last records")


def test_a_replay_is_known_by_the_records_that_were_sent(stream: FileStream, target: Target) -> None:
    """A1, A7, C9: the same batch comes again and is skipped; the state row counts what each side has."""
    rows = versions_of(0)
    stream.add(rows, partitions=PARTS)
    frame = stream.frame(files_per_batch=PARTS)
    stream.run(target.sink(**UPSERT, upsert_superseded="leave_out"), frame)
    shutil.rmtree(stream.checkpoint / "commits")
    stream.run(target.sink(**UPSERT, upsert_superseded="leave_out"), frame)
    check_winners(target, [rows], "leave_out")
    assert target.state("row_count, record_count") == [(len(rows), len(newest(rows)))]


def test_an_owed_batch_is_sent_again_in_the_same_order(
    stream: FileStream, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B7, C9: Kafka has lost the transaction; what is sent again has the same records, and winners last."""
    rows = versions_of(0)
    stream.add(rows, partitions=PARTS)
    steps = target.abort_once(monkeypatch)
    stream.run(target.sink(**UPSERT, upsert_superseded="leave_out"), stream.frame(files_per_batch=PARTS))
    assert steps.count(Step.PRODUCE) == 2
    check_winners(target, [rows], "leave_out")


def test_a_late_row_is_kept_out_of_the_table_only(stream: FileStream, target: Target) -> None:
    """C9: with keep_newer the table has the newest of all batches; Kafka has each record, the late ones last."""
    batches: list[list[Row]] = [[(1, "new", 5), (2, "old", 1)], [(1, "late", 4), (2, "new", 2), (3, "first", 0)]]
    for rows in batches:
        stream.add(rows)
    stream.run(target.sink(**UPSERT, upsert_late_rows="keep_newer"))
    assert_same_multiset(target.rows(), newest(batches[0] + batches[1]), what="rows")
    records = record_rows(committed(target, 5))
    assert_same_multiset(records, batches[0] + batches[1], what="records")
    # A reader that compares the order, as the table does, has the table.
    assert_same_multiset(newest(records), target.rows(), what="newest records")


# --- rows that delete: the table loses the row, a compacted topic the key -------------------------------------------

DELETES: dict[str, Any] = {**UPSERT, "delete_when": "name = 'gone'", "tombstones": True}
#: The amount is the order. A deletion wins against one upsert and loses against another; a null name deletes nothing.
FIRST: list[Row] = [(1, "a", 1), (2, "b", 1), (3, "c", 1), (4, None, 1)]
SECOND: list[Row] = [(1, "gone", 2), (2, "gone", 2), (2, "back", 3), (5, "e", 2), (5, "gone", 3), (6, "f", 1)]
LEFT: list[Row] = [(2, "back", 3), (3, "c", 1), (4, None, 1), (6, "f", 1)]


@pytest.fixture
def two_batches(stream: FileStream) -> FileStream:
    stream.add(FIRST)
    stream.add(SECOND)
    return stream


def check_deleted(target: Target, records: int = len(FIRST) + len(SECOND)) -> None:
    """The table, a reader of the compacted topic, and `verify` agree."""
    assert_same_multiset(target.rows(), LEFT, what="rows")
    last = {record.key: record for record in committed(target, records)}
    left = record_rows([record for record in last.values() if record.value is not None])
    assert_same_multiset(left, LEFT, what="last records")
    target.assert_same()


def test_a_deleted_row_is_on_neither_side(two_batches: FileStream, target: Target) -> None:
    reports: list[BatchReport] = []
    two_batches.run(target.sink(**DELETES, on_batch=reports.append, upsert_superseded="leave_out"))
    check_deleted(target, len(FIRST) + 4)
    last = reports[-1]
    assert (last.row_count, last.rows_deleted, last.rows_left_out) == (6, 1, 2)


def test_deletions_that_kafka_is_owed_are_sent_again(
    two_batches: FileStream, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B7: the second transaction is lost behind its decision; the table is asked for nothing."""
    steps = target.abort_once(monkeypatch, batch=1)
    audit = ["CREATE TABLE IF NOT EXISTS audit (batch bigint)", "INSERT INTO audit VALUES (:batch_id)"]
    two_batches.run(target.sink(**DELETES, on_decide=audit))
    assert steps.count(Step.PRODUCE) == 3
    check_deleted(target)
    assert target.rows("batch", "audit") == [(0,), (1,)]


def test_without_tombstones_the_event_is_a_record_as_any(two_batches: FileStream, target: Target) -> None:
    two_batches.run(target.sink(**{**DELETES, "tombstones": False}))
    assert_same_multiset(target.rows(), LEFT, what="rows")
    assert (1, "gone", 2) in last_rows(committed(target, len(FIRST) + len(SECOND)))


# --- rows without a value for a column, as Debezium's placeholder of one that was not changed -----------------------

PLACEHOLDER = "__debezium_unavailable_value"
#: The amount is the order.
OLD: list[Row] = [(1, "one", 1), (2, "two", 1), (3, "three", 1)]
NEW: list[Row] = [
    (1, PLACEHOLDER, 2),
    *[(2, "TWO", 2), (2, PLACEHOLDER, 3)],
    *[(3, PLACEHOLDER, 2), (3, "gone", 3)],
    *[(4, "four", 1), (4, PLACEHOLDER, 2), (4, PLACEHOLDER, 3)],
]
KEPT: list[Row] = [(1, "one", 2), (2, "TWO", 3), (4, "four", 3)]
UNCHANGED: dict[str, Any] = {"unchanged_when": {"name": f"name = '{PLACEHOLDER}'"}}
#: Shorter than the placeholder: it must not even be staged.
NARROW = "CREATE TABLE target (id bigint PRIMARY KEY, name varchar(9) NOT NULL, amount integer)"


def one_table(target: Target) -> dict[str, Any]:
    return {**DELETES, **UNCHANGED}


def several(target: Target) -> dict[str, Any]:
    keyed: dict[str, Any] = {"mode": "upsert", "keys": ["id"], "order_by": "amount", "delete_when": "name = 'gone'"}
    return {
        "writes": [
            Records(target.topic, key="id", tombstone_when="name = 'gone'"),
            Rows("other", **keyed, **UNCHANGED, where="id > 1", create_table=True),
            Rows("target", **keyed, **UNCHANGED),
        ]
    }


@pytest.mark.parametrize("options", [one_table, several])
def test_the_table_keeps_the_newest_value(stream: FileStream, target: Target, options: Any) -> None:
    """From the batch before, or from the same batch; and records are as the job has made them."""
    target.execute(NARROW)
    reports: list[BatchReport] = []
    stream.add(OLD)
    stream.add(NEW)
    stream.run(target.sink(**options(target), on_batch=reports.append))
    assert_same_multiset(target.rows(), KEPT, what="rows")
    if options is several:
        assert_same_multiset(target.rows(table="other"), KEPT[1:], what="rows of the other table")
    else:
        assert (reports[-1].row_count, reports[-1].rows_deleted, reports[-1].rows_left_out) == (8, 1, 4)
    last = {record.key: record.value for record in target.records()}
    assert (last[b"3"], json.loads(last[b"1"] or b"")["name"]) == (None, PLACEHOLDER)
    report = target.verify()
    # No topic has the records of the other table alone.
    assert (report.verdict, report.differences) == ("same" if options is one_table else "inconclusive", ())
    assert any("column name" in each.what and "unchanged_when" in each.why for each in report.not_checked)


def test_a_row_without_any_value_is_a_bad_row(stream: FileStream, target: Target) -> None:
    target.execute(NARROW)
    stream.add([*OLD, (9, PLACEHOLDER, 1)])
    with pytest.raises(ConstraintError, match="id=9 have no value for some of name"):
        stream.run(target.sink(**one_table(target)))
    assert target.rows() == []
    stream.add(NEW)
    stream.run(target.sink(**one_table(target), bad_rows="dead_letter"))
    assert_same_multiset(target.rows(), KEPT, what="rows")
    assert set(target.letters("row->>'id'")) == {("9",)}


REFUSED: dict[str, dict[str, Any]] = {
    "tombstone_when=.*the records have no key": {"key": None},
    "its type is string, and the type of a delete_when must be boolean": {"delete_when": "name"},
    "delete_when=.*is not an expression over the batch's columns": {"delete_when": "nme = 'd'"},
    r"unchanged_when\['name'\]='name': its type is string, and the type of a unchanged_when": {
        "unchanged_when": {"name": "name"}
    },
    "unchanged_when=.*'nme' is not among the columns": {"unchanged_when": {"nme": "true"}},
    r"unchanged_when\['name'\]=.*is not an expression over the batch's columns": {
        "unchanged_when": {"name": "nme = ''"}
    },
}


def test_what_tells_nothing_of_a_row_is_refused(spark: SparkSession, target: Target) -> None:
    batch = spark.createDataFrame(FIRST, SCHEMA)
    for said, options in REFUSED.items():
        with pytest.raises(ConfigurationError, match=said):
            target.write(batch, **{**DELETES, **options})
