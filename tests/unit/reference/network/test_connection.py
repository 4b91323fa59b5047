"""What one connection may do to the server, and what it may not."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from contextlib import suppress
from typing import Any

import pytest
from kafka.protocol.consumer import FetchRequest, FetchResponse
from kafka.protocol.metadata import MetadataResponse

from spark_2pc_sink.errors import RemoteProtocolError
from spark_2pc_sink.reference.network import connection as connections
from spark_2pc_sink.reference.network.connection import SCRATCH_BYTES
from spark_2pc_sink.reference.protocol.api import Handler, Handlers, RequestContext
from spark_2pc_sink.wire.api_versions import Api
from tests.unit.reference.net import (
    METADATA_VERSION,
    PRODUCE_VERSION,
    Client,
    empty_metadata,
    metadata,
    metadata_request,
    metadata_response,
    produce,
    produce_request,
    produce_response,
    serving,
)
from tests.unit.reference.waiting import until

REPLY_BYTES = 8 * 1024 * 1024


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "a frame of 1195725856 bytes"),
        (struct.pack(">i", 104_857_601), "a frame of 104857601 bytes"),
        (struct.pack(">i", -1), "a frame of -1 bytes"),
        (struct.pack(">i", 0), "shorter than its head"),
        (struct.pack(">i", 4) + b"\xff\xff\xff\xff", "shorter than its head"),
        (struct.pack(">ihhih", 10, 9999, 0, 1, -1), "API key 9999"),
        (struct.pack(">ihhih", 10, -1, 0, 1, -1), "API key -1"),
        (struct.pack(">ihhih", 10, 3, 99, 1, -1), "METADATA v99; 0 to 12 are offered"),
        (struct.pack(">ihhihi", 14, 3, 1, 1, -1, 2**31 - 1), "request 3 v1 cannot be read"),
    ],
    ids=["text", "oversized", "negative", "empty", "short", "unknown", "minus", "version", "schema"],
)
async def test_garbage_ends_only_its_own_connection_with_one_line(
    sent: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        async with serving(metadata(empty_metadata)) as server:
            bystander = await Client.connect(server)
            client = await Client.connect(server)
            client.writer.write(sent)
            assert await client.ends() == b""
            assert await bystander.works()
            assert server.metrics.protocol_errors == 1
            await until(lambda: len(server.connections) == 1)
    (line,) = caplog.messages
    assert reason in line
    assert "127.0.0.1:" in line


@pytest.mark.parametrize("sent", [b"\x00\x00", struct.pack(">i", 100) + b"half"], ids=["length", "body"])
async def test_a_frame_that_is_cut_off_ends_the_connection_in_silence(
    sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving() as server:
        client = await Client.connect(server)
        client.writer.write(sent)
        client.writer.write_eof()
        assert await client.ends() == b""
        await until(lambda: not server.connections)
    assert caplog.messages == []


async def test_what_was_sent_before_the_end_of_the_stream_is_answered() -> None:
    async with serving(metadata(empty_metadata)) as server:
        client = await Client.connect(server)
        for number in range(50):
            client.send(metadata_request(), METADATA_VERSION, number)
        client.writer.write_eof()
        assert await client.correlation_ids(50) == list(range(50))
        assert await client.ends() == b""


async def test_pipelined_requests_are_carried_out_one_at_a_time_and_answered_in_order() -> None:
    under_way: list[int] = []

    async def slow(context: RequestContext, _request: Any) -> Any:
        assert under_way == []
        under_way.append(context.version)
        await asyncio.sleep(0)
        under_way.pop()
        return metadata_response()

    async with serving(metadata(slow)) as server:
        client = await Client.connect(server)
        for number in range(300):
            client.send(metadata_request(), number % 13, number)
        assert await client.correlation_ids(300) == list(range(300))
        assert server.metrics.requests == 300


@pytest.mark.parametrize("error", [KeyError("a bug"), RemoteProtocolError(peer="the client", detail="no")])
async def test_a_handler_that_fails_ends_the_connection_without_half_an_answer(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    begun: list[int] = []

    async def fail(context: RequestContext, _request: Any) -> Any:
        begun.append(context.version)
        raise error

    async with serving(metadata(fail)) as server:
        bystander = await Client.connect(server)
        client = await Client.connect(server)
        client.send(metadata_request(), METADATA_VERSION, 1)
        client.send(metadata_request(), METADATA_VERSION, 2)
        assert await client.ends() == b""
        assert await bystander.works()
        await until(lambda: len(server.connections) == 1)
        assert len(begun) == 1
        ours = isinstance(error, KeyError)
        assert (server.metrics.handler_errors, server.metrics.protocol_errors) == (int(ours), int(not ours))
    (record,) = caplog.records
    assert (record.exc_info is not None) == isinstance(error, KeyError)


async def test_a_response_that_cannot_be_encoded_ends_the_connection() -> None:
    async def wrong(_context: RequestContext, _request: Any) -> Any:
        return MetadataResponse(throttle_time_ms=2**40, brokers=[], cluster_id="c", controller_id=1, topics=[])

    async with serving(metadata(wrong)) as server:
        client = await Client.connect(server)
        client.send(metadata_request(), METADATA_VERSION)
        assert await client.ends() == b""
        assert server.metrics.handler_errors == 1


def big_fetches(begun: list[int]) -> Handlers:
    """Fetch answers with 8 MiB."""

    async def fetch(context: RequestContext, _request: Any) -> Any:
        begun.append(context.version)
        topic = FetchResponse.FetchableTopicResponse
        partition = topic.PartitionData(
            partition_index=0, error_code=0, high_watermark=0, aborted_transactions=None, records=bytes(REPLY_BYTES)
        )
        return FetchResponse(throttle_time_ms=0, responses=[topic(topic="t", partitions=[partition])])

    return {Api.FETCH: Handler(4, 4, fetch, only_reads=True)}


def fetch_request() -> FetchRequest:
    return FetchRequest(replica_id=-1, max_wait_ms=0, min_bytes=0, max_bytes=1, isolation_level=0, topics=[])


async def test_a_client_that_does_not_read_costs_one_reply_and_is_not_read_from() -> None:
    """6 requests ask for 48 MiB; one reply of 8 MiB may lie in the server while nobody reads."""
    begun: list[int] = []
    async with serving(big_fetches(begun), metadata(empty_metadata)) as server:
        slow = await Client.connect(server, limit=1024)
        for number in range(6):
            slow.send(fetch_request(), 4, number)
        bystander = await Client.connect(server)
        await until(lambda: len(begun) == 1)
        (connection,) = [each for each in server.connections if each.buffered_bytes > 0]
        for _ in range(6):
            assert await bystander.works()
            assert connection.buffered_bytes <= REPLY_BYTES + SCRATCH_BYTES + 1024
        assert len(begun) == 1
        assert await slow.correlation_ids(6) == list(range(6))
        assert len(begun) == 6


async def test_a_slow_reader_that_goes_away_leaves_nothing_behind() -> None:
    begun: list[int] = []
    async with serving(big_fetches(begun)) as server:
        slow = await Client.connect(server, limit=1024)
        for number in range(10):
            slow.send(fetch_request(), 4, number)
        await until(lambda: len(begun) == 1)
        slow.reset()
        await until(lambda: not server.connections and not server._serving)
        assert len(begun) == 1


async def test_requests_are_read_ahead_up_to_a_bound() -> None:
    release = asyncio.Event()

    async def wait(_context: RequestContext, _request: Any) -> Any:
        await release.wait()
        return produce_response()

    async with serving(produce(wait)) as server:
        client = await Client.connect(server)
        count, size = 24, 1024 * 1024
        for number in range(count):
            client.send(produce_request(bytes(size)), PRODUCE_VERSION, number)
        (connection,) = server.connections
        await until(lambda: connection.buffered_bytes >= connections.BYTES_AHEAD_MAX)
        bystander = await Client.connect(server)
        for _ in range(10):
            assert await bystander.works()
            assert connection.buffered_bytes <= connections.BYTES_AHEAD_MAX + 2 * size
        release.set()
        assert await client.correlation_ids(count) == list(range(count))


@pytest.mark.parametrize("sent", [b"", struct.pack(">i", 100) + b"half"], ids=["silent", "mid-frame"])
async def test_a_connection_on_which_nothing_moves_is_closed(sent: bytes) -> None:
    """A peer that has vanished without a word (half-open) looks just like this."""
    async with serving(properties={"connections.max.idle.ms": "50"}) as server:
        client = await Client.connect(server)
        client.writer.write(sent)
        assert await client.ends() == b""
        assert server.metrics.connections_idle == 1
        await until(lambda: not server.connections)


async def test_a_client_that_sends_a_request_byte_by_byte_is_closed() -> None:
    """D13."""
    async with serving(properties={"connections.max.idle.ms": "300"}) as server:
        client = await Client.connect(server)
        client.writer.write(struct.pack(">i", 100_000))
        ended = asyncio.ensure_future(client.ends())
        while not ended.done():
            client.writer.write(b"x")
            await asyncio.wait({ended}, timeout=0.02)
        assert ended.result() == b""
        assert server.metrics.connections_idle == 1


async def test_what_all_connections_hold_is_bounded_and_only_who_goes_beyond_is_closed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """D13."""
    bound = {"queued.max.request.bytes": "1000000", "socket.request.max.bytes": "1000000"}
    async with serving(metadata(empty_metadata), properties=bound) as server:
        first = await Client.connect(server)
        first.writer.write(struct.pack(">i", 900_000) + bytes(500_000))
        await until(lambda: sum(each.request_bytes for each in server.connections) >= 500_000)
        second = await Client.connect(server)
        second.writer.write(struct.pack(">i", 900_000) + bytes(600_000))
        with suppress(ConnectionResetError):
            assert await second.ends() == b""
        await until(lambda: len(server.connections) == 1)
        assert "queued.max.request.bytes" in caplog.text
        assert not first.reader.at_eof()


async def test_a_client_that_reads_nothing_for_too_long_is_closed() -> None:
    async with serving(big_fetches([]), properties={"connections.max.idle.ms": "50"}) as server:
        slow = socket.create_connection(server.addresses[0])
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        request = fetch_request()
        request.with_header(1, "test")
        slow.sendall(bytes(request.encode(version=4, header=True, framed=True)))
        await until(lambda: server.metrics.connections_idle == 1)
        await until(lambda: not server.connections)
        slow.close()


async def test_a_client_that_breaks_the_protocol_and_reads_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "CLOSE_DEADLINE_S", 0.05)
    begun: list[int] = []
    async with serving(big_fetches(begun)) as server:
        slow = await Client.connect(server, limit=1024)
        slow.send(fetch_request(), 4)
        await until(lambda: len(begun) == 1)
        slow.writer.write(struct.pack(">i", -1))
        await until(lambda: not server.connections and not server._serving)
        assert server.metrics.protocol_errors == 1


async def test_a_request_that_takes_long_does_not_make_its_connection_idle() -> None:
    release = asyncio.Event()

    async def wait(_context: RequestContext, _request: Any) -> Any:
        await release.wait()
        return metadata_response()

    async with serving(metadata(wait), properties={"connections.max.idle.ms": "30"}) as server:
        patient = await Client.connect(server)
        patient.send(metadata_request(), METADATA_VERSION, 5)
        silent = await Client.connect(server)
        assert await silent.ends() == b""
        release.set()
        assert await patient.correlation_ids(1) == [5]


@pytest.mark.parametrize("only_reads", [True, False])
async def test_a_lost_client_ends_what_only_reads_and_nothing_else(only_reads: bool) -> None:
    begun, release = asyncio.Event(), asyncio.Event()
    ended: list[str] = []

    async def wait(_context: RequestContext, _request: Any) -> Any:
        begun.set()
        try:
            await release.wait()
            ended.append("finished")
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        return metadata_response()

    async with serving(metadata(wait, only_reads=only_reads)) as server:
        client = await Client.connect(server)
        client.send(metadata_request(), METADATA_VERSION)
        await begun.wait()
        client.reset()
        await until(lambda: not server.connections)
        release.set()
        await until(lambda: not server._serving)
        assert ended == ["cancelled" if only_reads else "finished"]


async def test_the_end_of_the_stream_ends_a_long_poll() -> None:
    begun = asyncio.Event()

    async def wait(_context: RequestContext, _request: Any) -> Any:
        begun.set()
        await asyncio.Event().wait()

    async with serving(metadata(wait, only_reads=True)) as server:
        client = await Client.connect(server)
        client.send(metadata_request(), METADATA_VERSION)
        await begun.wait()
        client.writer.write_eof()
        assert await client.ends() == b""
        await until(lambda: not server._serving)
