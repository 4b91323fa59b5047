"""Upsert with an order: a reader that keeps the last record of each key ends with the rows of the table. C9."""

from __future__ import annotations

import random
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from spark_2pc_sink.recipe.steps import Step
from spark_2pc_sink.testing import TopicRecord, assert_same_multiset, wait_until
from tests.integration.sink.targets import Row, Target, record_rows

if TYPE_CHECKING:
    from tests.harness.streams import FileStream

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
    wait_until(lambda: len(target.records()) >= count, deadline_s=30, what=f"{count} records")
    return target.records()


def last_rows(records: list[TopicRecord]) -> list[Row]:
    """What a reader has at the end that keeps the last record of each key."""
    return list({record.key: row for record, row in zip(records, record_rows(records), strict=True)}.values())


def newest(rows: list[Row]) -> list[Row]:
    greatest = sorted(rows, key=lambda row: (row[2] is not None, row[2]))
    return list({row[0]: row for row in greatest}.values())


def check(target: Target, batches: list[list[Row]], superseded: str) -> None:
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
    check(target, batches, superseded)


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
    check(target, [rows], "leave_out")


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
    check(target, [rows], "leave_out")
    counts = target.rows("row_count, record_count", "kafka_transaction_state")
    assert counts == [(len(rows), len(newest(rows)))]


def test_an_owed_batch_is_sent_again_in_the_same_order(
    stream: FileStream, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B7, C9: Kafka has lost the transaction; what is sent again has the same records, and winners last."""
    rows = versions_of(0)
    stream.add(rows, partitions=PARTS)
    steps = target.abort_once(monkeypatch)
    stream.run(target.sink(**UPSERT, upsert_superseded="leave_out"), stream.frame(files_per_batch=PARTS))
    assert steps.count(Step.PRODUCE) == 2
    check(target, [rows], "leave_out")


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
