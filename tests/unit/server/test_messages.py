"""Requests and responses as bytes."""

from __future__ import annotations

import struct
import tracemalloc
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.metadata import ApiVersionsResponse, FindCoordinatorRequest
from kafka.protocol.producer import EndTxnResponse, ProduceRequest

from spark_2pc_sink.errors import RemoteProtocolError
from spark_2pc_sink.server.messages import REQUESTS, read_head, read_request, write_response
from tests.unit.server.net import metadata_request, metadata_response, produce_request


def frame_of(request: Any, version: int, *, client_id: str | None = "me") -> bytes:
    request.with_header(7, client_id)
    return bytes(request.encode(version=version, header=True))


@pytest.mark.parametrize("version", range(13))
@pytest.mark.parametrize("client_id", ["me", "", None, "\u00fcber"])
def test_a_request_is_read_in_every_version_of_its_header(version: int, client_id: str | None) -> None:
    frame = frame_of(metadata_request(), version, client_id=client_id)
    head = read_head(frame)
    assert (head.api_key, head.version, head.correlation_id) == (3, version, 7)
    request = read_request(bytearray(frame), head)
    assert (request.client_id, list(request.body.topics)) == (client_id, [])


def test_tags_in_the_header_are_skipped() -> None:
    plain = frame_of(metadata_request(), 9)
    fixed = 8 + 2 + len("me")
    tagged = plain[:fixed] + b"\x02\x05\x03abc\x80\x01\x00" + plain[fixed + 1 :]
    assert read_request(tagged, read_head(tagged)).client_id == "me"


@pytest.mark.parametrize("tags", [b"\x11", b"\xff\xff\xff\xff\xff\x01", b""], ids=["too many", "long varint", "none"])
def test_a_header_with_other_tags_is_refused(tags: bytes) -> None:
    frame = frame_of(metadata_request(), 9)[: 8 + 2 + len("me")] + tags
    with pytest.raises(RemoteProtocolError, match="request 3 v9 cannot be read"):
        read_request(frame, read_head(frame))


@pytest.mark.parametrize("size", range(8))
def test_a_frame_shorter_than_a_head_is_refused(size: int) -> None:
    with pytest.raises(RemoteProtocolError, match="shorter than its head"):
        read_head(b"\x00" * size)


@pytest.mark.parametrize("length", [-2, 100, 32767])
def test_a_client_id_that_does_not_fit_is_refused(length: int) -> None:
    frame = struct.pack(">hhih", 3, 1, 1, length) + b"abc"
    with pytest.raises(RemoteProtocolError, match="client id"):
        read_request(frame, read_head(frame))


@given(st.sampled_from(sorted(REQUESTS)), st.integers(0, 13), st.binary(max_size=300))
def test_whatever_comes_nothing_but_a_protocol_error_comes_out(api_key: int, version: int, garbage: bytes) -> None:
    frame = struct.pack(">hhi", api_key, min(version, REQUESTS[api_key].max_version), 1) + garbage
    with suppress(RemoteProtocolError):
        assert read_request(frame, read_head(frame)).head.api_key == api_key


def test_the_records_of_a_produce_request_are_copied_once() -> None:
    size = 8 * 1024 * 1024
    frame = bytearray(frame_of(produce_request(bytes(size)), 9))
    read_request(frame, read_head(frame))  # the decoder is compiled at its first use
    tracemalloc.start()
    try:
        request = read_request(frame, read_head(frame))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(request.body.topic_data[0].partition_data[0].records) == size
    assert peak < 1.5 * size


@pytest.mark.parametrize(
    ("response", "version"),
    [
        (metadata_response(), 5),
        (metadata_response(), 9),
        (EndTxnResponse(throttle_time_ms=0, error_code=48, producer_id=-1, producer_epoch=-1), 5),
        (ApiVersionsResponse(error_code=0, api_keys=[], throttle_time_ms=0), 0),
        (ApiVersionsResponse(error_code=0, api_keys=[], throttle_time_ms=0), 4),
    ],
)
def test_a_response_has_the_bytes_that_the_library_would_write(response: Any, version: int) -> None:
    head, body = write_response(response, 77, version=version)
    response.with_header(77)
    assert head + body == response.encode(header=True, framed=True)


def test_every_request_that_the_library_knows_is_found_by_its_key() -> None:
    assert REQUESTS[ProduceRequest.API_KEY] is ProduceRequest
    assert REQUESTS[FindCoordinatorRequest.API_KEY] is FindCoordinatorRequest
