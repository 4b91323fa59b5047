"""Segment files: names, appends that are whole or not at all, and disks that fail."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from spark_2pc_sink.reference.storage.files import (
    DiskFile,
    DiskStore,
    MemoryStore,
    SegmentStore,
    TornFileError,
    segment_name,
)


@pytest.fixture(params=["disk", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> SegmentStore:
    return DiskStore(tmp_path) if request.param == "disk" else MemoryStore()


def full_disk(*_arguments: object) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_files_are_named_as_kafka_names_them() -> None:
    assert segment_name(0) == "00000000000000000000.log"
    assert segment_name(9_223_372_036_854_775_807) == "09223372036854775807.log"


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
    with pytest.raises(TornFileError, match="could not be cut back to 0 bytes"):
        file.append([b"lost"])


def test_a_closed_file_is_no_other_file(tmp_path: Path) -> None:
    """Its number may belong to a file that was opened since."""
    file = DiskFile(tmp_path / "f")
    file.append([b"mine"])
    file.close()
    other = DiskFile(tmp_path / "g")
    for use in (lambda: file.read(0, 1), lambda: file.append([b"x"]), file.sync):
        with pytest.raises(OSError, match=r"Bad file descriptor|could not be cut back"):
            use()
    assert (tmp_path / "g").read_bytes() == b""
    other.close()
