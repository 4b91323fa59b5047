"""The leader of one partition: appends, what is durable, what readers see, and a log that is opened again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from spark_2pc_sink.codes import Code
from spark_2pc_sink.reference.coordinator.plans import EndMarker
from spark_2pc_sink.reference.log.partition_log import NOT_FOUND, FoundOffset, Isolation, LogSettings, PartitionLog
from spark_2pc_sink.reference.storage.errors import LogFailedError
from spark_2pc_sink.reference.storage.files import MemoryStore, SegmentStore
from tests.unit.reference.batches import NOW_MS, append, append_in_transaction, client_batch, seen

UNCOMMITTED, COMMITTED = Isolation.READ_UNCOMMITTED, Isolation.READ_COMMITTED
ENOUGH_BYTES = 1 << 20


def opened(place: Path | SegmentStore | None = None, *, leader_epoch: int = 0, **settings: Any) -> PartitionLog:
    return PartitionLog.open(place, topic="t", partition=3, leader_epoch=leader_epoch, settings=LogSettings(**settings))


@pytest.fixture
def log() -> PartitionLog:
    """A log in memory."""
    return opened()


def end(pid: int, epoch: int, *, commit: bool = True, coordinator: int = 0, version: int = 2) -> EndMarker:
    return EndMarker(pid, epoch, commit, coordinator, version)


def values(log: PartitionLog, offset: int = 0, isolation: Isolation = UNCOMMITTED) -> list[bytes | None]:
    data, _ = log.read(offset, max_bytes=ENOUGH_BYTES, isolation=isolation, min_one=True)
    return [record.value for record in seen(data)]


async def test_readers_see_what_is_durable(log: PartitionLog) -> None:
    outcome = append(log, client_batch([b"a", b"b"]))
    assert (outcome.code, outcome.base_offset, outcome.log_append_time_ms) == (0, 0, -1)
    assert (log.end_offset, log.high_watermark, log.last_stable_offset) == (2, 0, 0)
    assert values(log) == []
    moved = log.changed()
    assert not moved.done()
    await log.flush()
    assert moved.done()
    assert (log.high_watermark, log.last_stable_offset) == (2, 2)
    assert values(log, 1) == [b"a", b"b"]
    assert not log.changed().done()


# --- finding offsets --------------------------------------------------------------------------------------------------


async def test_offsets_are_found_by_time_as_far_as_the_reader_may_see(log: PartitionLog) -> None:
    append(log, client_batch([b"a", b"b"], timestamps_ms=[10, 30]))
    append(log, client_batch([b"c"], timestamps_ms=[20], compression=3))
    assert await log.offset_for_timestamp(0, UNCOMMITTED) == NOT_FOUND
    await log.flush()
    found = [await log.offset_for_timestamp(ms, UNCOMMITTED) for ms in (0, 10, 11, 30, 31)]
    assert found == [
        *(FoundOffset(0, 10, 0), FoundOffset(0, 10, 0)),
        *(FoundOffset(1, 30, 0), FoundOffset(1, 30, 0)),
        NOT_FOUND,
    ]
    assert await log.offset_of_max_timestamp(UNCOMMITTED) == FoundOffset(1, 30, 0)
    append_in_transaction(log, [b"d"], producer=(7, 0), sequence=0)
    await log.flush()
    assert await log.offset_for_timestamp(31, UNCOMMITTED) == FoundOffset(3, NOW_MS, 0)
    assert await log.offset_for_timestamp(31, COMMITTED) == NOT_FOUND
    assert (log.latest(UNCOMMITTED).offset, log.latest(COMMITTED).offset, log.earliest().offset) == (4, 3, 0)


def test_leader_epochs_are_read_back_from_the_batches() -> None:
    store = MemoryStore()
    for epoch in (0, 1, 2):
        log = opened(store, leader_epoch=epoch)
        if epoch != 1:
            append(log, client_batch([b"a", b"b"]))
    log = opened(store, leader_epoch=5)
    append(log, client_batch([b"a", b"b"]))
    expected = {
        -1: (-1, -1),
        0: (0, 2),
        1: (0, 2),
        2: (2, 4),
        4: (2, 4),
        5: (5, 6),
        6: (-1, -1),
    }
    assert {epoch: log.offset_for_epoch(epoch) for epoch in expected} == expected
    assert log.latest(UNCOMMITTED).leader_epoch == 5
    assert [record.batch.leader_epoch for record in log.records()] == [0, 0, 2, 2, 5, 5]


# --- opened again, and failing ----------------------------------------------------------------------------------------


async def test_a_full_disk_refuses_and_takes_again_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """B32: and the log says so, once for all who try."""
    log = opened(tmp_path)
    batch = client_batch(producer=(7, 0), sequence=0)

    def full(*_: object) -> int:
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", full)
        assert append(log, batch).code == Code.KAFKA_STORAGE_ERROR
        assert log.append_marker(end(7, 1), now_ms=NOW_MS) == Code.KAFKA_STORAGE_ERROR
        assert log.append_records([(b"k", b"v")], now_ms=NOW_MS).code == Code.KAFKA_STORAGE_ERROR
    assert (log.end_offset, list(log.producers())) == (0, [])
    assert append(log, batch).base_offset == 0
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    assert f"{tmp_path}: cannot write records, refusing them: No space left" in caplog.text
    assert "can be written again" in caplog.text
    await log.flush()
    log.close()


async def test_after_a_failed_fdatasync_readers_see_no_more_and_writers_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """B32: and the log says what settles it."""
    log = opened(tmp_path)
    append(log, client_batch([b"safe"]))
    await log.flush()

    def broken(_: int) -> None:
        raise OSError("Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", broken)
        append(log, client_batch([b"lost"]))
        failed = await log.flush()
        assert isinstance(failed, LogFailedError)
        assert "Input/output error" in str(failed)
    assert append(log, client_batch()).code == Code.KAFKA_STORAGE_ERROR
    assert isinstance(await log.flush(), LogFailedError)
    assert (log.high_watermark, values(log)) == (1, [b"safe"])
    assert "refusing records until the next start reads what the disk has: Input/output error" in caplog.text
    log.close()
