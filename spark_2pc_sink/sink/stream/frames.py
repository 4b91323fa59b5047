"""Frames of the stream between a task and the driver: bytes in, frames out, no I/O.

A connection starts with the attempt's token (`TOKEN_BYTES`). Then come frames: a fixed header, details and a payload.
The header holds every length. Frames are numbered from 0 in each connection, so a gap or a repeated frame is an error.
The driver answers with messages of one byte; those in `_WITH_TEXT` are followed by a length and that many bytes.

Frames of 256 KiB to 1 MiB cost least: a frame of 64 KiB takes twice the CPU time per byte.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from spark_2pc_sink.errors import RemoteProtocolError
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.wire.digest import EMPTY_DIGEST, combine_digests

TOKEN_BYTES: Final = 32
#: A sender collects small pieces of rows into frames of this size.
FRAME_BYTES: Final = 512 * 1024
#: PostgreSQL's largest field has 1 GiB, and max.request.size of Kafka's producer is below that.
PAYLOAD_BYTES_MAX: Final = 1 << 30
#: A question of a task, and its answer.
QUESTION_BYTES_MAX: Final = 64 * 1024

#: Kind, lane, number, count, lengths of details and payload.
HEADER: Final = struct.Struct(">BHIIHI")
#: Task and task attempt.
HELLO: Final = struct.Struct(">IQ")
#: Partition, digest, lengths of topic and key.
RECORDS: Final = struct.Struct(">i16sHh")
#: The lane and the fields of `LaneTotals`.
LANE_TOTALS: Final = struct.Struct(">HQQQQ16s")
_ANSWER: Final = struct.Struct(">BI")
NO_KEY: Final = -1
DIGEST_BYTES: Final = 16


class FrameKind(IntEnum):
    """What a frame contains. A connection is one HELLO, then ROWS, RECORDS and QUESTION in any order, then END."""

    HELLO = 1
    ROWS = 2
    RECORDS = 3
    QUESTION = 4
    END = 5


class DriverMessage(IntEnum):
    """What the driver sends to a task."""

    WELCOME = 1
    #: The driver is not reading for now, but it is alive.
    ALIVE = 2
    ANSWER = 3
    RECEIPT = 4
    #: The attempt is over for this task; the text says why.
    REFUSED = 5


_WITH_TEXT: Final = (DriverMessage.ANSWER, DriverMessage.REFUSED)


@dataclass(frozen=True)
class Frame:
    """One frame.

    Attributes:
        kind: what it contains.
        payload: at least one byte. Writable in a frame that was received: the driver puts producer id, epoch and
            sequence into a record batch in place.
        lane: index of the output.
        count: rows or records in the payload.
        details: `RecordsHeader.pack` for RECORDS, empty for other kinds.
    """

    kind: FrameKind
    payload: memoryview
    lane: int = 0
    count: int = 0
    details: bytes = b""

    @property
    def frame_bytes(self) -> int:
        """Memory that details and payload take."""
        return len(self.details) + len(self.payload)

    def header(self, number: int) -> bytes:
        """What comes before details and payload on the wire; ``number`` counts the frames of a connection from 0."""
        return HEADER.pack(self.kind, self.lane, number, self.count, len(self.details), len(self.payload))


@dataclass(frozen=True)
class RecordsHeader:
    """What the driver must know of an encoded record batch to send it.

    Attributes:
        partition: where the batch goes.
        record_count: at least 1.
        digest: 128-bit digest of the records.
        row_key: the printable key of its record; None for a batch of several.
    """

    partition: TopicPartition
    record_count: int
    digest: int
    row_key: str | None = None

    def pack(self) -> bytes:
        """The details of a RECORDS frame."""
        topic = self.partition.topic.encode()
        key = b"" if self.row_key is None else self.row_key.encode()
        digest = self.digest.to_bytes(DIGEST_BYTES, "big")
        key_bytes = NO_KEY if self.row_key is None else len(key)
        return RECORDS.pack(self.partition.partition, digest, len(topic), key_bytes) + topic + key


@dataclass(frozen=True)
class LaneTotals:
    """What one task has sent for one output."""

    row_bytes: int = 0
    rows: int = 0
    record_bytes: int = 0
    records: int = 0
    digest: int = EMPTY_DIGEST

    def __add__(self, other: LaneTotals) -> LaneTotals:
        return LaneTotals(
            self.row_bytes + other.row_bytes,
            self.rows + other.rows,
            self.record_bytes + other.record_bytes,
            self.records + other.records,
            combine_digests(self.digest, other.digest),
        )

    @classmethod
    def of(cls, frame: Frame, records: RecordsHeader | None) -> LaneTotals:
        """Those of one frame, of records if it has their header."""
        if records is None:
            return cls(row_bytes=len(frame.payload), rows=frame.count)
        return cls(record_bytes=len(frame.payload), records=records.record_count, digest=records.digest)


def packed_hello(task: int, task_attempt: int) -> bytes:
    """The payload of HELLO."""
    return HELLO.pack(task, task_attempt)


def packed_totals(totals: dict[int, LaneTotals]) -> bytes:
    """The payload of END. That of a task without rows is one byte, because no frame is empty."""
    return b"".join(
        LANE_TOTALS.pack(
            lane, each.row_bytes, each.rows, each.record_bytes, each.records, each.digest.to_bytes(DIGEST_BYTES, "big")
        )
        for lane, each in sorted(totals.items())
    ) or bytes(1)


def packed_message(message: DriverMessage, text: bytes = b"") -> bytes:
    """A message of the driver."""
    return _ANSWER.pack(message, len(text)) + text if message in _WITH_TEXT else bytes([message])


def next_message(received: bytearray) -> tuple[DriverMessage, bytes] | None:
    """Take the next complete message out of ``received``; None if more bytes are needed.

    Raises:
        RemoteProtocolError: it is not a message.
    """
    if not received:
        return None
    if received[0] not in set(DriverMessage):
        raise RemoteProtocolError(peer="the driver", detail=f"it sent the byte {received[0]}")
    message, end = DriverMessage(received[0]), 1
    if message in _WITH_TEXT:
        if len(received) < _ANSWER.size:
            return None
        _, text_bytes = _ANSWER.unpack_from(received)
        if text_bytes > QUESTION_BYTES_MAX:
            raise RemoteProtocolError(peer="the driver", detail=f"{message.name} announces {text_bytes} bytes")
        end = _ANSWER.size + text_bytes
        if len(received) < end:
            return None
    text = bytes(received[_ANSWER.size : end])
    del received[:end]
    return message, text
