"""Frames, however their bytes arrive."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from spark_2pc_sink.reference.network.connection import RequestReader

SCRATCH_BYTES = 64
FRAME_BYTES_MAX = 1000


def reader(*, frame_bytes_max: int = FRAME_BYTES_MAX) -> RequestReader:
    scratch = memoryview(bytearray(SCRATCH_BYTES))
    return RequestReader(scratch, frame_bytes_max=frame_bytes_max, has_room=lambda _more: True)


def framed(*bodies: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(body)) + body for body in bodies)


def feed(frames: RequestReader, data: bytes, sizes: list[int]) -> list[bytes]:
    """Receive ``data`` in portions, never more than the buffer that the reader offers."""
    found: list[bytes] = []
    turn = 0
    while data:
        buffer = frames.buffer()
        count = min(len(buffer), len(data), sizes[turn % len(sizes)])
        buffer[:count] = data[:count]
        data = data[count:]
        found += [bytes(frame) for frame in frames.received(count)]
        turn += 1
    return found


@given(st.lists(st.binary(max_size=200), max_size=8), st.lists(st.integers(1, 300), min_size=1, max_size=5))
def test_frames_are_the_same_however_their_bytes_arrive(bodies: list[bytes], sizes: list[int]) -> None:
    frames = reader()
    assert feed(frames, framed(*bodies), sizes) == bodies
    assert frames.broken is None
    assert frames.buffered_bytes == 0


def test_a_length_that_is_only_announced_costs_nothing() -> None:
    """D13."""
    frames = reader(frame_bytes_max=100_000_000)
    feed(frames, struct.pack(">i", 100_000_000) + b"x", [SCRATCH_BYTES])
    assert frames.buffered_bytes == 2 * SCRATCH_BYTES
    for expected in (128, 256, 512, 1024):
        assert frames.buffered_bytes == expected
        feed(frames, b"x" * len(frames.buffer()), [expected])
