"""Opening what a crash has left: torn writes are cut off, damage is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_2pc_sink.reference.storage import segmented_log
from spark_2pc_sink.reference.storage.batches import build_batch, encode_records, stamp_batch
from spark_2pc_sink.reference.storage.errors import CorruptLogError
from spark_2pc_sink.reference.storage.files import DiskStore, MemoryStore, segment_name
from spark_2pc_sink.reference.storage.segmented_log import SegmentedLog
from spark_2pc_sink.wire.batch_format import BatchHeader, read_header


class Log(SegmentedLog):
    """A log that remembers what recovery told."""

    def __init__(self, store: DiskStore | MemoryStore) -> None:
        super().__init__(store)
        self.taken: list[BatchHeader] = []
        self.recover(lambda header, _batch: self.taken.append(header))


def fill(store: DiskStore | MemoryStore, sizes: list[int], *, segment_bytes: int = 1 << 20) -> list[bytes]:
    log = Log(store)
    batches = []
    for size in sizes:
        batch = build_batch(encode_records([(None, bytes(size))] * 2), record_count=2, timestamp_ms=1)
        stamped = stamp_batch(batch, read_header(batch), base_offset=log.end_offset, leader_epoch=3)
        log.append(stamped, segment_bytes=segment_bytes)
        batches.append(b"".join(stamped.parts))
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
        log = Log(store)
        assert [header.base_offset for header in log.taken] == [0, 2]
        assert (log.end_offset, log.recovered_cut_bytes) == (4, kept)
        assert store.segment(0).read(0, 10_000) == first + second
    log = Log(holding(first + second + last))
    assert (log.end_offset, log.recovered_cut_bytes) == (6, 0)


def test_a_wrong_bit_anywhere_in_the_last_batch_cuts_it_off() -> None:
    """Blocks of an unfinished write may reach the disk in any order. The leader epoch is not covered by the CRC."""
    first, last = fill(MemoryStore(), [5, 20])
    for position in [*range(12), *range(16, len(last))]:
        damaged = bytearray(last)
        damaged[position] ^= 0x40
        log = Log(holding(first + bytes(damaged)))
        assert (log.end_offset, log.recovered_cut_bytes) == (2, len(last)), position


def test_what_follows_a_torn_batch_goes_with_it() -> None:
    """It was never acknowledged: a sync covers everything before."""
    first, torn, whole = fill(MemoryStore(), [5, 20, 30])
    log = Log(holding(first + bytes(len(torn)) + whole))
    assert (log.end_offset, log.recovered_cut_bytes) == (2, len(torn) + len(whole))


def test_a_file_of_zeros_is_an_empty_log() -> None:
    """A crash may leave the length of a file without its content."""
    log = Log(holding(bytes(5000)))
    assert (log.end_offset, log.recovered_cut_bytes, log.size_bytes) == (0, 5000, 0)


@pytest.mark.parametrize("read_bytes", [61, 100, 333, 1000, 1 << 20])
def test_batches_are_whole_however_they_lie_in_what_is_read_at_once(
    read_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segmented_log, "READ_BYTES", read_bytes)
    store = MemoryStore()
    batches = fill(store, [5, 300, 1, 40, 2000, 7])
    assert Log(store).taken == [read_header(batch) for batch in batches]


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
        Log(DiskStore(tmp_path))
    assert [file.read_bytes() for file in files] == before


def test_a_segment_that_is_missing_is_told(tmp_path: Path) -> None:
    fill(DiskStore(tmp_path), [400] * 6, segment_bytes=2000)
    missing = sorted(tmp_path.iterdir())[1]
    missing.unlink()
    with pytest.raises(CorruptLogError, match=r"it ends at offset 4, the next segment begins at 8"):
        Log(DiskStore(tmp_path))


def test_a_last_segment_that_is_empty_or_torn_leaves_the_one_before(tmp_path: Path) -> None:
    batches = fill(DiskStore(tmp_path), [400, 400])
    (tmp_path / segment_name(4)).write_bytes(batches[0][:50])
    log = Log(DiskStore(tmp_path))
    assert (log.end_offset, log.recovered_cut_bytes) == (4, 50)
    log.close()


def test_a_first_segment_that_is_missing_is_told(tmp_path: Path) -> None:
    """Nothing deletes segments, so a log begins at 0."""
    store = DiskStore(tmp_path)
    store.segment(5).close()
    with pytest.raises(CorruptLogError, match="the first that is there begins at offset 5"):
        SegmentedLog(store).recover(lambda *_: None)
