"""A server with handlers of the test's choice, and a client that sees every byte."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

from kafka.protocol.metadata import ApiVersionsRequest, MetadataRequest, MetadataResponse
from kafka.protocol.producer import ProduceRequest

from spark_2pc_sink.reference.config.properties import BrokerProperties
from spark_2pc_sink.reference.coordinator.events import FULL_ACCESS
from spark_2pc_sink.reference.handlers.cluster import ApiVersionsHandlers
from spark_2pc_sink.reference.metadata.catalog import Catalog
from spark_2pc_sink.reference.metadata.catalog_state import new_state
from spark_2pc_sink.reference.network.connection import SocketServer
from spark_2pc_sink.reference.network.request_channel import Dispatcher, join
from spark_2pc_sink.reference.network.sasl import SaslHandlers
from spark_2pc_sink.reference.protocol import Handler, HandlerFunction, Handlers, RequestContext, handlers_of
from spark_2pc_sink.wire.api_versions import Api
from tests.unit.reference.batches import RESPONSES, message
from tests.unit.reference.waiting import within

METADATA_VERSION = 9
PRODUCE_VERSION = 9


def catalog_at(level: int, features_epoch: int) -> Catalog:
    """What ApiVersions shows of a cluster."""
    properties = BrokerProperties()
    state = replace(new_state(properties), cluster_id="here", transaction_version=level, feature_changes=features_epoch)
    return Catalog(state, None, properties, {})


def dispatcher(*families: Handlers) -> Dispatcher:
    """Everything that the families offer, and ApiVersions and SASL."""
    handlers = join([handlers_of(SaslHandlers()), *families], unstable_versions=False)
    versions = ApiVersionsHandlers(handlers, catalog_at(2, 0))
    return Dispatcher({**handlers, **handlers_of(versions)})


@asynccontextmanager
async def serving(*families: Handlers, properties: Mapping[str, str] | None = None) -> AsyncIterator[SocketServer]:
    """A server on a free port of 127.0.0.1, stopped at the end."""
    chosen = BrokerProperties.from_mapping({"listeners": "PLAINTEXT://127.0.0.1:0", **(properties or {})})
    server = SocketServer(dispatcher(*families), chosen, access_of=lambda _principal, _host: FULL_ACCESS)
    await server.start()
    try:
        yield server
    finally:
        for client in _CLIENTS.pop(server, []):
            await client.close()
        await server.stop(deadline_s=0)


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def connect(cls, server: SocketServer, index: int = 0, **options: Any) -> Client:
        host, port = server.addresses[index]
        client = cls(*await asyncio.open_connection(host, port, **options))
        _CLIENTS.setdefault(server, []).append(client)
        return client

    def send(self, request: Any, version: int, correlation_id: int = 1) -> None:
        request.with_header(correlation_id, "test")
        self.writer.write(bytes(request.encode(version=version, header=True, framed=True)))

    async def receive(self) -> bytes:
        """The next frame, without its length."""
        (length,) = struct.unpack(">i", await within(self.reader.readexactly(4)))
        return await within(self.reader.readexactly(length))

    async def correlation_ids(self, count: int) -> list[int]:
        return [struct.unpack_from(">i", await self.receive())[0] for _ in range(count)]

    async def ask(self, request: Any, version: int) -> Any:
        self.send(request, version)
        return RESPONSES[request.API_KEY].decode(await self.receive(), version=version, header=True)

    async def ends(self) -> bytes:
        """What comes until the server closes the connection."""
        try:
            return await within(self.reader.read())
        except ConnectionResetError:
            return b""

    def reset(self) -> None:
        """Go away as a killed process or a lost machine does."""
        linger = struct.pack("ii", 1, 0)
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.writer.transport.abort()

    async def close(self) -> None:
        self.writer.close()
        with suppress(OSError):
            await within(self.writer.wait_closed())

    async def works(self) -> bool:
        request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
        return bool((await self.ask(request, 3)).error_code == 0)


#: The clients of each server, closed with it.
_CLIENTS: dict[SocketServer, list[Client]] = {}


def metadata(function: HandlerFunction, *, only_reads: bool = False) -> Handlers:
    return {Api.METADATA: Handler(0, 12, function, only_reads)}


def produce(function: HandlerFunction) -> Handlers:
    return {Api.PRODUCE: Handler(3, 12, function)}


async def empty_metadata(_context: RequestContext, _request: Any) -> Any:
    return metadata_response()


def metadata_response(cluster_id: str = "c") -> Any:
    return MetadataResponse(throttle_time_ms=0, brokers=[], cluster_id=cluster_id, controller_id=1, topics=[])


async def whoami(context: RequestContext, _request: Any) -> Any:
    """Metadata whose cluster id is the principal of the connection."""
    return metadata_response(context.principal)


async def ask_whoami(client: Client) -> Any:
    return (await client.ask(metadata_request(), METADATA_VERSION)).cluster_id


def metadata_request() -> Any:
    return MetadataRequest(topics=[])


def produce_request(records: bytes) -> Any:
    data = [{"name": "t", "partition_data": [{"index": 0, "records": records}]}]
    return message(ProduceRequest, transactional_id=None, acks=-1, timeout_ms=1, topic_data=data)
