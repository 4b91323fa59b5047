"""How a task cuts its rows into parts, and where these lie on one machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from spark_2pc_sink.errors import BatchRetryError, LocalProtocolError
from spark_2pc_sink.sink.table.copy_stream import HEADER, TRAILER
from spark_2pc_sink.sink.transfer.row_encoder import PartWriter
from spark_2pc_sink.sink.transfer.staging_files import FileStaging

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class Parts:
    """A store that keeps what it is given."""

    def __init__(self) -> None:
        self.kept: list[tuple[int, bytes]] = []

    def put(self, number: int, stream: Sequence[Any]) -> None:
        self.kept.append((number, b"".join(stream)))


def test_every_part_is_a_complete_stream() -> None:
    parts = Parts()
    writer = PartWriter(parts, part_bytes=4)
    for piece in (b"", HEADER + b"ab", b"cd", b"", b"efghi"):
        writer.write(piece)
    writer.finish(b"j" + TRAILER)
    assert parts.kept == [
        (0, HEADER + b"abcd" + TRAILER),
        (1, HEADER + b"efghi" + TRAILER),
        (2, HEADER + b"j" + TRAILER),
    ]
    assert writer.parts == 3


def test_nothing_is_stored_for_no_rows() -> None:
    parts = Parts()
    PartWriter(parts, part_bytes=4).finish(HEADER + TRAILER)
    assert parts.kept == []


def test_a_stream_that_is_not_whole_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match="header"):
        PartWriter(Parts(), part_bytes=4).write(b"no header")
    with pytest.raises(LocalProtocolError, match="trailer"):
        PartWriter(Parts(), part_bytes=4).finish(b"no trailer")


def test_a_part_appears_when_it_is_complete(tmp_path: Path) -> None:
    with FileStaging(tmp_path / "rows").store(3, 7) as store:
        store.put(0, [b"pa", b"rt"])
    folder = tmp_path / "rows" / "3" / "7"
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {"0": b"part"}


def test_a_folder_that_is_gone_is_named(tmp_path: Path) -> None:
    staging = FileStaging(tmp_path / "gone" / "rows")
    with pytest.raises(BatchRetryError, match=r"/gone/rows/3 cannot be used: No such file or directory"):
        staging.store(3, 7).__enter__()


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    """As a device that is always full says it."""
    with FileStaging(tmp_path / "rows").store(3, 7) as store:
        (tmp_path / "rows" / "3" / "7" / "unfinished").symlink_to("/dev/full")
        with pytest.raises(BatchRetryError, match=r"No space left on device; spark\.local\.dir"):
            store.put(0, [b"part"])
    assert not (tmp_path / "rows" / "3" / "7" / "0").exists()
