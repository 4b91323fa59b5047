"""Requests and responses as bytes."""

from __future__ import annotations

from typing import Any

import pytest
from kafka.protocol.consumer import FetchRequest
from kafka.protocol.metadata import FindCoordinatorRequest
from kafka.protocol.producer import ProduceRequest

from spark_2pc_sink.errors import RemoteProtocolError
from spark_2pc_sink.reference.protocol.codec import ENTRIES_MAX, read_head, read_request
from tests.unit.reference.batches import message
from tests.unit.reference.net import metadata_request


def frame_of(request: Any, version: int, *, client_id: str | None = "me") -> bytes:
    request.with_header(7, client_id)
    return bytes(request.encode(version=version, header=True))


@pytest.mark.parametrize("version", [0, 1, 8, 9, 12])
@pytest.mark.parametrize("client_id", [None, "\u00fcber"])
def test_a_request_is_read_in_every_version_of_its_header(version: int, client_id: str | None) -> None:
    frame = frame_of(metadata_request(), version, client_id=client_id)
    head = read_head(frame)
    assert (head.api_key, head.version, head.correlation_id) == (3, version, 7)
    request = read_request(bytearray(frame), head)
    assert (request.client_id, list(request.body.topics)) == (client_id, [])


def keys_frame(count: int, key: str = "x" * 50) -> bytes:
    return frame_of(FindCoordinatorRequest(key_type=0, coordinator_keys=[key] * count), 4)


def partitions_frame(topics: int, partitions: int) -> bytes:
    """A Produce for so many topics with so many partitions each."""
    data = [{"index": index, "records": b"some bytes"} for index in range(partitions)]
    named = [{"name": "x" * 50, "partition_data": data}] * topics
    return frame_of(message(ProduceRequest, transactional_id=None, acks=-1, timeout_ms=1, topic_data=named), 9)


def tags_frame(count: int) -> bytes:
    """A request with tags that no schema has, each two bytes long."""
    number = bytes((count & 0x7F | 0x80, count >> 7 & 0x7F | 0x80, count >> 14))
    return keys_frame(0)[:-1] + number + b"\x09\x00" * count + bytes(ENTRIES_MAX)


def tagged_topics_frame(count: int) -> bytes:
    """A Fetch of topics with a tag each: for each the library copies all that follow."""
    topics = [FetchRequest.FetchTopic(topic="t", partitions=[])] * count
    request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1, topics=topics, forgotten_topics_data=[])
    return frame_of(request, 12).replace(b"\x02t\x01\x00", b"\x02t\x01\x01\x09\x00") + bytes(ENTRIES_MAX)


def test_as_many_entries_as_are_allowed_are_read() -> None:
    frame = keys_frame(ENTRIES_MAX)
    assert len(read_request(frame, read_head(frame)).body.coordinator_keys) == ENTRIES_MAX
    # An entry for each topic, and one for each of its partitions.
    frame = partitions_frame(10_000, 4)
    request = read_request(frame, read_head(frame))
    assert [len(topic.partition_data) for topic in request.body.topic_data] == [4] * 10_000
    frame = tags_frame(3)
    assert read_request(frame, read_head(frame)).body.unknown_tags == {"_9": b""}


@pytest.mark.parametrize(
    "frame",
    [
        keys_frame(ENTRIES_MAX + 1),
        keys_frame(ENTRIES_MAX + 1, key=""),
        partitions_frame(10_001, 4),
        # Twenty million keys are announced, which are not even there.
        keys_frame(0).replace(b"\x01\x00", b"\x80\x80\x80\x0a" + bytes(ENTRIES_MAX)),
        tags_frame(ENTRIES_MAX + 1),
        tagged_topics_frame(20_000),
    ],
    ids=["one list", "the shortest", "lists in a list", "announced", "tags", "tags in many places"],
)
def test_one_entry_too_many_is_refused(frame: bytes) -> None:
    """One event loop serves everybody: a million entries, decoded and answered, would hold it for half a minute."""
    with pytest.raises(RemoteProtocolError, match=f"cannot be read: ValueError.'more than {ENTRIES_MAX} entries'"):
        read_request(frame, read_head(frame))
