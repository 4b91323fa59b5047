"""Dispatch: from a frame to the handler that carries it out, and from its answer to the bytes of the reply."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, TypeAlias

from kafka.protocol.metadata import ApiVersionsResponse

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import RemoteProtocolError
from spark_2pc_sink.reference.protocol.api import Api, Handler, Handlers, RequestContext
from spark_2pc_sink.reference.protocol.codec import (
    REQUESTS,
    Request,
    RequestHead,
    read_head,
    read_request,
    write_response,
)

#: The bytes of a reply: length and header, then the body.
Reply: TypeAlias = tuple[bytes, bytes | bytearray]

#: A longer request is taken for Produce only. Decoded, a list of a million entries takes fifty times its bytes, and
#: nothing but records has a reason to be long; Kafka has the one limit of ``socket.request.max.bytes`` for all.
OTHER_REQUEST_BYTES_MAX: Final = 8 * 1024 * 1024
#: The last version that Kafka 4.4.0 has released, of APIs that have one beyond it: without
#: ``unstable.api.versions.enable`` InitProducerId v6 (KIP-939) does not exist.
RELEASED_MAX: Final[Mapping[Api, int]] = MappingProxyType({Api.INIT_PRODUCER_ID: 5})


def join(families: Iterable[Handlers], *, unstable_versions: bool) -> dict[Api, Handler]:
    """All handlers by API, with the versions that are offered.

    Args:
        families: no two have the same API.
        unstable_versions: also offer versions that Kafka has not released.
    """
    joined: dict[Api, Handler] = {}
    for family in families:
        for api, handler in family.items():
            if api in joined:
                raise AssertionError(f"two handlers for {api.name}")
            if handler.version_max > REQUESTS[api].max_version:
                raise AssertionError(f"there is no class of {api.name} v{handler.version_max}")
            joined[api] = handler if unstable_versions else _released(api, handler)
    return joined


def _released(api: Api, handler: Handler) -> Handler:
    version_max = min(handler.version_max, RELEASED_MAX.get(api, handler.version_max))
    return Handler(handler.version_min, version_max, handler.function, handler.only_reads)


@dataclass(frozen=True)
class Call:
    """A request and who carries it out.

    Args:
        handler: None for an ApiVersions request of a version that is not offered.
    """

    api: Api
    head: RequestHead
    handler: Handler | None
    request: Request | None


class Dispatcher:
    """The APIs that the server offers.

    Args:
        handlers: by API, as `join` gives them.
    """

    def __init__(self, handlers: Mapping[Api, Handler]) -> None:
        self._handlers = {int(api): handler for api, handler in handlers.items()}

    def read(self, frame: bytes | bytearray) -> Call:
        """Find the handler of a frame and decode it.

        Raises:
            RemoteProtocolError: the API or its version is not offered, the request is too long, or its bytes do not
                fit the schema. As in Kafka such a request has no answer; ApiVersions says what is offered.
        """
        head = read_head(frame)
        handler = self._handlers.get(head.api_key)
        if handler is None:
            raise RemoteProtocolError(peer="the client", detail=f"a request with API key {head.api_key}")
        api = Api(head.api_key)
        if api is not Api.PRODUCE and len(frame) > OTHER_REQUEST_BYTES_MAX:
            raise RemoteProtocolError(peer="the client", detail=f"{api.name} of {len(frame)} bytes")
        if handler.version_min <= head.version <= handler.version_max:
            return Call(api, head, handler, read_request(frame, head))
        if api is Api.API_VERSIONS:
            return Call(api, head, None, None)
        offered = f"{handler.version_min} to {handler.version_max} are offered"
        raise RemoteProtocolError(peer="the client", detail=f"{api.name} v{head.version}; {offered}")

    async def answer(self, call: Call, context: RequestContext) -> Reply | None:
        """Carry a call out. None: nothing is sent back.

        Args:
            call: from `read`.
            context: of its version.
        """
        if call.handler is None or call.request is None:
            return self._unknown_version(call.head)
        response = await call.handler.function(context, call.request.body)
        if response is None:
            return None
        return write_response(response, call.head.correlation_id, version=call.head.version)

    def _unknown_version(self, head: RequestHead) -> Reply:
        """KIP-511: the answer has version 0, which every client reads, and names the versions of ApiVersions."""
        offered = self._handlers[Api.API_VERSIONS]
        entry = ApiVersionsResponse.ApiVersion(
            api_key=Api.API_VERSIONS, min_version=offered.version_min, max_version=offered.version_max
        )
        response = ApiVersionsResponse(error_code=Code.UNSUPPORTED_VERSION, api_keys=[entry])
        return write_response(response, head.correlation_id, version=0)
