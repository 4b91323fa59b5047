"""The driver's end of `frames`: bytes in, frames out, no I/O. Each length is checked before memory is allocated."""

from __future__ import annotations

from typing import Final

import numpy as np

from spark_2pc_sink.errors import RemoteProtocolError
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.sink.stream.frames import (
    HEADER,
    HELLO,
    LANE_TOTALS,
    NO_KEY,
    PAYLOAD_BYTES_MAX,
    QUESTION_BYTES_MAX,
    RECORDS,
    Frame,
    FrameKind,
    LaneTotals,
    RecordsHeader,
)

#: A topic has at most 249 characters, a printable row key 81 of at most 4 bytes.
_DETAILS_BYTES_MAX: Final = 1024
_LANES_MAX: Final = 4096
_PAYLOAD_BYTES_MAX: Final = {
    FrameKind.HELLO: HELLO.size,
    FrameKind.ROWS: PAYLOAD_BYTES_MAX,
    FrameKind.RECORDS: PAYLOAD_BYTES_MAX,
    FrameKind.QUESTION: QUESTION_BYTES_MAX,
    FrameKind.END: _LANES_MAX * LANE_TOTALS.size,
}


class FrameReader:
    """Reads the frames of one connection. Fill `space`, then call `advance`.

    The memory of a frame is allocated by `space` after its header has been read, so a caller can look at
    `frame_bytes` first and wait.
    """

    def __init__(self) -> None:
        self._header = memoryview(bytearray(HEADER.size))
        self._body: memoryview | None = None
        self._filled = 0
        self._next_number = 0
        #: Bytes of the frame whose header has been read; 0 before that.
        self.frame_bytes: int = 0
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
        kind, self._lane, number, self._count, self._details_bytes, payload_bytes = HEADER.unpack(self._header)
        if kind not in _PAYLOAD_BYTES_MAX:
            raise _broken(f"frame {self._next_number} has the unknown kind {kind}")
        self._kind = FrameKind(kind)
        if (self._kind is FrameKind.HELLO) != (self._next_number == 0):
            raise _broken(f"frame {self._next_number} is {self._kind.name}, and HELLO is the first one only")
        if number != self._next_number:
            raise _broken(f"frame {number} came, and frame {self._next_number} was expected")
        if not 0 < payload_bytes <= _PAYLOAD_BYTES_MAX[self._kind]:
            limit = _PAYLOAD_BYTES_MAX[self._kind]
            raise _broken(f"{self._kind.name} has a payload of {payload_bytes} bytes, which must be 1 to {limit}")
        if self._details_bytes > _DETAILS_BYTES_MAX or (self._details_bytes and self._kind is not FrameKind.RECORDS):
            raise _broken(f"{self._kind.name} has {self._details_bytes} bytes of details")
        self._next_number += 1
        self.frame_bytes = self._details_bytes + payload_bytes


def unpacked_hello(frame: Frame) -> tuple[int, int]:
    """The task and the task attempt.

    Raises:
        RemoteProtocolError: the frame is too short.
    """
    if len(frame.payload) != HELLO.size:
        raise _broken(f"HELLO has {len(frame.payload)} bytes")
    task, task_attempt = HELLO.unpack(frame.payload)
    return task, task_attempt


def unpacked_records(frame: Frame) -> RecordsHeader:
    """Where a record batch goes.

    Raises:
        RemoteProtocolError: the details of the frame have another form.
    """
    details = frame.details
    if len(details) < RECORDS.size:
        raise _broken(f"a record batch has {len(details)} bytes of details, fewer than {RECORDS.size}")
    partition, digest, topic_bytes, key_bytes = RECORDS.unpack_from(details)
    topic_end = RECORDS.size + topic_bytes
    if partition < 0 or key_bytes < NO_KEY or len(details) != topic_end + max(key_bytes, 0) or not frame.count:
        raise _broken("the details of a record batch contradict each other")
    try:
        topic, key = details[RECORDS.size : topic_end].decode(), details[topic_end:].decode()
    except UnicodeDecodeError as error:
        raise _broken(f"a topic or key is not UTF-8: {error}") from error
    row_key = None if key_bytes == NO_KEY else key
    return RecordsHeader(TopicPartition(topic, partition), frame.count, int.from_bytes(digest, "big"), row_key)


def unpacked_totals(payload: memoryview) -> dict[int, LaneTotals]:
    """What END says.

    Raises:
        RemoteProtocolError: the payload has another form.
    """
    if payload == bytes(1):
        return {}
    if len(payload) % LANE_TOTALS.size:
        raise _broken(f"END has {len(payload)} bytes, not a multiple of {LANE_TOTALS.size}")
    return {
        lane: LaneTotals(row_bytes, rows, record_bytes, records, int.from_bytes(digest, "big"))
        for lane, row_bytes, rows, record_bytes, records, digest in LANE_TOTALS.iter_unpack(payload)
    }


def _broken(detail: str) -> RemoteProtocolError:
    return RemoteProtocolError(peer="a task", detail=detail)
