"""The context of a request, and handlers: methods that are marked with their API and versions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

from spark_2pc_sink.codes import Code
from spark_2pc_sink.reference.coordinator.events import FULL_ACCESS, Access
from spark_2pc_sink.wire.api_versions import Api

#: The principal of a connection without authentication, as Kafka names it.
ANONYMOUS: Final = "User:ANONYMOUS"


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
        vars(method)["serves"] = (api, version_min, version_max, only_reads)
        return method

    return marked


def handlers_of(family: object) -> dict[Api, Handler]:
    found = {}
    for name, method in vars(type(family)).items():
        if served := getattr(method, "serves", None):
            api, version_min, version_max, only_reads = served
            found[api] = Handler(version_min, version_max, getattr(family, name), only_reads)
    return found
