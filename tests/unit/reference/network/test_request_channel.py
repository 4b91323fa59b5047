"""Produce requests that follow each other overlap; nothing else does, and no reply overtakes another."""

from __future__ import annotations

import asyncio
from typing import Any

from spark_2pc_sink.reference.protocol.api import RequestContext
from tests.unit.reference.net import (
    METADATA_VERSION,
    PRODUCE_VERSION,
    Client,
    metadata,
    metadata_request,
    metadata_response,
    produce,
    produce_request,
    produce_response,
    serving,
)
from tests.unit.reference.waiting import until, within


class Disk:
    """Produce appends at once and is durable when the test says so."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.coordinator = asyncio.Event()
        self.coordinator.set()
        self.durable: dict[str, asyncio.Event] = {}

    async def produce(self, context: RequestContext, request: Any) -> Any:
        name = request.topic_data[0].partition_data[0].records.decode()
        self.log.append(f"begin {name}")
        await self.coordinator.wait()
        self.log.append(f"append {name}")
        context.appended()
        await self.durable.setdefault(name, asyncio.Event()).wait()
        self.log.append(f"durable {name}")
        if name == "fails":
            raise OSError("the disk is full")
        return None if request.acks == 0 else produce_response()

    async def metadata(self, _context: RequestContext, _request: Any) -> Any:
        self.log.append("metadata")
        return metadata_response()

    def sync(self, *names: str) -> None:
        for name in names:
            self.durable.setdefault(name, asyncio.Event()).set()


def send(client: Client, *names: str, acks: int = -1) -> None:
    for name in names:
        client.send(produce_request(name.encode(), acks), PRODUCE_VERSION, ord(name[0]))


async def test_a_produce_that_asks_the_coordinator_first_is_not_overtaken() -> None:
    disk = Disk()
    disk.coordinator.clear()
    async with serving(produce(disk.produce)) as server:
        client, bystander = await Client.connect(server), await Client.connect(server)
        send(client, "a", "b")
        await until(lambda: disk.log == ["begin a"])
        for _ in range(5):
            assert await bystander.works()
        assert disk.log == ["begin a"]
        disk.coordinator.set()
        disk.sync("a", "b")
        assert await client.correlation_ids(2) == [ord("a"), ord("b")]
        assert disk.log.index("append a") < disk.log.index("begin b")


async def test_replies_keep_the_order_of_the_requests_whatever_is_durable_first() -> None:
    disk = Disk()
    async with serving(produce(disk.produce)) as server:
        client = await Client.connect(server)
        send(client, "a", "b", "c")
        disk.sync("c", "b")
        await until(lambda: {"durable b", "durable c"} <= set(disk.log))
        assert "durable a" not in disk.log
        disk.sync("a")
        assert await client.correlation_ids(3) == [ord("a"), ord("b"), ord("c")]


async def test_any_other_request_waits_for_every_produce_before_it() -> None:
    disk = Disk()
    async with serving(produce(disk.produce), metadata(disk.metadata)) as server:
        client, bystander = await Client.connect(server), await Client.connect(server)
        send(client, "a", "b")
        client.send(metadata_request(), METADATA_VERSION, 1)
        send(client, "c")
        disk.sync("b", "c")
        await until(lambda: "durable b" in disk.log)
        for _ in range(5):
            assert await bystander.works()
        assert "metadata" not in disk.log
        disk.sync("a")
        assert await client.correlation_ids(4) == [ord("a"), ord("b"), 1, ord("c")]
        assert disk.log.index("metadata") < disk.log.index("begin c")


async def test_a_produce_that_fails_ends_the_connection_after_the_replies_before_it() -> None:
    disk = Disk()
    async with serving(produce(disk.produce), metadata(disk.metadata)) as server:
        client = await Client.connect(server)
        send(client, "a", "fails", "c")
        client.send(metadata_request(), METADATA_VERSION, 1)
        client.send(metadata_request(), METADATA_VERSION, 2)
        disk.sync("fails", "c")
        await until(lambda: {"durable fails", "durable c"} <= set(disk.log))
        disk.sync("a")
        assert await client.correlation_ids(1) == [ord("a")]
        assert await client.ends() == b""
        assert server.metrics.handler_errors == 1
        await until(lambda: not server._serving)
        assert "metadata" not in disk.log


async def test_a_stop_finishes_what_is_under_way_and_drops_what_waits() -> None:
    disk = Disk()
    async with serving(produce(disk.produce), metadata(disk.metadata)) as server:
        client = await Client.connect(server)
        send(client, "a")
        client.send(metadata_request(), METADATA_VERSION, 1)
        client.send(metadata_request(), METADATA_VERSION, 2)
        await until(lambda: "append a" in disk.log)
        (connection,) = server.connections
        await until(lambda: connection.buffered_bytes > 0)
        stopping = asyncio.ensure_future(server.stop(deadline_s=20))
        await asyncio.sleep(0)
        disk.sync("a")
        await within(stopping)
        assert await client.correlation_ids(2) == [ord("a"), 1]
        assert await client.ends() == b""
