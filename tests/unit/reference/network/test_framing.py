"""Frames, however their bytes arrive."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_2pc_sink.reference.network.connection import RequestReader

SCRATCH_BYTES = 64
FRAME_BYTES_MAX = 1000


def reader(*, frame_bytes_max: int = FRAME_BYTES_MAX, room_bytes: int = 1 << 40) -> RequestReader:
    scratch = memoryview(bytearray(SCRATCH_BYTES))
    return RequestReader(scratch, frame_bytes_max=frame_bytes_max, has_room=lambda more: more <= room_bytes)


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


def test_a_long_frame_is_received_straight_into_the_buffer_that_becomes_it() -> None:
    frames = reader()
    feed(frames, struct.pack(">i", 500) + b"12", [SCRATCH_BYTES])
    buffer = frames.buffer()
    assert (len(buffer), frames.buffered_bytes) == (126, 128)
    assert feed(frames, b"x" * (126 + 128), [SCRATCH_BYTES]) == []
    buffer = frames.buffer()
    assert (len(buffer), frames.buffered_bytes) == (244, 500)
    buffer[:] = b"x" * 244
    (frame,) = frames.received(244)
    assert frame is buffer.obj
    assert frame == b"12" + b"x" * 498


def test_a_length_that_is_only_announced_costs_nothing() -> None:
    """D13."""
    frames = reader(frame_bytes_max=100_000_000)
    feed(frames, struct.pack(">i", 100_000_000) + b"x", [SCRATCH_BYTES])
    assert frames.buffered_bytes == 2 * SCRATCH_BYTES
    for expected in (128, 256, 512, 1024):
        assert frames.buffered_bytes == expected
        feed(frames, b"x" * len(frames.buffer()), [expected])


def test_a_frame_for_which_there_is_no_room_breaks_the_stream() -> None:
    frames = reader(room_bytes=200)
    assert feed(frames, framed(b"good", b"x" * 900), [SCRATCH_BYTES]) == [b"good"]
    assert "queued.max.request.bytes" in str(frames.broken)
    assert frames.buffered_bytes == 0


@pytest.mark.parametrize("length", [-1, -(2**31), FRAME_BYTES_MAX + 1, 2**31 - 1])
def test_a_length_out_of_bounds_breaks_the_stream_after_the_frames_before_it(length: int) -> None:
    frames = reader()
    assert feed(frames, framed(b"good") + struct.pack(">i", length) + framed(b"lost"), [SCRATCH_BYTES]) == [b"good"]
    assert str(length) in str(frames.broken)
    assert feed(frames, framed(b"more"), [3]) == []
    assert frames.buffered_bytes == 0


def test_the_limit_itself_is_taken_and_may_be_raised_later() -> None:
    frames = reader()
    assert feed(frames, framed(b"y" * FRAME_BYTES_MAX), [SCRATCH_BYTES]) == [b"y" * FRAME_BYTES_MAX]
    frames.frame_bytes_max += 1
    assert feed(frames, framed(b"z" * (FRAME_BYTES_MAX + 1)), [SCRATCH_BYTES]) == [b"z" * (FRAME_BYTES_MAX + 1)]


def test_a_length_that_arrives_byte_by_byte_is_held() -> None:
    frames = reader()
    assert feed(frames, struct.pack(">i", 4)[:3], [1]) == []
    assert frames.buffered_bytes == 3
    assert feed(frames, struct.pack(">i", 4)[3:] + b"body", [1]) == [b"body"]
