"""What one connection may do to the server, how many there may be, and what each listener tells its clients."""

from __future__ import annotations

import asyncio
import logging
import struct
from contextlib import suppress
from typing import Any

import pytest
from kafka.protocol.consumer import FetchRequest, FetchResponse

from spark_2pc_sink.reference.network.connection import SCRATCH_BYTES
from spark_2pc_sink.reference.protocol.api import Handler, Handlers, RequestContext
from spark_2pc_sink.wire.api_versions import Api
from tests.unit.reference.batches import message
from tests.unit.reference.net import (
    METADATA_VERSION,
    Client,
    empty_metadata,
    metadata,
    metadata_request,
    metadata_response,
    serving,
)
from tests.unit.reference.waiting import until

REPLY_BYTES = 8 * 1024 * 1024


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "a frame of 1195725856 bytes"),
        (struct.pack(">i", -1), "a frame of -1 bytes"),
        (struct.pack(">i", 0), "shorter than its head"),
        (struct.pack(">ihhih", 10, 9999, 0, 1, -1), "API key 9999"),
        (struct.pack(">ihhih", 10, 3, 99, 1, -1), "METADATA v99; 0 to 12 are offered"),
        (struct.pack(">ihhihi", 14, 3, 1, 1, -1, 2**31 - 1), "request 3 v1 cannot be read"),
    ],
    ids=["text", "negative", "empty", "unknown", "version", "schema"],
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


def big_fetches(begun: list[int]) -> Handlers:
    """Fetch answers with 8 MiB."""

    async def fetch(context: RequestContext, _request: Any) -> Any:
        begun.append(context.version)
        partition = {"partition_index": 0, "records": bytes(REPLY_BYTES)}
        return message(FetchResponse, responses=[{"topic": "t", "partitions": [partition]}])

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


async def test_connections_beyond_the_limit_are_refused_until_one_ends(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        async with serving(properties={"max.connections": "2"}) as server:
            first, second = await Client.connect(server), await Client.connect(server)
            assert await first.works()
            assert await second.works()
            third = await Client.connect(server)
            assert await third.ends() == b""
            assert (server.metrics.connections_refused, len(server.connections)) == (1, 2)
            await first.close()
            await until(lambda: len(server.connections) == 1)
            fourth = await Client.connect(server)
            assert await fourth.works()
    (line,) = caplog.messages
    assert "max.connections=2" in line


async def test_each_listener_tells_its_clients_its_own_address() -> None:
    async def tell(context: RequestContext, _request: Any) -> Any:
        assert context.client_host == "/127.0.0.1"
        return metadata_response("{}:{}".format(*context.advertised))

    properties = {
        "listeners": "PLAINTEXT://127.0.0.1:0,PROXIED://localhost:0",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,PROXIED:PLAINTEXT",
        "advertised.listeners": "PROXIED://proxy.example:19092",
    }
    async with serving(metadata(tell), properties=properties) as server:
        told = []
        for index in range(2):
            client = await Client.connect(server, index)
            request, response = metadata_request(), metadata_response()
            told.append((await client.ask(request, type(response), METADATA_VERSION)).cluster_id)
        assert told == [f"127.0.0.1:{server.addresses[0][1]}", "proxy.example:19092"]
