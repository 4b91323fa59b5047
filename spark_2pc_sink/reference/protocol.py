"""Requests and responses of the Kafka protocol, as handlers see them and as bytes, and what marks a handler.

A request is kafka-python's own object; its fields have the names of Kafka's schemas in snake case. Handlers build the
response classes themselves. Headers are read and written here: the library would copy a whole request for its
header, but the records of a Produce request should be copied only once, out of the frame.

The server has one event loop, so a request with a million entries would block every client. The library's decoders are
functions generated from the schemas; a long request is decoded by the same function with its two names for reading
lists and tags replaced, and is rejected as soon as one entry too many is announced.

Versions of Kafka 4.4.0 that kafka-python lacks are its own classes, built from its schemas with the additions of
Kafka's (``common/message`` in its client library): TxnOffsetCommit v6 identifies topics by id (KIP-1319), ApiVersions
v5 has the client's expected cluster and node (KIP-1242), DeleteGroups v3 a message with each code.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from types import FunctionType, new_class
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from kafka.protocol import admin, consumer, metadata, producer, sasl
from kafka.protocol.api_header import ResponseClassRegistry

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import RemoteProtocolError
from spark_2pc_sink.reference.coordinator.events import FULL_ACCESS, Access
from spark_2pc_sink.wire.api_versions import Api
from spark_2pc_sink.wire.batch_format import VARINT_BYTES_MAX, read_unsigned

#: The principal of a connection without authentication, as Kafka names it.
ANONYMOUS: Final = "User:ANONYMOUS"
#: What a principal may do that connects from a host.
AccessOf: TypeAlias = Callable[[str, str], Access]


@dataclass(frozen=True, kw_only=True)
class RequestContext:
    """The client, and the version of its request; ``advertised`` is host and port of its listener in Metadata.

    Produce calls ``appended`` when its records are in the logs, in order, and only their durability is pending: the
    connection's next Produce may then begin.
    """

    version: int
    client_id: str | None = None
    principal: str = ANONYMOUS
    access: Access = FULL_ACCESS
    client_host: str = "/127.0.0.1"
    advertised: tuple[str, int] = ("127.0.0.1", 9092)
    appended: Callable[[], None] = lambda: None


class RefusedError(Exception):
    """Refusal of a part of a request: a code, and Kafka's message for it."""

    def __init__(self, code: Code, message: str | None = None) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message


#: Carries out one request. None: no reply is sent (Produce with acks=0). An exception ends the connection without
#: a reply: `RemoteProtocolError` with one line in the log, others with their traceback.
HandlerFunction: TypeAlias = Callable[[RequestContext, Any], Awaitable[Any]]
_Method = TypeVar("_Method", bound=Callable[..., Awaitable[Any]])


@dataclass(frozen=True)
class Handler:
    """One API with its offered versions; one that ``only_reads`` (a waiting Fetch) is cancelled with its client."""

    version_min: int
    version_max: int
    function: HandlerFunction
    only_reads: bool = False


#: A family's handlers by API; `request_channel.join` joins them.
Handlers: TypeAlias = Mapping[Api, Handler]


def serves(api: Api, version_min: int, version_max: int, *, only_reads: bool = False) -> Callable[[_Method], _Method]:
    """Mark a method as the handler of an API in these versions, for `handlers_of`; see `Handler`."""

    def marked(method: _Method) -> _Method:
        vars(method)["serves"] = api, partial(Handler, version_min, version_max, only_reads=only_reads)
        return method

    return marked


def handlers_of(family: object) -> dict[Api, Handler]:
    marked = ((name, getattr(method, "serves", None)) for name, method in vars(type(family)).items())
    return {served[0]: served[1](getattr(family, name)) for name, served in marked if served}


_Schema: TypeAlias = dict[str, Any]


def _named(fields: list[_Schema], name: str) -> _Schema:
    return next(field for field in fields if field["name"] == name)


def _text_field(name: str, version: int) -> _Schema:
    versions = f"{version}+"
    return {"name": name, "type": "string", "versions": versions, "nullableVersions": versions, "default": "null"}


def _add_topic_ids(schema: _Schema) -> None:
    for field in schema["fields"]:
        # Its name in OffsetCommit, and here from 4.4.0 on.
        if field["name"] == "GenerationId":
            field["name"] = "GenerationIdOrMemberEpoch"
    topic = _named(schema["fields"], "Topics")["fields"]
    _named(topic, "Name")["versions"] = "0-5"
    topic.insert(1, {"name": "TopicId", "type": "uuid", "versions": "6+", "ignorable": True})


def _newer(known: Any, version: int, patch: Callable[[_Schema], None] = lambda _: None) -> Any:
    """The class of a message up to a version that its own class lacks; without ``patch`` that has the same fields."""

    def patched(_: type, schema: _Schema) -> _Schema:
        newer = deepcopy(schema)
        newer["validVersions"] = f"0-{version}"
        patch(newer)
        return newer

    made: Any = new_class(known.__name__, (known,), {}, lambda body: body.update({"json_patch": classmethod(patched)}))
    if not made.is_request():
        # The library's own clients in this process continue to use the original class.
        ResponseClassRegistry.register_response_class(known)
    return made


TxnOffsetCommitRequest: Final = _newer(producer.TxnOffsetCommitRequest, 6, _add_topic_ids)
TxnOffsetCommitResponse: Final = _newer(producer.TxnOffsetCommitResponse, 6, _add_topic_ids)
_EXPECTED: Final = (_text_field("ClusterId", 5), {"name": "NodeId", "type": "int32", "versions": "5+", "default": -1})
ApiVersionsRequest: Final = _newer(metadata.ApiVersionsRequest, 5, lambda schema: schema["fields"].extend(_EXPECTED))
ApiVersionsResponse: Final = _newer(metadata.ApiVersionsResponse, 5)
DeleteGroupsRequest: Final = _newer(admin.DeleteGroupsRequest, 3)
DeleteGroupsResponse: Final = _newer(
    admin.DeleteGroupsResponse,
    3,
    lambda schema: _named(schema["fields"], "Results")["fields"].append(_text_field("ErrorMessage", 3)),
)

_HEAD: Final = struct.Struct(">hhi")  # api key, version, correlation id
_SHORT: Final = struct.Struct(">h")
_RESPONSE_HEAD: Final = struct.Struct(">ii")  # length, correlation id
#: The only response whose header never has tags: a client reads it before it knows the server.
_API_VERSIONS: Final = 18
_read_varint: Final = partial(read_unsigned, bytes_max=VARINT_BYTES_MAX)
#: Bound for request header tags, which are skipped; Kafka has defined none.
_TAGS_MAX: Final = 16

#: Most entries in a request, counting all its lists and tags: each is an object, and most are answered with another.
#: Fifty thousand take a second at most; no client needs as many partitions or names at a time. Kafka, which has
#: many threads, allows a million for each list.
ENTRIES_MAX: Final = 50_000
#: For tags inside a body the library copies the rest of the body: this many bytes take as long as one entry.
_COPIED_BYTES_PER_ENTRY: Final = 4096

#: Every request class by its API key, with or without a handler.
REQUESTS: Final[dict[int, Any]] = {
    found.API_KEY: found
    for module in (admin, consumer, metadata, producer, sasl)
    for name in dir(module)
    if name.endswith("Request") and name != "SaslBytesRequest"
    for found in (getattr(module, name),)
} | {each.API_KEY: each for each in (TxnOffsetCommitRequest, ApiVersionsRequest, DeleteGroupsRequest)}


class RequestHead(NamedTuple):
    api_key: int
    version: int
    correlation_id: int


class ApiRequest(NamedTuple):
    head: RequestHead
    client_id: str | None
    body: Any


def read_head(frame: bytes | bytearray | memoryview) -> RequestHead:
    if len(frame) < _HEAD.size:
        raise RemoteProtocolError(peer="the client", detail=f"a request of {len(frame)} bytes, shorter than its head")
    return RequestHead(*_HEAD.unpack_from(frame))


def read_request(frame: bytes | bytearray | memoryview, head: RequestHead) -> ApiRequest:
    """Decode a whole request of at most `ENTRIES_MAX` entries; the server must offer its API and version."""
    schema = REQUESTS[head.api_key]
    flexible = schema.flexible_version_q(head.version)
    try:
        view = memoryview(frame)
        client_id, position = _read_client_id(view, flexible=flexible)
        if len(frame) > ENTRIES_MAX:
            body = _decode_counted(schema, view[position:], version=head.version, flexible=flexible)
        else:
            # Every entry has at least one byte.
            body = schema.decode(view[position:], version=head.version)
    except Exception as error:  # arbitrary bytes can make the decoder fail in any way
        detail = f"request {head.api_key} v{head.version} cannot be read: {error!r}"
        raise RemoteProtocolError(peer="the client", detail=detail) from error
    return ApiRequest(head, client_id, body)


def _decode_counted(schema: Any, body: memoryview, *, version: int, flexible: bool) -> Any:
    """As ``schema.decode``, with two names of its generated function replaced by functions that count entries."""
    generated = schema._struct.compiled_decode_from(  # noqa: SLF001 - the library has no way in for a limit
        version, compact=flexible, tagged=flexible, data_class=schema[None]
    )
    left = ENTRIES_MAX

    def take(count: int) -> None:
        nonlocal left
        left -= count
        if left < 0:
            raise ValueError(f"more than {ENTRIES_MAX} entries")

    def list_range(count: int) -> range:
        take(max(0, count))
        return range(count)

    def tag_bytes(rest: bytes) -> BytesIO:
        count, _ = _read_varint(rest, 0)  # the number of tags is first
        take(count + len(rest) // _COPIED_BYTES_PER_ENTRY)
        return BytesIO(rest)

    names = {**generated.__globals__, "range": list_range, "_BytesIO": tag_bytes}
    decoded, _ = FunctionType(generated.__code__, names)(body, 0)
    return decoded


def _read_client_id(view: memoryview, *, flexible: bool) -> tuple[str | None, int]:
    (length,) = _SHORT.unpack_from(view, _HEAD.size)
    position = _HEAD.size + _SHORT.size
    end = position + max(length, 0)
    if length < -1 or end > len(view):
        raise ValueError(f"a client id of {length} bytes")
    client_id = None if length < 0 else str(view[position:end], "utf-8")
    return client_id, _skip_tags(view, end) if flexible else end


def _skip_tags(view: memoryview, position: int) -> int:
    count, position = _read_varint(view, position)
    if count > _TAGS_MAX:
        raise ValueError(f"{count} tags in a header")
    for _ in range(count):
        _tag, position = _read_varint(view, position)
        size, position = _read_varint(view, position)
        position += size
    return position


#: The bytes of a reply: length and header, then the body.
Reply: TypeAlias = tuple[bytes, bytes | bytearray]


def write_response(response: Any, correlation_id: int, *, version: int) -> Reply:
    """Encode a response: length and header, then the body, which may be long and is not copied again."""
    body: bytes | bytearray = response.encode(version=version)
    tags = b"\x00" if response.API_KEY != _API_VERSIONS and response.flexible_version_q(version) else b""
    return _RESPONSE_HEAD.pack(4 + len(tags) + len(body), correlation_id) + tags, body
