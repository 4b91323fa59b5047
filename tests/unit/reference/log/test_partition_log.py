"""The leader of one partition: appends, what readers see, reopening; and random interleavings against a plain list."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from spark_2pc_sink.codes import Code
from spark_2pc_sink.reference.coordinator.plans import EndMarker
from spark_2pc_sink.reference.log.partition_log import NOT_FOUND, FoundOffset, Isolation, LogSettings, PartitionLog
from spark_2pc_sink.reference.storage.files import MemoryStore, SegmentStore
from spark_2pc_sink.reference.storage.segmented_log import LogFailedError
from tests.unit.reference.batches import NOW_MS, append, append_in_transaction, client_batch, read_back, seen
from tests.unit.reference.waiting import present

UNCOMMITTED, COMMITTED = Isolation.READ_UNCOMMITTED, Isolation.READ_COMMITTED
ENOUGH_BYTES = 1 << 20


def opened(place: Path | SegmentStore | None = None, *, leader_epoch: int = 0, **settings: Any) -> PartitionLog:
    return PartitionLog.open(place, topic="t", partition=3, leader_epoch=leader_epoch, settings=LogSettings(**settings))


@pytest.fixture
def log() -> PartitionLog:
    """A log in memory."""
    return opened()


def end(pid: int, epoch: int, *, commit: bool = True) -> EndMarker:
    return EndMarker(pid, epoch, commit, coordinator_epoch=0, transaction_version=2)


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
        FoundOffset(0, 10, 0),
        FoundOffset(0, 10, 0),
        FoundOffset(1, 30, 0),
        FoundOffset(1, 30, 0),
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


#: So small that a handful of batches fills one.
SEGMENT_BYTES = 12_000
PRODUCERS = range(4)

COMMANDS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.sampled_from(PRODUCERS), st.integers(1, 3), st.sampled_from([10, 600, 3000])),
        st.tuples(st.just("end"), st.sampled_from(PRODUCERS), st.booleans(), st.just(0)),
        st.tuples(st.just("plain"), st.just(0), st.integers(1, 3), st.sampled_from([10, 2000])),
        st.tuples(st.just("sync"), st.just(0), st.just(0), st.just(0)),
    ),
    max_size=60,
)


@dataclass
class Transaction:
    """One transaction as this test remembers it."""

    pid: int
    first_offset: int
    values: list[tuple[int, bytes]] = field(default_factory=list)
    marker_offset: int | None = None
    committed: bool = False


@dataclass
class Model:
    """Everything that happened, in lists."""

    transactions: list[Transaction] = field(default_factory=list)
    plain: list[tuple[int, bytes]] = field(default_factory=list)

    def open(self, pid: int) -> Transaction | None:
        return next((each for each in self.transactions if each.pid == pid and each.marker_offset is None), None)

    def stable_offset(self, high_watermark: int) -> int:
        """No transaction that is open, as far as is visible, begins below it."""
        unstable = [
            each.first_offset
            for each in self.transactions
            if each.marker_offset is None or each.marker_offset >= high_watermark
        ]
        return min([high_watermark, *unstable])

    def committed_below(self, offset: int) -> list[tuple[int, bytes]]:
        committed = [value for each in self.transactions if each.committed for value in each.values]
        return sorted(each for each in [*self.plain, *committed] if each[0] < offset)


async def play(log: PartitionLog, commands: list[tuple[str, int, int, int]]) -> Model:
    """Do to a log what the commands say, and remember it."""
    model = Model()
    epochs = dict.fromkeys(PRODUCERS, 0)
    sequences = dict.fromkeys(PRODUCERS, 0)
    for number, (kind, pid, count, value_bytes) in enumerate(commands):
        at = log.end_offset
        values = [b"%d-%d" % (number, index) + bytes(value_bytes) for index in range(int(count))]
        if kind == "write":
            outcome = append_in_transaction(log, values, producer=(pid, epochs[pid]), sequence=sequences[pid])
            assert (outcome.code, outcome.base_offset) == (Code.NONE, at)
            if model.open(pid) is None:
                model.transactions.append(Transaction(pid, at))
            present(model.open(pid)).values += zip(range(at, at + count), values, strict=True)
            sequences[pid] += count
        elif kind == "end":
            epochs[pid] += 1
            sequences[pid] = 0
            assert log.append_marker(end(pid, epochs[pid], commit=bool(count)), now_ms=NOW_MS) == Code.NONE
            if (ended := model.open(pid)) is not None:
                ended.marker_offset, ended.committed = at, bool(count)
        elif kind == "plain":
            append(log, client_batch(values))
            model.plain += zip(range(at, at + count), values, strict=True)
        else:
            await log.flush()
        assert log.last_stable_offset == model.stable_offset(log.high_watermark)
    return model


def consume(log: PartitionLog, start: int, max_bytes: int) -> list[tuple[int, bytes]]:
    """Read committed records as a consumer does (``CompletedFetch.nextFetchedRecord``)."""
    found: list[tuple[int, bytes]] = []
    offset = start
    while offset < log.last_stable_offset:
        records, aborted = log.read(offset, max_bytes=max_bytes, isolation=Isolation.READ_COMMITTED, min_one=True)
        waiting = sorted(present(aborted), key=lambda each: each[1])
        active: set[int] = set()
        batches = read_back(records)
        assert batches
        for batch in batches:
            last_offset = batch.base_offset + batch.last_offset_delta
            while waiting and waiting[0][1] <= last_offset:
                active.add(waiting.pop(0)[0])
            if batch.is_control_batch:
                (marker,) = batch
                if marker.key == b"\0\0\0\0":
                    active.discard(batch.producer_id)
            elif not (batch.is_transactional and batch.producer_id in active):
                found += [(record.offset, record.value) for record in batch if record.offset >= offset]
            offset = max(offset, last_offset + 1)
    return found


@given(COMMANDS, st.sampled_from([0, 700, 5000, 1 << 20]), st.data())
async def test_a_read_committed_consumer_gets_exactly_what_was_committed(
    commands: list[tuple[str, int, int, int]], max_bytes: int, data: st.DataObject
) -> None:
    log = opened(MemoryStore(), segment_bytes=SEGMENT_BYTES)
    model = await play(log, commands)
    start = data.draw(st.integers(0, log.last_stable_offset))
    expected = [each for each in model.committed_below(log.last_stable_offset) if each[0] >= start]
    assert consume(log, start, max_bytes) == expected


@given(COMMANDS)
async def test_a_crash_after_any_command_loses_only_guards(commands: list[tuple[str, int, int, int]]) -> None:
    store = MemoryStore()
    log = opened(store, segment_bytes=SEGMENT_BYTES)
    await play(log, commands)
    await log.flush()
    again = opened(store, leader_epoch=1, segment_bytes=SEGMENT_BYTES)
    assert again.high_watermark == log.high_watermark
    assert again.last_stable_offset == log.last_stable_offset
    assert list(again.producers()) == list(log.producers())
    assert again._state.aborted.between(0, 1 << 20) == log._state.aborted.between(0, 1 << 20)
    assert consume(again, 0, 1 << 20) == consume(log, 0, 1 << 20)
    for pid in PRODUCERS:
        assert again._state.producers.entry(pid) == log._state.producers.entry(pid)
