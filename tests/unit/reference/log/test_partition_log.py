"""The leader of one partition: appends, what is durable, what readers see, and a log that is opened again."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_2pc_sink.codes import Code
from spark_2pc_sink.reference.log.log_values import (
    NOT_FOUND,
    EpochEnd,
    FoundOffset,
    Isolation,
    LeaderEpochs,
    LogSettings,
)
from spark_2pc_sink.reference.log.partition_log import PartitionLog
from spark_2pc_sink.reference.log.producer_state import EndMarker, VerificationGuard, Writer
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
    data = log.read(offset, max_bytes=ENOUGH_BYTES, isolation=isolation, min_one=True).records
    return [record.value for record in seen(data)]


async def test_readers_see_what_is_durable(log: PartitionLog) -> None:
    outcome = append(log, client_batch([b"a", b"b"]))
    assert (outcome.code, outcome.base_offset, outcome.log_append_time_ms, outcome.log_start_offset) == (0, 0, -1, 0)
    assert (log.end_offset, log.high_watermark, log.last_stable_offset) == (2, 0, 0)
    assert values(log) == []
    moved = log.changed()
    assert not moved.done()
    await log.sync()
    assert moved.done()
    assert (log.high_watermark, log.last_stable_offset) == (2, 2)
    assert values(log, 1) == [b"a", b"b"]
    assert not log.changed().done()


async def test_a_client_that_waits_for_nothing_is_flushed_all_the_same(tmp_path: Path) -> None:
    """acks=0 and acks=1: nobody awaits, and readers see the records soon."""
    log = opened(tmp_path)
    append(log, client_batch())
    moved = log.changed()
    log.flush()
    await asyncio.wait([moved], timeout=20)
    assert log.high_watermark == 1
    log.close()


@pytest.mark.parametrize(
    ("settings", "batch", "expected"),
    [
        ({"message_max_bytes": 100}, client_batch([bytes(100)]), Code.MESSAGE_TOO_LARGE),
        ({"segment_bytes": 100}, client_batch([bytes(100)]), Code.RECORD_LIST_TOO_LARGE),
        ({}, client_batch(timestamps_ms=[NOW_MS + 3_600_001]), Code.INVALID_TIMESTAMP),
        ({}, client_batch(producer=(7, 0), sequence=0, transactional=True), Code.INVALID_TXN_STATE),
        ({}, client_batch(timestamps_ms=[NOW_MS + 3_600_000]), Code.NONE),
        ({"log_append_time": True}, client_batch(timestamps_ms=[NOW_MS + 3_600_001]), Code.NONE),
    ],
)
def test_what_a_partition_refuses(settings: dict[str, Any], batch: bytes, expected: Code) -> None:
    log = opened(**settings)
    outcome = append(log, batch)
    assert outcome.code == expected
    assert (outcome.base_offset, outcome.log_start_offset) == ((-1, -1) if expected else (0, 0))
    assert log.end_offset == (0 if expected else 1)


# --- transactions -----------------------------------------------------------------------------------------------------


def test_where_the_broker_gives_the_time_its_own_batches_say_so_as_well() -> None:
    """LogValidator stamps what every origin appends: the bit 0x08 in end markers and in records of the coordinators."""
    log = opened(log_append_time=True)
    append_in_transaction(log, [b"x"], producer=(7, 0), sequence=0)
    assert log.append_marker(end(7, 1), now_ms=NOW_MS) == 0
    assert log.append_records([(b"k", b"v")], now_ms=NOW_MS).log_append_time_ms == -1
    assert [each.batch.attributes for each in log.records()] == [0x18, 0x38, 0x08]
    assert {each.timestamp_ms for each in log.records()} == {NOW_MS}


async def test_offsets_of_groups_are_records_of_the_broker_inside_a_transaction(log: PartitionLog) -> None:
    """``__consumer_offsets``: no sequences, the same guard."""
    writer = Writer(7, 2)
    records = [(b"k", b"v"), (b"l", None)]
    assert log.append_records(records, now_ms=NOW_MS, producer=writer).code == Code.INVALID_TXN_STATE
    guard = log.start_verification(writer, supports_epoch_bump=True, now_ms=NOW_MS)
    assert isinstance(guard, VerificationGuard)
    outcome = log.append_records(records, now_ms=NOW_MS, producer=writer, guard=guard)
    assert (outcome.code, outcome.base_offset) == (0, 0)
    assert log.append_records(records, now_ms=NOW_MS, producer=writer).base_offset == 2
    assert log.append_records(records, now_ms=NOW_MS).base_offset == 4
    fenced = log.append_records(records, now_ms=NOW_MS, producer=Writer(7, 1))
    assert fenced.code == Code.INVALID_PRODUCER_EPOCH
    assert log.append_marker(end(7, 3), now_ms=NOW_MS) == 0
    assert [(record.offset, record.key, record.value, record.batch.control) for record in log.records(3)] == [
        (3, b"l", None, False),
        (4, b"k", b"v", False),
        (5, b"l", None, False),
        (6, b"\0\0\0\1", b"\0\0\0\0\0\0", True),
    ]


# --- finding offsets --------------------------------------------------------------------------------------------------


async def test_offsets_are_found_by_time_as_far_as_the_reader_may_see(log: PartitionLog) -> None:
    append(log, client_batch([b"a", b"b"], timestamps_ms=[10, 30]))
    append(log, client_batch([b"c"], timestamps_ms=[20], compression=3))
    assert await log.offset_for_timestamp(0, UNCOMMITTED) == NOT_FOUND
    await log.sync()
    found = [await log.offset_for_timestamp(ms, UNCOMMITTED) for ms in (0, 10, 11, 30, 31)]
    assert found == [
        *(FoundOffset(0, 10, 0), FoundOffset(0, 10, 0)),
        *(FoundOffset(1, 30, 0), FoundOffset(1, 30, 0)),
        NOT_FOUND,
    ]
    assert await log.offset_of_max_timestamp(UNCOMMITTED) == FoundOffset(1, 30, 0)
    append_in_transaction(log, [b"d"], producer=(7, 0), sequence=0)
    await log.sync()
    assert await log.offset_for_timestamp(31, UNCOMMITTED) == FoundOffset(3, NOW_MS, 0)
    assert await log.offset_for_timestamp(31, COMMITTED) == NOT_FOUND
    assert (log.latest(UNCOMMITTED).offset, log.latest(COMMITTED).offset, log.earliest().offset) == (4, 3, 0)


async def test_the_largest_timestamp_is_that_of_a_record_that_is_left(log: PartitionLog) -> None:
    """KIP-734, after DeleteRecords (KIP-107): a deleted record's offset is no place to read from."""
    for timestamps_ms in ([50], [10], [30, 20, 25], [5]):
        append(log, client_batch([b"v"] * len(timestamps_ms), timestamps_ms=timestamps_ms))
    await log.sync()
    found = []
    for start in range(7):
        log.delete_before(start)
        largest = await log.offset_of_max_timestamp(UNCOMMITTED)
        found.append((largest.offset, largest.timestamp_ms))
    assert found == [(0, 50), (2, 30), (2, 30), (4, 25), (4, 25), (5, 5), (-1, -1)]


async def test_an_empty_log_has_no_times_and_no_batches() -> None:
    log = opened(leader_epoch=4)
    assert await log.offset_of_max_timestamp(UNCOMMITTED) == NOT_FOUND
    assert (log.earliest(), log.latest(COMMITTED)) == (FoundOffset(0, -1, 4), FoundOffset(0, -1, 4))
    assert log.offset_for_epoch(4) == EpochEnd(4, 0)


def test_leader_epochs_are_read_back_from_the_batches() -> None:
    store = MemoryStore()
    for epoch in (0, 1, 2):
        log = opened(store, leader_epoch=epoch)
        if epoch != 1:
            append(log, client_batch([b"a", b"b"]))
    log = opened(store, leader_epoch=5)
    append(log, client_batch([b"a", b"b"]))
    expected = {
        -1: EpochEnd(-1, -1),
        0: EpochEnd(0, 2),
        1: EpochEnd(0, 2),
        2: EpochEnd(2, 4),
        4: EpochEnd(2, 4),
        5: EpochEnd(5, 6),
        6: EpochEnd(-1, -1),
    }
    assert {epoch: log.offset_for_epoch(epoch) for epoch in expected} == expected
    assert log.latest(UNCOMMITTED).leader_epoch == 5
    assert [record.batch.leader_epoch for record in log.records()] == [0, 0, 2, 2, 5, 5]


# --- opened again, and failing ----------------------------------------------------------------------------------------


async def test_a_log_on_disk_is_opened_as_it_was(tmp_path: Path) -> None:
    log = opened(tmp_path, segment_bytes=1000)
    for number in range(20):
        append_in_transaction(log, [b"%d" % number], producer=(number, 0), sequence=0)
        if number % 3:
            log.append_marker(end(number, 1, commit=number % 2 == 0), now_ms=NOW_MS)
    await log.sync()
    log.close()
    again = opened(tmp_path, segment_bytes=1000, leader_epoch=1)
    assert len(again._log._segments) > 2
    assert again.recovered_cut_bytes == 0
    assert (again.high_watermark, again.last_stable_offset) == (log.high_watermark, log.last_stable_offset)
    assert again.last_stable_offset == 0
    assert list(again.producers()) == list(log.producers())
    assert again._state.aborted.entries == log._state.aborted.entries
    assert len(again._state.aborted.entries) == 7
    again.close()
    settings = LogSettings(segment_bytes=1000)
    log = PartitionLog.open(tmp_path, topic="t", partition=3, leader_epoch=2, settings=settings, log_start_offset=5)
    assert (log.log_start_offset, log.last_stable_offset) == (5, 5)
    log.close()


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
    await log.sync()
    log.close()


async def test_after_a_failed_fdatasync_readers_see_no_more_and_writers_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """B32: and the log says what settles it."""
    log = opened(tmp_path)
    append(log, client_batch([b"safe"]))
    await log.sync()

    def broken(_: int) -> None:
        raise OSError("Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", broken)
        append(log, client_batch([b"lost"]))
        with pytest.raises(LogFailedError, match="Input/output error"):
            await log.sync()
    assert append(log, client_batch()).code == Code.KAFKA_STORAGE_ERROR
    with pytest.raises(LogFailedError):
        await log.sync()
    assert (log.high_watermark, values(log)) == (1, [b"safe"])
    assert "refusing records until the next start reads what the disk has: Input/output error" in caplog.text
    log.close()


async def test_a_waiting_client_that_goes_away_takes_nobody_along(tmp_path: Path) -> None:
    log = opened(tmp_path)
    append(log, client_batch())
    impatient, patient = asyncio.ensure_future(log.sync()), asyncio.ensure_future(log.sync())
    await asyncio.sleep(0)
    impatient.cancel()
    await patient
    assert log.high_watermark == 1
    log.close()


async def test_closing_wakes_readers_and_refuses_writers(log: PartitionLog) -> None:
    moved = log.changed()
    log.close()
    log.close()
    assert moved.done()
    assert append(log, client_batch()).code == Code.KAFKA_STORAGE_ERROR


#: Steps from one record's epoch to the next one's.
STEPS = st.lists(st.integers(0, 3), max_size=30)


@given(STEPS, st.integers(-2, 30))
def test_the_end_of_an_epoch_is_where_a_later_one_begins(steps: list[int], asked: int) -> None:
    epochs = LeaderEpochs()
    written: list[int] = []
    for step in steps:
        written.append((written[-1] if written else 0) + step)
        epochs.begin(written[-1], len(written) - 1)
    answer = epochs.end_of(asked, len(written))
    known = [epoch for epoch in written if epoch <= asked]
    if asked < 0 or not written or asked > written[-1]:
        assert answer == EpochEnd(-1, -1)
    elif known:
        assert answer == EpochEnd(known[-1], len(known))
    else:
        assert answer == EpochEnd(asked, 0)
    assert [epochs.at(offset) for offset in range(len(written))] == written
    assert epochs.latest == (written[-1] if written else -1)
    assert epochs._epochs == sorted(set(written))  # however many batches an epoch has


def test_an_epoch_without_records_is_forgotten_when_the_next_begins() -> None:
    epochs = LeaderEpochs()
    for epoch, start in ((0, 0), (1, 5), (2, 5)):
        epochs.begin(epoch, start)
    assert epochs.end_of(1, 9) == EpochEnd(0, 5)
    epochs.begin(1, 9)
    assert epochs.latest == 2
