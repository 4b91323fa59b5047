"""Frames of the stream between a task and the driver: bytes in, frames out, no I/O.

A connection starts with the attempt's token (`TOKEN_BYTES`). Then come frames: a fixed header, details and a payload.
The header holds every length, and each length is checked before memory is allocated for it. Frames are numbered from 0
in each connection, so a gap or a repeated frame is an error. The driver answers with messages of one byte; those in
`_WITH_TEXT` are followed by a length and that many bytes.

Frames of 256 KiB to 1 MiB cost least: a frame of 64 KiB takes twice the CPU time per byte.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np

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
#: A topic has at most 249 characters, a printable row key 81 of at most 4 bytes.
_DETAILS_BYTES_MAX: Final = 1024
_LANES_MAX: Final = 4096

_HEADER: Final = struct.Struct(">BHIIHI")
_HELLO: Final = struct.Struct(">IQ")
_RECORDS: Final = struct.Struct(">i16sHh")
_LANE_TOTALS: Final = struct.Struct(">HQQQQ16s")
_ANSWER: Final = struct.Struct(">BI")
_NO_KEY: Final = -1
_DIGEST_BYTES: Final = 16


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
_PAYLOAD_BYTES_MAX: Final = {
    FrameKind.HELLO: _HELLO.size,
    FrameKind.ROWS: PAYLOAD_BYTES_MAX,
    FrameKind.RECORDS: PAYLOAD_BYTES_MAX,
    FrameKind.QUESTION: QUESTION_BYTES_MAX,
    FrameKind.END: _LANES_MAX * _LANE_TOTALS.size,
}


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
        return _HEADER.pack(self.kind, self.lane, number, self.count, len(self.details), len(self.payload))


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
        digest = self.digest.to_bytes(_DIGEST_BYTES, "big")
        key_bytes = _NO_KEY if self.row_key is None else len(key)
        return _RECORDS.pack(self.partition.partition, digest, len(topic), key_bytes) + topic + key

    @classmethod
    def unpack(cls, details: bytes, record_count: int) -> RecordsHeader:
        """Read the details of a RECORDS frame.

        Raises:
            RemoteProtocolError: they have another form.
        """
        if len(details) < _RECORDS.size:
            raise _broken(f"a record batch has {len(details)} bytes of details, fewer than {_RECORDS.size}")
        partition, digest, topic_bytes, key_bytes = _RECORDS.unpack_from(details)
        topic_end = _RECORDS.size + topic_bytes
        if partition < 0 or key_bytes < _NO_KEY or len(details) != topic_end + max(key_bytes, 0) or not record_count:
            raise _broken("the details of a record batch contradict each other")
        try:
            topic, key = details[_RECORDS.size : topic_end].decode(), details[topic_end:].decode()
        except UnicodeDecodeError as error:
            raise _broken(f"a topic or key is not UTF-8: {error}") from error
        return cls(
            TopicPartition(topic, partition),
            record_count,
            int.from_bytes(digest, "big"),
            None if key_bytes == _NO_KEY else key,
        )


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
    return _HELLO.pack(task, task_attempt)


def unpacked_hello(frame: Frame) -> tuple[int, int]:
    """The task and the task attempt.

    Raises:
        RemoteProtocolError: the frame is not a HELLO.
    """
    if frame.kind is not FrameKind.HELLO or len(frame.payload) != _HELLO.size:
        raise _broken(f"the first frame is {frame.kind.name} with {len(frame.payload)} bytes")
    task, task_attempt = _HELLO.unpack(frame.payload)
    return task, task_attempt


def packed_totals(totals: dict[int, LaneTotals]) -> bytes:
    """The payload of END. That of a task without rows is one byte, because no frame is empty."""
    return b"".join(
        _LANE_TOTALS.pack(
            lane, each.row_bytes, each.rows, each.record_bytes, each.records, each.digest.to_bytes(_DIGEST_BYTES, "big")
        )
        for lane, each in sorted(totals.items())
    ) or bytes(1)


def unpacked_totals(payload: memoryview) -> dict[int, LaneTotals]:
    """What END says.

    Raises:
        RemoteProtocolError: the payload has another form.
    """
    if payload == bytes(1):
        return {}
    if len(payload) % _LANE_TOTALS.size:
        raise _broken(f"END has {len(payload)} bytes, not a multiple of {_LANE_TOTALS.size}")
    return {
        lane: LaneTotals(row_bytes, rows, record_bytes, records, int.from_bytes(digest, "big"))
        for lane, row_bytes, rows, record_bytes, records, digest in _LANE_TOTALS.iter_unpack(payload)
    }


class FrameReader:
    """Reads the frames of one connection. Fill `space`, then call `advance`.

    The memory of a frame is allocated by `space` after its header has been read, so a caller can look at
    `frame_bytes` first and wait.
    """

    def __init__(self) -> None:
        self._header = memoryview(bytearray(_HEADER.size))
        self._body: memoryview | None = None
        self._filled = 0
        self._next_number = 0
        #: Bytes of the frame whose header has been read; 0 before that.
        self.frame_bytes = 0
        self._kind, self._lane, self._count, self._details_bytes = FrameKind.HELLO, 0, 0, 0

    @property
    def mid_frame(self) -> bool:
        """True if a part of a frame has been received."""
        return self._filled > 0 or self.frame_bytes > 0

    def space(self) -> memoryview:
        """Where the next bytes of the connection go; never empty."""
        if not self.frame_bytes:
            return self._header[self._filled :]
        if self._body is None:
            # Memory that is not cleared first: a frame fills all of it.
            self._body = np.empty(self.frame_bytes, np.uint8).data
        return self._body[self._filled :]

    def advance(self, received: int) -> Frame | None:
        """Note that the first ``received`` bytes of `space` are filled; the frame if it is complete.

        Raises:
            RemoteProtocolError: a header has an unknown kind, a length out of bounds or the wrong number.
        """
        self._filled += received
        if self._body is None:
            if self._filled == len(self._header):
                self._read_header()
                self._filled = 0
            return None
        if self._filled < self.frame_bytes:
            return None
        body = self._body
        self._body, self._filled, self.frame_bytes = None, 0, 0
        details = bytes(body[: self._details_bytes])
        return Frame(self._kind, body[self._details_bytes :], self._lane, self._count, details)

    def _read_header(self) -> None:
        kind, self._lane, number, self._count, self._details_bytes, payload_bytes = _HEADER.unpack(self._header)
        if kind not in _PAYLOAD_BYTES_MAX:
            raise _broken(f"frame {self._next_number} has the unknown kind {kind}")
        self._kind = FrameKind(kind)
        if number != self._next_number:
            raise _broken(f"frame {number} came, and frame {self._next_number} was expected")
        if not 0 < payload_bytes <= _PAYLOAD_BYTES_MAX[self._kind]:
            limit = _PAYLOAD_BYTES_MAX[self._kind]
            raise _broken(f"{self._kind.name} has a payload of {payload_bytes} bytes, which must be 1 to {limit}")
        if self._details_bytes > _DETAILS_BYTES_MAX or (self._details_bytes and self._kind is not FrameKind.RECORDS):
            raise _broken(f"{self._kind.name} has {self._details_bytes} bytes of details")
        self._next_number += 1
        self.frame_bytes = self._details_bytes + payload_bytes


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


def _broken(detail: str) -> RemoteProtocolError:
    return RemoteProtocolError(peer="a task", detail=detail)
