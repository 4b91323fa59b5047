"""Requests and responses as bytes, from a frame to a handler and back; which overlap; what a connection may do."""

from __future__ import annotations

import asyncio
import logging
import struct
from contextlib import suppress
from typing import Any

import pytest
from kafka.protocol.consumer import FetchRequest, FetchResponse
from kafka.protocol.metadata import FindCoordinatorRequest
from kafka.protocol.producer import ProduceRequest, ProduceResponse

from spark_2pc_sink.errors import RemoteProtocolError
from spark_2pc_sink.reference.handlers.cluster import ApiVersionsHandlers
from spark_2pc_sink.reference.network.connection import SCRATCH_BYTES, RequestReader
from spark_2pc_sink.reference.network.request_channel import OTHER_REQUEST_BYTES_MAX, Dispatcher, join
from spark_2pc_sink.reference.protocol import (
    ENTRIES_MAX,
    ApiVersionsRequest,
    ApiVersionsResponse,
    Handler,
    Handlers,
    RequestContext,
    handlers_of,
    read_head,
    read_request,
)
from spark_2pc_sink.wire.api_versions import Api
from tests.unit.reference.batches import message
from tests.unit.reference.net import (
    METADATA_VERSION,
    PRODUCE_VERSION,
    Client,
    ask_whoami,
    catalog_at,
    dispatcher,
    empty_metadata,
    metadata,
    metadata_request,
    metadata_response,
    produce,
    produce_request,
    serving,
)
from tests.unit.reference.waiting import present, until, within


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
        return ProduceResponse(responses=[], throttle_time_ms=0)

    async def metadata(self, _context: RequestContext, _request: Any) -> Any:
        self.log.append("metadata")
        return metadata_response()

    def sync(self, *names: str) -> None:
        for name in names:
            self.durable.setdefault(name, asyncio.Event()).set()


def send(client: Client, *names: str) -> None:
    for name in names:
        client.send(produce_request(name.encode()), PRODUCE_VERSION, ord(name[0]))


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
        await until(lambda: len(connection._frames) > 0)
        stopping = asyncio.ensure_future(server.stop(deadline_s=20))
        await asyncio.sleep(0)
        disk.sync("a")
        await within(stopping)
        assert await client.correlation_ids(2) == [ord("a"), 1]
        assert await client.ends() == b""


async def answer(found: Dispatcher, frame: bytes) -> bytes:
    call = found.read(frame)
    reply = present(await found.answer(call, RequestContext(version=call.request.head.version)))
    return b"".join(reply)[4:]


def init_producer_id(version_max: int) -> Handlers:
    return {Api.INIT_PRODUCER_ID: Handler(0, version_max, empty_metadata, only_reads=True)}


@pytest.mark.parametrize(("unstable", "version_max"), [(False, 5), (True, 6)])
def test_versions_that_kafka_has_not_released_need_a_property(unstable: bool, version_max: int) -> None:
    (handler,) = join([init_producer_id(6)], unstable_versions=unstable).values()
    assert (handler.version_min, handler.version_max, handler.only_reads) == (0, version_max, True)
    (lower,) = join([init_producer_id(3)], unstable_versions=unstable).values()
    assert lower.version_max == 3


def test_only_produce_may_be_long() -> None:
    found = dispatcher(metadata(empty_metadata), produce(empty_metadata))
    fits = frame_of(metadata_request(), 0)
    filling = bytes(OTHER_REQUEST_BYTES_MAX - len(fits))
    assert found.read(fits + filling).api is Api.METADATA
    with pytest.raises(RemoteProtocolError, match=f"METADATA of {OTHER_REQUEST_BYTES_MAX + 1} bytes"):
        found.read(fits + filling + b"x")
    assert found.read(frame_of(produce_request(filling + filling), PRODUCE_VERSION)).api is Api.PRODUCE


@pytest.mark.parametrize("version", [6, -1])
async def test_an_unknown_version_of_api_versions_is_answered_in_version_0(version: int) -> None:
    """KIP-511: the broker answers with version 0, UNSUPPORTED_VERSION and the versions of ApiVersions."""
    frame = struct.pack(">hhih", 18, version, 3, -1) + b"whatever"
    response = ApiVersionsResponse.decode(await answer(dispatcher(), frame), version=0, header=True)
    assert response.error_code == 35
    assert [(each.api_key, each.min_version, each.max_version) for each in response.api_keys] == [(18, 0, 5)]


@pytest.mark.parametrize("level", [0, 2])
@pytest.mark.parametrize("version", [3, 4])
async def test_features_are_those_of_kafka(version: int, level: int) -> None:
    """Apache Kafka 4.4.0 names a feature that begins at level 0 from version 4 on (KIP-1022), and no level 0."""
    versions = ApiVersionsHandlers({}, catalog_at(level, 6))
    request = ApiVersionsRequest(client_software_name="me", client_software_version="1", cluster_id=None, node_id=-1)
    reply = await answer(Dispatcher(handlers_of(versions)), frame_of(request, version))
    response = ApiVersionsResponse.decode(reply, version=version, header=True)
    supported = {each.name: (each.min_version, each.max_version) for each in response.supported_features}
    assert supported["metadata.version"] == (7, 33)
    assert supported.get("transaction.version") == ((0, 2) if version >= 4 else None)
    finalized = {each.name: (each.min_version_level, each.max_version_level) for each in response.finalized_features}
    assert finalized.pop("metadata.version") == (33, 33)
    assert finalized == ({"transaction.version": (level, level)} if level else {})
    assert response.finalized_features_epoch == 6


def test_a_length_that_is_only_announced_costs_nothing() -> None:
    """D13."""
    scratch = memoryview(bytearray(64))
    frames = RequestReader(scratch, frame_bytes_max=100_000_000, has_room=lambda _more: True)

    def receive(data: bytes) -> None:
        frames.buffer()[: len(data)] = data
        assert list(frames.received(len(data))) == []

    receive(struct.pack(">i", 100_000_000) + b"x")
    for expected in (128, 256, 512, 1024):
        assert frames.buffered_bytes == expected
        receive(b"x" * len(frames.buffer()))


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


async def test_a_client_that_does_not_read_costs_one_reply_and_is_not_read_from() -> None:
    """6 requests ask for 48 MiB; one reply of 8 MiB may lie in the server while nobody reads."""
    begun: list[int] = []

    async def fetch(context: RequestContext, _request: Any) -> Any:
        begun.append(context.version)
        partition = {"partition_index": 0, "records": bytes(REPLY_BYTES)}
        return message(FetchResponse, responses=[{"topic": "t", "partitions": [partition]}])

    async with serving({Api.FETCH: Handler(4, 4, fetch, only_reads=True)}, metadata(empty_metadata)) as server:
        slow = await Client.connect(server, limit=1024)
        request = FetchRequest(replica_id=-1, max_wait_ms=0, min_bytes=0, max_bytes=1, isolation_level=0, topics=[])
        for number in range(6):
            slow.send(request, 4, number)
        bystander = await Client.connect(server)
        await until(lambda: len(begun) == 1)
        (connection,) = [each for each in server.connections if each.request_bytes > 0]
        for _ in range(6):
            assert await bystander.works()
            unsent_bytes = connection._transport.get_write_buffer_size()
            assert connection.request_bytes + unsent_bytes <= REPLY_BYTES + SCRATCH_BYTES + 1024
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
            told.append(await ask_whoami(client))
        assert told == [f"127.0.0.1:{server.addresses[0][1]}", "proxy.example:19092"]


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
