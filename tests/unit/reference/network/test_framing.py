"""Frames of requests; that they are the same however their bytes arrive is what `tests.fuzz.targets.frames` shows."""

from __future__ import annotations

import struct

from spark_2pc_sink.reference.network.connection import RequestReader

SCRATCH_BYTES = 64


def test_a_length_that_is_only_announced_costs_nothing() -> None:
    """D13."""
    scratch = memoryview(bytearray(SCRATCH_BYTES))
    frames = RequestReader(scratch, frame_bytes_max=100_000_000, has_room=lambda _more: True)

    def receive(data: bytes) -> None:
        frames.buffer()[: len(data)] = data
        assert list(frames.received(len(data))) == []

    receive(struct.pack(">i", 100_000_000) + b"x")
    for expected in (128, 256, 512, 1024):
        assert frames.buffered_bytes == expected
        receive(b"x" * len(frames.buffer()))
