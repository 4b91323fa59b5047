"""Upsert with an order: a reader that keeps the last record of each key ends with the rows of the table. C9."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from spark_2pc_sink.testing import assert_same_multiset
from tests.integration.sink.targets import Row, Target, record_rows

if TYPE_CHECKING:
    from tests.support.streams import FileStream

KEYS = 200
#: Files of a batch: as many as tasks read at a time.
PARTS = 2
UPSERT: dict[str, Any] = {"key": "id", "mode": "upsert", "upsert_keys": ["id"], "upsert_order_by": "amount"}
SUPERSEDED = pytest.mark.parametrize("superseded", ["send_first", "leave_out"])


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


def last_rows(target: Target) -> list[Row]:
    """What a reader has at the end that keeps the last record of each key."""
    records = sorted(target.records(), key=lambda record: (record.partition, record.offset))
    return list({row[0]: row for row in record_rows(records)}.values())


def newest(rows: list[Row]) -> list[Row]:
    greatest = sorted(rows, key=lambda row: (row[2] is not None, row[2]))
    return list({row[0]: row for row in greatest}.values())


@pytest.mark.usefixtures("written_by")
@SUPERSEDED
def test_the_last_record_of_a_key_is_the_row_of_the_table(stream: FileStream, target: Target, superseded: str) -> None:
    """C9: several rows of a key in any order, across batches too."""
    batches = [versions_of(0), versions_of(1)]
    for rows in batches:
        stream.add(rows, partitions=PARTS)
    stream.run(target.sink(**UPSERT, upsert_superseded=superseded), stream.frame(files_per_batch=PARTS))
    assert_same_multiset(target.rows(), newest(batches[1]), what="rows")
    assert_same_multiset(last_rows(target), target.rows(), what="last records")
    sent = [row for rows in batches for row in (rows if superseded == "send_first" else newest(rows))]
    assert_same_multiset(record_rows(target.records()), sent, what="records")
