"""The segments of a partition: appended, rolled, found and read, against a plain list of batches."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_2pc_sink.reference.storage import segmented_log
from spark_2pc_sink.reference.storage.batches import build_batch, encode_records, stamp_batch
from spark_2pc_sink.reference.storage.errors import CorruptLogError
from spark_2pc_sink.reference.storage.files import (
    DiskFile,
    DiskStore,
    MemoryStore,
    SegmentStore,
    TornFileError,
    segment_name,
)
from spark_2pc_sink.reference.storage.segmented_log import INDEX_INTERVAL_BYTES, RELATIVE_OFFSET_MAX, SegmentedLog
from spark_2pc_sink.wire.batch_format import BatchHeader, read_header
from tests.unit.reference.waiting import present

SEGMENT_BYTES = 20_000
#: Batches by their records and the bytes of each.
SHAPES = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 3000)), max_size=40)


def opened(store: SegmentStore, taken: list[bytes] | None = None) -> SegmentedLog:
    """A log after its recovery, which adds the batches that it finds to ``taken``."""
    log = SegmentedLog(store)
    log.recover(lambda _header, batch: None if taken is None else taken.append(batch))
    return log


def append(
    log: SegmentedLog, count: int, value_bytes: int, *, ms: int = 1, segment_bytes: int = SEGMENT_BYTES
) -> bytes:
    batch = build_batch(encode_records([(None, bytes(value_bytes))] * count), record_count=count, timestamp_ms=ms)
    stamped = stamp_batch(batch, read_header(batch), base_offset=log.end_offset, leader_epoch=0)
    log.append(stamped, segment_bytes=segment_bytes)
    return b"".join(stamped.parts)


def filled(shapes: Iterable[tuple[int, int]]) -> tuple[SegmentedLog, list[bytes]]:
    log = opened(MemoryStore())
    return log, [append(log, count, value_bytes) for count, value_bytes in shapes]


def with_headers(batches: Iterable[bytes]) -> list[tuple[BatchHeader, bytes]]:
    return [(read_header(batch), batch) for batch in batches]


def index_offsets(batches: list[bytes]) -> list[tuple[int, int]]:
    """(position, last offset) of Kafka's index entries: a batch before which more than 4 KiB are without one."""
    entries, position, unindexed = [], 0, 0
    for header, batch in with_headers(batches):
        if unindexed > INDEX_INTERVAL_BYTES:
            entries.append((position, header.last_offset))
            unindexed = 0
        unindexed += len(batch)
        position += len(batch)
    return entries


def in_segments(batches: list[bytes]) -> list[list[bytes]]:
    segments: list[list[bytes]] = [[]]
    for batch in batches:
        if segments[-1] and sum(map(len, segments[-1])) + len(batch) > SEGMENT_BYTES:
            segments.append([])
        segments[-1].append(batch)
    return segments


@given(SHAPES, st.data())
def test_a_read_gives_whole_batches_of_one_segment(shapes: list[tuple[int, int]], data: st.DataObject) -> None:
    log, batches = filled([(1, 1), *shapes])
    offset = data.draw(st.integers(0, log.end_offset - 1))
    limits = [read_header(batch).base_offset for batch in batches] + [log.end_offset]
    limit = data.draw(st.sampled_from([each for each in limits if each > offset]))
    max_bytes = data.draw(st.integers(0, 30_000))
    min_one = data.draw(st.booleans())
    found = log.read(offset, max_bytes=max_bytes, min_one=min_one, limit_offset=limit)

    segments = in_segments(batches)
    number = max(index for index, segment in enumerate(segments) if read_header(segment[0]).base_offset <= offset)
    segment = segments[number]
    visible = [batch for batch in segment if offset <= read_header(batch).last_offset < limit]
    expected = [batch for end, batch in enumerate(visible, 1) if sum(map(len, visible[:end])) <= max_bytes]
    if not expected and min_one:
        expected = visible[:1]
    assert found.data == b"".join(expected)

    # Kafka's answer may end in the middle of a batch; it looks for aborted transactions behind that.
    start = sum(len(batch) for batch in segment if read_header(batch).last_offset < offset)
    size = min(sum(map(len, visible)), max(max_bytes, len(visible[0])) if min_one else max_bytes)
    following = [*(segment[0] for segment in segments[number + 1 :])]
    end = read_header(following[0]).base_offset if following else log.end_offset
    behind = [last_offset for position, last_offset in index_offsets(segment) if position >= start + size]
    assert found.upper_offset == (behind[0] if behind else end)


@given(SHAPES, st.data())
def test_batches_are_walked_from_any_offset(shapes: list[tuple[int, int]], data: st.DataObject) -> None:
    log, batches = filled(shapes)
    offset = data.draw(st.integers(0, log.end_offset))
    assert list(log.batches(offset)) == [each for each in with_headers(batches) if each[0].last_offset >= offset]


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3000), st.integers(0, 50))), st.integers(-1, 51))
def test_batches_are_found_by_time(shapes: list[tuple[int, int, int]], wanted_ms: int) -> None:
    log = opened(MemoryStore())
    batches = [append(log, count, value_bytes, ms=ms) for count, value_bytes, ms in shapes]
    assert list(log.batches_with_timestamp(wanted_ms)) == [
        each for each in with_headers(batches) if each[0].max_timestamp_ms >= wanted_ms
    ]


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3000), st.integers(0, 50))), st.data())
def test_the_largest_timestamp_is_that_of_what_begins_at_an_offset_or_behind_it(
    shapes: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    log = opened(MemoryStore())
    headers = [read_header(append(log, count, value_bytes, ms=ms)) for count, value_bytes, ms in shapes]
    offset = data.draw(st.integers(0, log.end_offset))
    expected = max((each.max_timestamp_ms for each in headers if each.base_offset >= offset), default=-1)
    assert log.max_timestamp_from(offset) == expected


@given(SHAPES)
def test_a_log_is_the_same_when_it_is_opened_again(shapes: list[tuple[int, int]]) -> None:
    store = MemoryStore()
    log = opened(store)
    batches = [append(log, count, value_bytes) for count, value_bytes in shapes]
    taken: list[bytes] = []
    again = opened(store, taken)
    assert taken == batches
    assert (again.end_offset, again.size_bytes, again.recovered_cut_bytes) == (log.end_offset, log.size_bytes, 0)
    assert list(again.batches(0)) == list(log.batches(0))
    for segment, before in zip(again._segments, log._segments, strict=True):
        assert vars(segment) | {"file": None} == vars(before) | {"file": None}


def test_segments_are_files_of_their_base_offset(tmp_path: Path) -> None:
    log = opened(DiskStore(tmp_path))
    batches = [append(log, 2, 4000) for _ in range(5)]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "00000000000000000000.log",
        "00000000000000000004.log",
        "00000000000000000008.log",
    ]
    assert (tmp_path / "00000000000000000004.log").read_bytes() == b"".join(batches[2:4])
    log.close()


def test_a_segment_has_no_more_offsets_than_kafkas_index_can_tell() -> None:
    log = opened(MemoryStore())
    append(log, 1, 1)
    batch = build_batch(b"", record_count=RELATIVE_OFFSET_MAX, timestamp_ms=1)
    log.append(stamp_batch(batch, read_header(batch), base_offset=1, leader_epoch=0), segment_bytes=SEGMENT_BYTES)
    append(log, 1, 1)
    assert [segment.base_offset for segment in log._segments] == [0, RELATIVE_OFFSET_MAX + 1]


def test_a_segment_is_on_disk_before_the_next_is_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that damage in it is never a torn write."""
    log = opened(DiskStore(tmp_path))
    append(log, 1, 15_000)
    synced: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", lambda _: synced.append(len(list(tmp_path.iterdir()))))
        append(log, 1, 15_000)
    assert synced == [1]
    assert len(list(tmp_path.iterdir())) == 2
    log.close()


def test_after_a_failed_fdatasync_nothing_more_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = opened(DiskStore(tmp_path))
    append(log, 1, 15_000)

    def broken(_: int) -> None:
        raise OSError("Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", broken)
        with pytest.raises(OSError, match="Input/output error"):
            append(log, 1, 15_000)
    assert log.end_offset == 1
    with pytest.raises(OSError, match=r"fdatasync of .*00000000000000000000\.log failed"):
        append(log, 1, 10)
    log.close()


def test_what_is_to_be_synced_is_given_once_and_names_with_every_new_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = opened(DiskStore(tmp_path))
    files: list[int] = []
    names: list[int] = []
    monkeypatch.setattr(os, "fdatasync", files.append)
    monkeypatch.setattr(os, "fsync", names.append)

    def synced(*sizes: int) -> tuple[int, int]:
        for size in sizes:
            append(log, 1, size)
        work = present(log.take_unsynced())
        files.clear()
        names.clear()
        work()
        return len(files), len(names)

    assert synced(10, 10) == (1, 1)
    assert synced(15_000) == (1, 0)
    assert synced(15_000) == (1, 1)
    assert synced(10, 15_000, 10) == (2, 1)
    assert synced() == (0, 0)
    log.close()


def test_a_length_that_cannot_be_is_damage(tmp_path: Path) -> None:
    """Met while reading: the disk has changed what was whole when the log was opened."""
    log = opened(DiskStore(tmp_path))
    append(log, 1, 10)
    append(log, 1, 10)
    with (tmp_path / "00000000000000000000.log").open("r+b") as file:
        file.seek(8)
        file.write(bytes(4))
    with pytest.raises(CorruptLogError, match="is damaged at byte 0: length 0"):
        list(log.batches(1))
    log.close()


@pytest.fixture(params=["disk", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> SegmentStore:
    return DiskStore(tmp_path) if request.param == "disk" else MemoryStore()


def full_disk(*_arguments: object) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_store_finds_its_segments_again(store: SegmentStore) -> None:
    assert store.base_offsets() == []
    for base_offset in (7, 0, 123_456):
        file = store.segment(base_offset)
        file.append([b"%d" % base_offset])
        file.sync()
        file.close()
    store.sync()
    assert store.base_offsets() == [0, 7, 123_456]
    assert store.segment(7).read(0, 100) == b"7"
    assert store.segment(7).size_bytes == 1


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    for name in ("partition.metadata", "1.log", "0000000000000000000x.log", "00000000000000000000.index"):
        (tmp_path / name).touch()
    assert DiskStore(tmp_path).base_offsets() == []


def test_parts_are_written_one_behind_the_other(store: SegmentStore) -> None:
    file = store.segment(0)
    file.append([b"ab", memoryview(b"xcdx")[1:3], bytearray(b"e")])
    file.append([b"f"])
    assert file.size_bytes == 6
    assert file.read(0, 100) == b"abcdef"
    assert file.read(2, 3) == b"cde"
    assert file.read(6, 1) == b""
    file.truncate(3)
    file.append([b"g"])
    assert file.read(0, 100) == b"abcg"


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ENOSPC half way through a batch: the next append, after space was made, goes where this one would have."""
    file = DiskFile(tmp_path / "f")
    file.append([b"whole"])
    real = os.pwritev

    def half(descriptor: int, parts: Sequence[Any], position: int) -> int:
        return real(descriptor, [b"".join(parts)[:3]], position)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", half)
        patch.setattr(os, "pwrite", full_disk)
        with pytest.raises(OSError, match="No space left"):
            file.append([b"lost", b"batch"])
    assert (tmp_path / "f").read_bytes() == b"whole"
    file.append([b" again"])
    assert (tmp_path / "f").read_bytes() == b"whole again"


def test_a_short_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = DiskFile(tmp_path / "f")
    real_pwritev, real_pwrite = os.pwritev, os.pwrite
    monkeypatch.setattr(
        os, "pwritev", lambda descriptor, parts, position: real_pwritev(descriptor, [b"".join(parts)[:3]], position)
    )
    monkeypatch.setattr(os, "pwrite", lambda descriptor, rest, position: real_pwrite(descriptor, rest[:2], position))
    file.append([b"ab", b"cdefgh"])
    assert (tmp_path / "f").read_bytes() == b"abcdefgh"
    monkeypatch.setattr(os, "pwrite", lambda *_: 0)
    with pytest.raises(OSError, match="nothing more could be written"):
        file.append([b"lost"])
    assert (tmp_path / "f").read_bytes() == b"abcdefgh"


def test_remains_that_cannot_be_cut_off_are_another_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = DiskFile(tmp_path / "f")
    monkeypatch.setattr(os, "pwritev", full_disk)
    monkeypatch.setattr(os, "ftruncate", full_disk)
    with pytest.raises(TornFileError, match="could not be truncated to 0 bytes"):
        file.append([b"lost"])


def test_a_closed_file_is_no_other_file(tmp_path: Path) -> None:
    """Its number may belong to a file that was opened since."""
    file = DiskFile(tmp_path / "f")
    file.append([b"mine"])
    file.close()
    other = DiskFile(tmp_path / "g")
    for use in (lambda: file.read(0, 1), lambda: file.append([b"x"]), file.sync):
        with pytest.raises(OSError, match=r"Bad file descriptor|could not be truncated"):
            use()
    assert (tmp_path / "g").read_bytes() == b""
    other.close()


def fill(store: SegmentStore, sizes: list[int], *, segment_bytes: int = 1 << 20) -> list[bytes]:
    log = opened(store)
    batches = [append(log, 2, size, segment_bytes=segment_bytes) for size in sizes]
    log.close()
    return batches


def holding(data: bytes) -> MemoryStore:
    store = MemoryStore()
    store.segment(0).append([data])
    return store


def test_a_torn_end_is_cut_off_at_every_byte() -> None:
    """Whatever part of the last batch reached the file, the log ends before it, and goes on from there."""
    first, second, last = fill(MemoryStore(), [5, 300, 40])
    for kept in range(len(last)):
        store = holding(first + second + last[:kept])
        taken: list[bytes] = []
        log = opened(store, taken)
        assert taken == [first, second]
        assert (log.end_offset, log.recovered_cut_bytes) == (4, kept)
        assert store.segment(0).read(0, 10_000) == first + second
    log = opened(holding(first + second + last))
    assert (log.end_offset, log.recovered_cut_bytes) == (6, 0)


def test_a_wrong_bit_anywhere_in_the_last_batch_cuts_it_off() -> None:
    """Blocks of an unfinished write may reach the disk in any order. The leader epoch is not covered by the CRC."""
    first, last = fill(MemoryStore(), [5, 20])
    for position in [*range(12), *range(16, len(last))]:
        damaged = bytearray(last)
        damaged[position] ^= 0x40
        log = opened(holding(first + bytes(damaged)))
        assert (log.end_offset, log.recovered_cut_bytes) == (2, len(last)), position


def test_what_follows_a_torn_batch_goes_with_it() -> None:
    """It was never acknowledged: a sync covers everything before."""
    first, torn, whole = fill(MemoryStore(), [5, 20, 30])
    log = opened(holding(first + bytes(len(torn)) + whole))
    assert (log.end_offset, log.recovered_cut_bytes) == (2, len(torn) + len(whole))


def test_a_file_of_zeros_is_an_empty_log() -> None:
    """A crash may leave the length of a file without its content."""
    log = opened(holding(bytes(5000)))
    assert (log.end_offset, log.recovered_cut_bytes, log.size_bytes) == (0, 5000, 0)


@pytest.mark.parametrize("read_bytes", [61, 100, 333, 1000, 1 << 20])
def test_batches_are_whole_however_they_lie_in_what_is_read_at_once(
    read_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segmented_log, "READ_BYTES", read_bytes)
    store = MemoryStore()
    batches = fill(store, [5, 300, 1, 40, 2000, 7])
    taken: list[bytes] = []
    opened(store, taken)
    assert taken == batches


@pytest.mark.parametrize("damage", ["flipped", "cut"])
def test_damage_in_an_earlier_segment_is_told_and_nothing_is_changed(tmp_path: Path, damage: str) -> None:
    """Kafka would drop all segments behind it, and with them what it has acknowledged."""
    batches = fill(DiskStore(tmp_path), [400] * 6, segment_bytes=2000)
    files = sorted(tmp_path.iterdir())
    assert len(files) == 3
    data = bytearray(files[1].read_bytes())
    position = len(batches[2])
    if damage == "flipped":
        data[position + 100] ^= 1
    else:
        del data[-5:]
    files[1].write_bytes(data)
    before = [file.read_bytes() for file in files]
    with pytest.raises(CorruptLogError, match=rf"{files[1].name} is damaged at byte {position}: no whole batch at"):
        opened(DiskStore(tmp_path))
    assert [file.read_bytes() for file in files] == before


def test_a_segment_that_is_missing_is_told(tmp_path: Path) -> None:
    fill(DiskStore(tmp_path), [400] * 6, segment_bytes=2000)
    missing = sorted(tmp_path.iterdir())[1]
    missing.unlink()
    with pytest.raises(CorruptLogError, match=r"it ends at offset 4, the next segment begins at 8"):
        opened(DiskStore(tmp_path))


def test_a_last_segment_that_is_empty_or_torn_leaves_the_one_before(tmp_path: Path) -> None:
    batches = fill(DiskStore(tmp_path), [400, 400])
    (tmp_path / segment_name(4)).write_bytes(batches[0][:50])
    log = opened(DiskStore(tmp_path))
    assert (log.end_offset, log.recovered_cut_bytes) == (4, 50)
    log.close()


def test_a_first_segment_that_is_missing_is_told(tmp_path: Path) -> None:
    """Nothing deletes segments, so a log begins at 0."""
    store = DiskStore(tmp_path)
    store.segment(5).close()
    with pytest.raises(CorruptLogError, match="the earliest one begins at offset 5"):
        opened(store)
