"""Framing: every message of the Kafka protocol has its length in four bytes before it.

A `FrameReader` says where the next bytes shall be received. Short frames arrive in a scratch buffer that all
connections share and are copied out of it; a frame that is longer than what has arrived gets a buffer of its own, into
which the rest is received straight. That buffer grows with what arrives, to twice as much at most, so that a length
costs nothing by being announced. The reader never raises: what breaks the protocol is kept in ``broken``, behind the
frames that came before it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from spark_2pc_sink.errors import RemoteProtocolError

#: What one read takes at most while no long frame is under way; the same as asyncio's own reads.
SCRATCH_BYTES: Final = 65_536
_LENGTH: Final = struct.Struct(">i")


class FrameReader:
    """The frames of one connection.

    Args:
        scratch: shared by all connections of an event loop: it holds bytes only between `buffer` and `received`.
        frame_bytes_max: a longer frame breaks the protocol; may be changed between two frames.
        has_room: asked with the bytes by which a buffer is about to grow; False breaks the connection.

    Attributes:
        broken: why no further frame can come, or None.
    """

    def __init__(self, scratch: memoryview, *, frame_bytes_max: int, has_room: Callable[[int], bool]) -> None:
        self.frame_bytes_max = frame_bytes_max
        self.broken: RemoteProtocolError | None = None
        self._scratch = scratch
        self._head = b""
        self._has_room = has_room
        self._frame: bytearray | None = None
        self._filled = 0
        self._length = 0

    @property
    def buffered_bytes(self) -> int:
        """The memory that the frame under way takes."""
        return len(self._head) + (0 if self._frame is None else len(self._frame))

    def buffer(self) -> memoryview:
        """Where the next bytes belong."""
        return self._scratch if self._frame is None else memoryview(self._frame)[self._filled :]

    def received(self, count: int) -> list[bytes | bytearray]:
        """The frames, without their lengths, that ``count`` bytes in `buffer` have completed."""
        if self.broken is not None:
            return []
        if self._frame is None:
            return self._split(count)
        self._filled += count
        if self._filled == self._length:
            whole, self._frame = self._frame, None
            return [whole]
        if self._filled == len(self._frame):
            self._grow(self._frame)
        return []

    def _split(self, count: int) -> list[bytes | bytearray]:
        """Cut the scratch buffer into frames; what is left over becomes the beginning of the next."""
        frames: list[bytes | bytearray] = []
        data = self._head + self._scratch[:count]
        position = 0
        while len(data) - position >= _LENGTH.size:
            length = _LENGTH.unpack_from(data, position)[0]
            if not 0 <= length <= self.frame_bytes_max:
                detail = f"a frame of {length} bytes; from 0 to {self.frame_bytes_max} are taken"
                self.broken = RemoteProtocolError(peer="the client", detail=detail)
                return frames
            position += _LENGTH.size
            if len(data) - position < length:
                self._begin(data, position, length)
                return frames
            frames.append(data[position : position + length])
            position += length
        self._head = data[position:]
        return frames

    def _begin(self, data: bytes, position: int, length: int) -> None:
        """A frame that is longer than what is here."""
        self._filled, self._length, self._head = len(data) - position, length, b""
        self._grow(memoryview(data)[position:])

    def _grow(self, filled: bytes | bytearray | memoryview) -> None:
        """A larger buffer for the frame under way; a new one, because whoever received still holds the old one."""
        size = min(self._length, 2 * max(self._filled, len(self._scratch)))
        if not self._has_room(size - self._filled):
            self._frame = None
            detail = f"a frame of {self._length} bytes, {self._filled} of which have come: all connections together "
            detail += "hold queued.max.request.bytes. Raise it, or send smaller requests"
            self.broken = RemoteProtocolError(peer="the client", detail=detail)
            return
        self._frame = bytearray(size)
        self._frame[: self._filled] = filled
