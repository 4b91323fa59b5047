"""Segment files, on disk as Kafka names them or in memory.

An append is one ``pwritev`` of the batch's parts at the file's known end. If it fails (ENOSPC, EIO), the
file is truncated to its previous size, so that a batch is written completely or not at all; if that fails too, the
caller must treat the file as lost. Nothing is durable before ``sync``. A failed ``sync`` must never be retried: the
kernel marks unwritten pages clean, and a second fdatasync would report success for data that is gone.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TypeAlias

from spark_2pc_sink.wire.batch_format import Buffer

SUFFIX: Final = ".log"
#: Decimal digits of the base offset in a file's name (``LogFileUtils.filenamePrefixFromOffset``).
_DIGITS: Final = 20
#: Never a valid descriptor.
_CLOSED: Final = 2**31 - 1


class TornFileError(OSError):
    """A write failed half way, and the partial data could not be removed."""


def segment_name(base_offset: int) -> str:
    return f"{base_offset:0{_DIGITS}d}{SUFFIX}"


def sync_directory(path: Path) -> None:
    """Wait until the names of all files are on disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class DiskFile:
    """The bytes of one segment; `sync` may be called in a thread."""

    def __init__(self, path: Path) -> None:
        self.path: str = str(path)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self.size_bytes: int = os.fstat(self._descriptor).st_size

    def append(self, parts: Sequence[Buffer]) -> None:
        """Append the parts in sequence, all or nothing; TornFileError if a partial write could not be truncated."""
        total = sum(map(len, parts))
        try:
            written = os.pwritev(self._descriptor, parts, self.size_bytes)
            if written < total:  # a disk that is nearly full, or more than the 2 GiB that the kernel takes at once
                self._write_rest(memoryview(b"".join(parts))[written:], self.size_bytes + written)
        except OSError:
            try:
                os.ftruncate(self._descriptor, self.size_bytes)
            except OSError as error:
                message = f"{self.path} could not be truncated to {self.size_bytes} bytes: {error}"
                raise TornFileError(message) from error
            raise
        self.size_bytes += total

    def read(self, position: int, count: int) -> bytes:
        """Up to ``count`` bytes from ``position``; fewer at the end."""
        return os.pread(self._descriptor, count, position)

    def truncate(self, size_bytes: int) -> None:
        os.ftruncate(self._descriptor, size_bytes)
        self.size_bytes = size_bytes

    def sync(self) -> None:
        os.fdatasync(self._descriptor)

    def close(self) -> None:
        """Later uses get EBADF, not another file that has reused the number."""
        descriptor, self._descriptor = self._descriptor, _CLOSED
        os.close(descriptor)

    def _write_rest(self, rest: memoryview, position: int) -> None:
        # Ends: each round writes a byte at least, or raises.
        while rest:
            written = os.pwrite(self._descriptor, rest, position)
            if not written:
                raise OSError(f"nothing more could be written to {self.path}")
            rest = rest[written:]
            position += written


class DiskStore:
    """The segments of a partition in a directory, which must exist; those missing are created empty."""

    on_disk: bool = True

    def __init__(self, directory: Path) -> None:
        self.path: str = str(directory)
        self._directory = directory

    def base_offsets(self) -> list[int]:
        names = (path.name.removesuffix(SUFFIX) for path in self._directory.glob(f"*{SUFFIX}"))
        return sorted(int(name) for name in names if len(name) == _DIGITS and name.isdecimal())

    def segment(self, base_offset: int) -> DiskFile:
        return DiskFile(self._directory / segment_name(base_offset))

    def sync(self) -> None:
        sync_directory(self._directory)


class MemoryFile:
    """A segment in memory; written data counts as durable."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._data = bytearray()

    @property
    def size_bytes(self) -> int:
        return len(self._data)

    def append(self, parts: Sequence[Buffer]) -> None:
        for part in parts:
            self._data += part

    def read(self, position: int, count: int) -> bytes:
        with memoryview(self._data) as view:
            return bytes(view[position : position + count])

    def truncate(self, size_bytes: int) -> None:
        del self._data[size_bytes:]

    def sync(self) -> None: ...

    def close(self) -> None: ...


class MemoryStore:
    """Segments in memory; a log that is reopened on the same store finds them, as on disk."""

    on_disk: bool = False

    def __init__(self) -> None:
        self.path = "memory"
        self._files: dict[int, MemoryFile] = {}

    def base_offsets(self) -> list[int]:
        return sorted(self._files)

    def segment(self, base_offset: int) -> MemoryFile:
        return self._files.setdefault(base_offset, MemoryFile(segment_name(base_offset)))

    def sync(self) -> None: ...


SegmentFile: TypeAlias = DiskFile | MemoryFile
SegmentStore: TypeAlias = DiskStore | MemoryStore
