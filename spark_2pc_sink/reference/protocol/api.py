"""APIs of the server, the context of a request, and the type of a handler."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, TypeAlias, TypeVar

from spark_2pc_sink.codes import Code
from spark_2pc_sink.reference.coordinator.events import FULL_ACCESS, Access

#: The principal of a connection without authentication, as Kafka names it.
ANONYMOUS: Final = "User:ANONYMOUS"


class Api(IntEnum):
    """The APIs that the server speaks, by their key on the wire."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    INCREMENTAL_ALTER_CONFIGS = 44
    OFFSET_DELETE = 47
    UPDATE_FEATURES = 57
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66


def nothing_waits() -> None:
    """Default for requests that do not block later ones."""


@dataclass(frozen=True, kw_only=True)
class RequestContext:
    """The client, and the version of its request.

    Args:
        advertised: host and port that the connection's listener advertises, for Metadata answers.
        appended: Produce calls it when its records are in the logs, in order, and only their durability is pending:
            the connection's next Produce may then begin. Otherwise the next one begins after the reply.
    """

    version: int
    client_id: str | None = None
    principal: str = ANONYMOUS
    access: Access = FULL_ACCESS
    client_host: str = "/127.0.0.1"
    advertised: tuple[str, int] = ("127.0.0.1", 9092)
    appended: Callable[[], None] = nothing_waits


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
    """One API with its offered versions.

    Args:
        only_reads: the function changes nothing, so it is cancelled if its client disconnects (a waiting Fetch).
    """

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
    """The handlers among the methods of an object."""
    found = {}
    for name, method in vars(type(family)).items():
        if served := getattr(method, "serves", None):
            api, version_min, version_max, only_reads = served
            found[api] = Handler(version_min, version_max, getattr(family, name), only_reads)
    return found
