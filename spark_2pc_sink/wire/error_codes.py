"""Kafka's error codes: their names in Kafka 4, and whether a retry of the same request may succeed.

The table is kafka-python's, with entries replaced or added where Apache Kafka 4.4.0 differs
(``org.apache.kafka.common.protocol.Errors``; retriable means that its exception is a ``RetriableException``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kafka import errors as kafka_errors


@dataclass(frozen=True)
class ErrorCode:
    """One error code by its name in ``org.apache.kafka.common.protocol.Errors``.

    ``retriable`` if Kafka's own clients send the same request again. A code can still be final for one request: the
    caller decides, this only gives Kafka's general meaning.
    """

    code: int
    name: str
    retriable: bool

    def __str__(self) -> str:
        return f"{self.name} ({self.code})"


_CORRECTIONS: Final = (
    ErrorCode(-1, "UNKNOWN_SERVER_ERROR", retriable=False),
    ErrorCode(0, "NONE", retriable=False),
    ErrorCode(2, "CORRUPT_MESSAGE", retriable=True),
    ErrorCode(6, "NOT_LEADER_OR_FOLLOWER", retriable=True),
    ErrorCode(10, "MESSAGE_TOO_LARGE", retriable=False),
    ErrorCode(17, "INVALID_TOPIC_EXCEPTION", retriable=False),
    ErrorCode(39, "INVALID_REPLICA_ASSIGNMENT", retriable=False),
    ErrorCode(128, "INVALID_REGULAR_EXPRESSION", retriable=False),
    ErrorCode(129, "REBOOTSTRAP_REQUIRED", retriable=False),
    ErrorCode(130, "STREAMS_INVALID_TOPOLOGY", retriable=False),
    ErrorCode(131, "STREAMS_INVALID_TOPOLOGY_EPOCH", retriable=False),
    ErrorCode(132, "STREAMS_TOPOLOGY_FENCED", retriable=False),
    ErrorCode(133, "SHARE_SESSION_LIMIT_REACHED", retriable=True),
    ErrorCode(134, "GROUP_DELETION_FAILED", retriable=False),
    ErrorCode(135, "STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED", retriable=False),
    ErrorCode(136, "CONTROLLER_ID_NOT_REGISTERED", retriable=False),
)

#: Every known code.
ERROR_CODES: Final[dict[int, ErrorCode]] = {
    code: ErrorCode(code, error.message, error.retriable)
    for code, error in sorted(item for item in kafka_errors.kafka_errors.items() if item[0] is not None)
} | {error.code: error for error in _CORRECTIONS}


def describe_error(code: int) -> ErrorCode:
    """Explain ``code``; an unknown one is named ``UNKNOWN_ERROR_<code>`` and is not retriable."""
    return ERROR_CODES.get(code) or ErrorCode(code, f"UNKNOWN_ERROR_{code}", retriable=False)
