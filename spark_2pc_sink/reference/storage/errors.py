"""Errors about the bytes of a partition."""

from __future__ import annotations

from dataclasses import dataclass

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import DualWriteError


@dataclass(eq=False, kw_only=True)
class BatchError(DualWriteError):
    """A record batch that a partition refuses. ``code`` is the answer to the client that sent it."""

    code: Code
    detail: str

    def __str__(self) -> str:
        return f"record batch refused with {self.code.name} ({self.code.value}): {self.detail}"


@dataclass(eq=False, kw_only=True)
class CorruptLogError(DualWriteError):
    """A segment file is damaged where a crash cannot have damaged it. Nothing was changed."""

    path: str
    position_bytes: int
    detail: str

    def __str__(self) -> str:
        return (
            f"{self.path} is damaged at byte {self.position_bytes}: {self.detail}. It was complete on disk before the "
            "next segment was begun, so this is not a torn write; nothing was changed. Restore the file from a copy, "
            "or delete the directory of the partition if its records are not needed"
        )


@dataclass(eq=False, kw_only=True)
class ShortLogError(DualWriteError):
    """A log is shorter than it was on disk before: acknowledged records are missing. Nothing was changed."""

    path: str
    end_offset: int
    durable_end: int

    def __str__(self) -> str:
        return (
            f"{self.path} ends at offset {self.end_offset}, and was on disk up to offset {self.durable_end} when the "
            "node last started or stopped: acknowledged records are damaged or missing, which no crash explains. "
            "Nothing was changed. Restore the file from a copy; or, to give these records up, remove log-ends.json "
            "from the data directory: logs are then accepted as they are"
        )


@dataclass(eq=False, kw_only=True)
class UnreadableRecordError(DualWriteError):
    """A record in a coordinator's own log that this version cannot decode. Nothing was changed."""

    path: str
    topic: str
    partition: int
    offset: int
    detail: str

    def __str__(self) -> str:
        return (
            f"the record at offset {self.offset} of {self.topic}-{self.partition}, in {self.path}, cannot be "
            f"decoded: {self.detail}. The coordinator does not start, because the record's content would be lost; "
            "nothing was changed. Start the version that wrote it, or restore the data directory from a copy"
        )


@dataclass(eq=False, kw_only=True)
class LogFailedError(DualWriteError):
    """The disk failed under a partition. Writes not known to be durable may be lost; the log takes no more."""

    path: str
    operation: str
    detail: str

    def __str__(self) -> str:
        return (
            f"{self.operation} of {self.path} failed: {self.detail}; the partition refuses records with "
            "KAFKA_STORAGE_ERROR (56). Repair the disk and restart the node: intact records are kept"
        )


class OffsetOutOfRangeError(Exception):
    """An offset that the log does not have: before its start, or after its end (code 1)."""
