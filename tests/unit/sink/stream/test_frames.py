"""Frames and messages of the stream: whatever the cuts, what was packed is read, and nothing else is."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, strategies as st

from spark_2pc_sink.errors import RemoteProtocolError
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.sink.stream.attempt_input import FrameReader, unpacked_batch
from spark_2pc_sink.sink.stream.task_stream import (
    HELLO as HELLO_BYTES,
    PAYLOAD_BYTES_MAX,
    DriverMessage,
    Frame,
    FrameKind,
    next_message,
    packed_details,
    packed_message,
)
from spark_2pc_sink.wire.record_batch import EncodedBatch

BATCHES = st.builds(
    EncodedBatch,
    st.builds(TopicPartition, st.text(max_size=60), st.integers(0, 2**31 - 1)),
    st.binary(min_size=1, max_size=50),
    st.integers(1, 2**32 - 1),
    st.none() | st.text(max_size=81),
    digest=st.integers(0, 2**128 - 1),
)
HELLO = Frame(FrameKind.HELLO, memoryview(HELLO_BYTES.pack(1, 2))).header(0) + HELLO_BYTES.pack(1, 2)


def received(data: bytes, cut: int) -> list[Frame]:
    """The frames of ``data`` after HELLO, all of which arrives in parts of at most ``cut`` bytes."""
    reader, frames = FrameReader(), []
    data = HELLO + data
    while data:
        space = reader.space()
        part = data[: min(cut, len(space))]
        space[: len(part)] = part
        frame = reader.advance(len(part))
        frames += [] if frame is None else [frame]
        data = data[len(part) :]
    return frames[1:]


def a_frame(kind: FrameKind, payload: bytes = b"x", number: int = 1, details: bytes = b"") -> bytes:
    return Frame(kind, memoryview(payload), details=details).header(number) + details + payload


def a_header(kind: FrameKind, payload_bytes: int, details_bytes: int = 0) -> bytes:
    return struct.pack(">BHIIHI", kind, 0, 1, 0, details_bytes, payload_bytes)


@given(st.lists(BATCHES), st.integers(1, 40))
def test_however_frames_are_cut_the_same_are_read(sent: list[EncodedBatch], cut: int) -> None:
    data = b""
    for number, batch in enumerate(sent, 1):
        payload = memoryview(batch.payload)
        frame = Frame(FrameKind.RECORDS, payload, number, batch.record_count, packed_details(batch))
        data += frame.header(number) + frame.details + payload
    frames = received(data, cut)
    assert [unpacked_batch(frame) for frame in frames] == sent
    assert [frame.lane for frame in frames] == list(range(1, len(sent) + 1))
    assert not any(frame.payload.readonly for frame in frames)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (a_frame(FrameKind.ROWS, number=2), "received frame 2, expected frame 1"),
        (a_header(FrameKind.ROWS, PAYLOAD_BYTES_MAX + 1), "ROWS has a payload of 1073741825 bytes"),
        (a_header(FrameKind.END, 0), "END has a payload of 0 bytes"),
        (a_header(FrameKind.RECORDS, 1, 1025), "1025 bytes of details"),
        (a_header(FrameKind.ROWS, 1, 1), "ROWS has 1 bytes of details"),
        (b"GET / HTTP/1.1\r\nHost: driver\r\n", "unknown kind 71"),
    ],
)
def test_a_frame_that_breaks_the_rules_is_refused_before_its_payload_is_read(data: bytes, said: str) -> None:
    with pytest.raises(RemoteProtocolError, match=said):
        received(data, 1)


def details_of(key: str | None) -> bytes:
    return packed_details(EncodedBatch(TopicPartition("orders", 0), b"x", 1, key, digest=0))


@pytest.mark.parametrize(
    "details",
    [
        details_of("key")[:-1],
        details_of(None) + b"x",
        details_of("key")[:-1] + b"\xff",
    ],
)
def test_other_details_of_records_are_refused(details: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match=r"details|UTF-8"):
        unpacked_batch(Frame(FrameKind.RECORDS, memoryview(b"x"), count=1, details=details))


def test_nothing_comes_before_hello_and_its_memory_is_not_allocated() -> None:
    reader = FrameReader()
    header = reader.space()
    header[:] = Frame(FrameKind.ROWS, memoryview(b"x")).header(0)
    with pytest.raises(RemoteProtocolError, match="frame 0 is ROWS: the first frame, and no other, must be HELLO"):
        reader.advance(len(header))


@given(st.lists(st.tuples(st.sampled_from(DriverMessage), st.binary(max_size=20))), st.integers(1, 9))
def test_messages_are_read_when_they_are_complete(sent: list[tuple[DriverMessage, bytes]], cut: int) -> None:
    data = b"".join(packed_message(message, text) for message, text in sent)
    arrived, read = bytearray(), []
    for start in range(0, len(data), cut):
        arrived += data[start : start + cut]
        while (message := next_message(arrived)) is not None:
            read.append(message)
    with_text = (DriverMessage.ANSWER, DriverMessage.REFUSED)
    assert read == [(message, text if message in with_text else b"") for message, text in sent]


@pytest.mark.parametrize("data", [b"\x00", b"\x15\x03\x01", packed_message(DriverMessage.ANSWER, bytes(65537))[:5]])
def test_other_messages_are_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="the driver"):
        next_message(bytearray(data))
