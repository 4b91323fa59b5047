"""The listeners: many connections, how many there may be, what each listener tells its clients."""

from __future__ import annotations

import logging
import socket
from typing import Any

import pytest

from spark_2pc_sink.reference.config.properties import BrokerProperties
from spark_2pc_sink.reference.network.connection import SocketServer
from spark_2pc_sink.reference.protocol.api import RequestContext
from tests.unit.reference.net import (
    METADATA_VERSION,
    Client,
    dispatcher,
    empty_metadata,
    metadata,
    metadata_request,
    metadata_response,
    serving,
)
from tests.unit.reference.waiting import until


async def test_two_hundred_idle_connections_cost_little_and_hinder_nobody() -> None:
    async with serving(metadata(empty_metadata)) as server:
        clients = [await Client.connect(server) for _ in range(200)]
        await until(lambda: len(server.connections) == 200)
        assert sum(each.buffered_bytes for each in server.connections) == 0
        assert await clients[0].works()
        assert await clients[199].works()
        for client in clients:
            client.writer.close()
        await until(lambda: not server.connections and not server._serving)
        assert server.metrics.connections_accepted == 200


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
        assert server.advertised == [server.addresses[0], ("proxy.example", 19092)]


async def test_a_port_that_is_taken_is_an_error_and_leaves_no_listener_behind() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        listeners = f"PLAINTEXT://127.0.0.1:0,OTHER://127.0.0.1:{port}"
        names = "PLAINTEXT:PLAINTEXT,OTHER:PLAINTEXT"
        properties = BrokerProperties.from_mapping({"listeners": listeners, "listener.security.protocol.map": names})
        server = SocketServer(dispatcher(), properties, access_of=lambda *_: None)  # type: ignore[arg-type]
        with pytest.raises(OSError, match="address already in use"):
            await server.start()
        socket.create_server(server.addresses[0]).close()


async def test_a_stopped_server_can_be_stopped_again_and_takes_nobody() -> None:
    async with serving() as server:
        client = await Client.connect(server)
        assert await client.works()
        await server.stop(deadline_s=5)
        assert not server.accepts
        assert await client.ends() == b""
        with pytest.raises(ConnectionRefusedError):
            await Client.connect(server)
        await server.stop(deadline_s=5)


async def test_who_was_accepted_just_before_a_stop_is_refused() -> None:
    async with serving() as server:
        late = socket.create_connection(server.addresses[0])  # waits in the backlog: the loop has not run since
        await server.stop(deadline_s=5)
        await until(lambda: not server.connections and not server._serving)
        late.close()
