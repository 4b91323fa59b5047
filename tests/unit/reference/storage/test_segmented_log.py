"""The segments of a partition against a plain list of batches; batches in the broker's hands; group commit."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import struct
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import google_crc32c
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import RemoteProtocolError
from spark_2pc_sink.reference.coordinator.plans import EndMarker
from spark_2pc_sink.reference.storage import segmented_log
from spark_2pc_sink.reference.storage.batches import (
    BatchError,
    build_batch,
    build_marker,
    decode_records,
    encode_key_values,
    inspect,
    is_whole,
    read_marker,
    stamp_batch,
)
from spark_2pc_sink.reference.storage.files import DiskFile, DiskStore, MemoryStore, SegmentStore
from spark_2pc_sink.reference.storage.segmented_log import CorruptLogError, GroupSync, SegmentedLog
from spark_2pc_sink.wire.batch_format import CONTROL_BIT, HEADER_BYTES, TRANSACTIONAL_BIT, StoredMarker, read_header
from spark_2pc_sink.wire.batch_reader import decode_record_batches
from spark_2pc_sink.wire.record_batch import Compression, compress
from tests.unit.reference.batches import NOW_MS, client_batch, read_back, seen
from tests.unit.reference.waiting import present

SEGMENT_BYTES = 20_000
#: Batches by their records and the bytes of each.
SHAPES = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 3000)), max_size=40)


def opened(store: SegmentStore, taken: list[bytes] | None = None) -> SegmentedLog:
    """A log after its recovery, which adds the batches that it finds to ``taken``."""
    log = SegmentedLog(store)
    log.recover(lambda _header, batch: None if taken is None else taken.append(batch))
    return log


def append(log: SegmentedLog, count: int, value_bytes: int, *, segment_bytes: int = SEGMENT_BYTES) -> bytes:
    batch = build_batch(encode_key_values([(None, bytes(value_bytes))] * count), record_count=count, timestamp_ms=1)
    stamped = stamp_batch(batch, read_header(batch), base_offset=log.end_offset, leader_epoch=0)
    log.append(stamped, segment_bytes=segment_bytes)
    return b"".join(stamped.parts)


def in_segments(batches: list[bytes]) -> list[list[bytes]]:
    segments: list[list[bytes]] = [[]]
    for batch in batches:
        if segments[-1] and sum(map(len, segments[-1])) + len(batch) > SEGMENT_BYTES:
            segments.append([])
        segments[-1].append(batch)
    return segments


@given(SHAPES, st.data())
def test_a_read_gives_whole_batches_of_one_segment(shapes: list[tuple[int, int]], data: st.DataObject) -> None:
    log = opened(MemoryStore())
    batches = [append(log, count, value_bytes) for count, value_bytes in ((1, 1), *shapes)]
    offset = data.draw(st.integers(0, log.end_offset - 1))
    limits = [read_header(batch).base_offset for batch in batches] + [log.end_offset]
    limit = data.draw(st.sampled_from([each for each in limits if each > offset]))
    max_bytes = data.draw(st.integers(0, 30_000))
    min_one = data.draw(st.booleans())
    found, _ = log.read(offset, max_bytes=max_bytes, min_one=min_one, limit_offset=limit)

    segments = in_segments(batches)
    number = max(index for index, segment in enumerate(segments) if read_header(segment[0]).base_offset <= offset)
    segment = segments[number]
    visible = [batch for batch in segment if offset <= read_header(batch).last_offset < limit]
    expected = [batch for end, batch in enumerate(visible, 1) if sum(map(len, visible[:end])) <= max_bytes]
    if not expected and min_one:
        expected = visible[:1]
    assert found == b"".join(expected)


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


def full_disk(*_arguments: object) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


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


@pytest.mark.parametrize("read_bytes", [61, 333, 1 << 20])
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


def test_a_first_segment_that_is_missing_is_told(tmp_path: Path) -> None:
    """Nothing deletes segments, so a log begins at 0."""
    store = DiskStore(tmp_path)
    store.segment(5).close()
    with pytest.raises(CorruptLogError, match="the earliest one begins at offset 5"):
        opened(store)


BYTES = st.one_of(st.none(), st.binary(max_size=200))

#: Field of the header, where it is, and how it is packed.
FIELDS = {
    "base offset": (0, ">q"),
    "length": (8, ">i"),
    "magic": (16, ">b"),
    "attributes": (21, ">h"),
    "last offset delta": (23, ">i"),
    "base sequence": (53, ">i"),
    "record count": (57, ">i"),
}


def changed(batch: bytes, **values: int) -> bytes:
    """The batch with other values in its header, and a CRC that fits."""
    data = bytearray(batch)
    for name, value in values.items():
        position, form = FIELDS[name.replace("_", " ")]
        struct.pack_into(form, data, position, value)
    struct.pack_into(">I", data, 17, google_crc32c.value(bytes(data[21:])))
    return bytes(data)


def refusal(batch: bytes) -> Code:
    with pytest.raises(BatchError) as caught:
        inspect(batch)
    return caught.value.code


@pytest.mark.parametrize("compression", range(5))
def test_a_clients_batch_is_taken_whatever_its_compression(compression: int) -> None:
    plain = client_batch([b"a" * 100, b"b"], producer=(5, 3), sequence=9, transactional=True)
    # Compressed as our own writer does.
    made = plain[:HEADER_BYTES] + bytes(compress(pa.py_buffer(plain[HEADER_BYTES:]), Compression(compression)))
    batch = changed(made, attributes=read_header(plain).attributes | compression, length=len(made) - 12)
    header = inspect(memoryview(bytearray(batch)))
    assert header == read_header(batch)
    assert (header.size_bytes, header.record_count, header.last_offset) == (len(batch), 2, 1)
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.last_sequence) == (5, 3, 9, 10)
    assert (header.transactional, header.control, header.compression) == (True, False, compression)
    assert [(record.offset, record.value) for record in decode_records(batch, header)] == [(0, b"a" * 100), (1, b"b")]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"base_offset": 1}, Code.INVALID_RECORD),
        ({"length": 48}, Code.CORRUPT_MESSAGE),
        ({"length": 1 << 20}, Code.INVALID_RECORD),
        ({"attributes": TRANSACTIONAL_BIT | CONTROL_BIT}, Code.INVALID_RECORD),
        ({"base_sequence": -1}, Code.INVALID_RECORD),
        ({"record_count": 0, "last_offset_delta": -1}, Code.INVALID_RECORD),
        ({"record_count": 2**31 - 1, "last_offset_delta": 2**31 - 2}, Code.INVALID_RECORD),
    ],
    ids=str,
)
def test_what_no_client_may_send(values: dict[str, int], expected: Code) -> None:
    """``ProduceRequest.validateRecords`` and ``LogValidator.validateBatch``."""
    assert refusal(changed(client_batch(producer=(5, 0), sequence=0), **values)) == expected


def test_every_wrong_bit_behind_the_crc_is_found() -> None:
    batch = client_batch()
    for position in range(17, len(batch)):
        damaged = bytearray(batch)
        damaged[position] ^= 0x10
        assert refusal(bytes(damaged)) == Code.CORRUPT_MESSAGE
        assert not is_whole(bytes(damaged), read_header(damaged))
    assert is_whole(batch, read_header(batch))


def test_a_stamp_changes_the_first_bytes_only_and_copies_no_record() -> None:
    batch = client_batch([b"a", b"b"])
    stamped = stamp_batch(batch, inspect(batch), base_offset=1000, leader_epoch=7)
    data = b"".join(stamped.parts)
    assert data[:16] == struct.pack(">qii", 1000, len(batch) - 12, 7)
    assert data[16:] == batch[16:]
    assert isinstance(stamped.parts[1], memoryview)
    assert stamped.parts[1].obj is batch
    assert stamped.header == read_header(data)
    assert [record.offset for record in seen(data)] == [1000, 1001]


@given(st.lists(st.tuples(BYTES, BYTES), min_size=1, max_size=20))
def test_records_of_the_broker_are_read_by_others(records: list[tuple[bytes | None, bytes | None]]) -> None:
    batch = build_batch(encode_key_values(records), record_count=len(records), timestamp_ms=NOW_MS)
    assert [(record.key, record.value) for record in seen(batch)] == records
    header = read_header(batch)
    assert [(each.offset, each.timestamp_ms, each.key, each.value) for each in decode_records(batch, header)] == [
        (offset, NOW_MS, key, value) for offset, (key, value) in enumerate(records)
    ]


@pytest.mark.parametrize("commit", [True, False])
def test_an_end_marker_is_what_consumers_take_for_one(commit: bool) -> None:
    """KIP-98, "Control Records"."""
    batch = build_marker(EndMarker(5, 3, commit, coordinator_epoch=2), timestamp_ms=NOW_MS)
    (decoded,) = decode_record_batches(batch)
    assert decoded.marker == StoredMarker(commit, 2)
    assert (decoded.transactional, decoded.control, decoded.base_sequence) == (True, True, -1)
    (read,) = read_back(batch)
    assert read.is_control_batch
    assert read_marker(batch, read_header(batch)) == StoredMarker(commit, 2)


@pytest.mark.parametrize("codec", list(Compression)[1:])
def test_compressed_data_that_is_cut_off_anywhere_is_refused_by_both_readers(codec: Compression) -> None:
    """D13. Snappy has no end of its own and an empty zstd is nothing: there the number of records tells."""
    chance = random.Random(codec.value)
    section = encode_key_values([(b"%d" % n, chance.randbytes(250)) for n in range(300)])
    packed = bytes(memoryview(compress(pa.py_buffer(section), codec)))
    edges = {*range(40), *range(len(packed) - 40, len(packed))}
    for size in sorted(edges | {chance.randrange(len(packed)) for _ in range(100)}):
        batch = build_batch(packed[:size], record_count=300, timestamp_ms=NOW_MS, attributes=codec.value)
        with pytest.raises(BatchError) as caught:
            list(decode_records(batch, read_header(batch)))
        assert caught.value.code == Code.CORRUPT_MESSAGE
        (decoded,) = decode_record_batches(batch)
        with pytest.raises(RemoteProtocolError):
            list(decoded.records())
    whole_batch = build_batch(packed, record_count=300, timestamp_ms=NOW_MS, attributes=codec.value)
    assert len(list(decode_records(whole_batch, read_header(whole_batch)))) == 300


DEADLINE_S = 20


class SlowDisk:
    """fdatasync that begins and ends when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = threading.Semaphore(0)
        self.may_end = threading.Semaphore(0)
        self.count = 0
        monkeypatch.setattr(DiskFile, "sync", lambda _file: self._sync())
        # Always in a thread.
        monkeypatch.setattr("spark_2pc_sink.reference.storage.segmented_log.INLINE_SECONDS_MAX", -1.0)

    def _sync(self) -> None:
        self.count += 1
        self.begun.release()
        assert self.may_end.acquire(timeout=DEADLINE_S)


async def test_all_who_ask_while_one_runs_share_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SlowDisk(monkeypatch)
    log = opened(DiskStore(tmp_path))
    durable: list[int] = []
    sync = GroupSync(log, durable.append)

    append(log, 1, 5)
    first = sync.request()
    assert await asyncio.to_thread(disk.begun.acquire, timeout=DEADLINE_S)
    same = sync.request()  # nothing was written since
    append(log, 1, 5)
    second = sync.request()
    append(log, 1, 5)
    third = sync.request()
    disk.may_end.release()
    assert (await first, await same) == (None, None)
    assert durable == [1]
    assert not second.done()
    assert not third.done()
    disk.may_end.release()
    assert (await second, await third) == (None, None)
    assert durable == [1, 3]
    assert disk.count == 2
    assert sync.request().done()
    sync.close()
