"""Kafka's error codes: their names in Kafka 4, and whether the same request may succeed later.

The table is kafka-python's, with the entries replaced or added where Apache Kafka 4.4.0 says something else
(``org.apache.kafka.common.protocol.Errors``; retriable means that its exception is a ``RetriableException``).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from kafka import errors as kafka_errors


@dataclass(frozen=True)
class ErrorCode:
    """One error code, explained.

    Args:
        code: the number on the wire.
        name: the constant's name in ``org.apache.kafka.common.protocol.Errors``.
        retriable: True where Kafka's own clients send the same request again. A code can be final for one
            request all the same: who asks decides, this only says what Kafka means by it.
    """

    code: int
    name: str
    retriable: bool

    def __str__(self) -> str:
        return f"{self.name} ({self.code})"


class Code(IntEnum):
    """The codes that some module of this package has a branch for."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    MESSAGE_TOO_LARGE = 10
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    UNSUPPORTED_VERSION = 35
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    SASL_AUTHENTICATION_FAILED = 58
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    OFFSET_NOT_AVAILABLE = 78
    INVALID_RECORD = 87
    PRODUCER_FENCED = 90
    TRANSACTIONAL_ID_NOT_FOUND = 105
    TRANSACTION_ABORTABLE = 120
    INVALID_REGULAR_EXPRESSION = 128


_CORRECTIONS: Final = (
    ErrorCode(-1, "UNKNOWN_SERVER_ERROR", retriable=False),
    ErrorCode(0, "NONE", retriable=False),
    ErrorCode(2, "CORRUPT_MESSAGE", retriable=True),
    ErrorCode(6, "NOT_LEADER_OR_FOLLOWER", retriable=True),
    ErrorCode(10, "MESSAGE_TOO_LARGE", retriable=False),
    ErrorCode(17, "INVALID_TOPIC_EXCEPTION", retriable=False),
    ErrorCode(39, "INVALID_REPLICA_ASSIGNMENT", retriable=False),
    ErrorCode(75, "UNKNOWN_LEADER_EPOCH", retriable=True),
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

#: Every code that this package can name.
ERROR_CODES: Final[dict[int, ErrorCode]] = {
    code: ErrorCode(code, error.message, error.retriable)
    for code, error in sorted(item for item in kafka_errors.kafka_errors.items() if item[0] is not None)
} | {error.code: error for error in _CORRECTIONS}


def describe_error(code: int) -> ErrorCode:
    """Explain ``code``; one that no table knows is named ``UNKNOWN_ERROR_<code>`` and is not retriable."""
    return ERROR_CODES.get(code) or ErrorCode(code, f"UNKNOWN_ERROR_{code}", retriable=False)
