"""What error codes of brokers mean: which are asked again, and the exceptions of the others."""

from __future__ import annotations

from typing import Final

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import AuthorizationError, FencedError, KafkaError, UnknownTopicError
from spark_2pc_sink.wire.error_codes import describe_error

#: Another producer owns the transactional id: InvalidProducerEpoch and ProducerFenced say so, and so does
#: InvalidProducerIdMapping, which is what the coordinator answers to a producer id that it has replaced or expired.
FENCED: Final = frozenset({Code.INVALID_PRODUCER_EPOCH, Code.INVALID_PRODUCER_ID_MAPPING, Code.PRODUCER_FENCED})
#: The coordinator is loading, unreachable or another broker: find it again (KIP-98).
COORDINATOR_MOVED: Final = frozenset(
    {Code.COORDINATOR_LOAD_IN_PROGRESS, Code.COORDINATOR_NOT_AVAILABLE, Code.NOT_COORDINATOR}
)
#: The leader of a partition is another broker, or will be: look for it before the same is asked or sent again.
LEADER_MOVED: Final = frozenset(
    {
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        Code.LEADER_NOT_AVAILABLE,
        Code.NOT_LEADER_OR_FOLLOWER,
        Code.KAFKA_STORAGE_ERROR,
    }
)
#: Answers of a transaction coordinator after which the same request is sent again. CONCURRENT_TRANSACTIONS means that
#: the markers of the transaction before are still being written (KIP-890). REQUEST_TIMED_OUT means, before Kafka 3.4,
#: that the controller has not granted new producer ids yet (KAFKA-14417); since then COORDINATOR_LOAD_IN_PROGRESS does.
COORDINATOR_BUSY: Final = COORDINATOR_MOVED | {Code.CONCURRENT_TRANSACTIONS, Code.REQUEST_TIMED_OUT}
#: Markers are written within milliseconds, so what waits for them is first asked again after this and not after
#: retry.backoff.ms (Java: ADD_PARTITIONS_RETRY_BACKOFF_MS).
BUSY_BACKOFF_MS: Final = 20

_REFUSED: Final = frozenset(
    {
        Code.TOPIC_AUTHORIZATION_FAILED,
        Code.GROUP_AUTHORIZATION_FAILED,
        Code.CLUSTER_AUTHORIZATION_FAILED,
        Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        Code.SASL_AUTHENTICATION_FAILED,
    }
)
_ACL_REMEDY: Final = (
    "An ACL is missing: README.md lists under Permissions what a sink needs, and `spark-2pc transactions --help` "
    "what those commands need"
)


def kafka_error(api: str, code: int, detail: str = "the broker gave no reason") -> KafkaError:
    """The exception for an answer, of the class that its code belongs to.

    Codes whose meaning depends on the request (45, 48 and 120 on Produce, say) come as plain `KafkaError`.
    """
    if code in FENCED:
        kind: type[KafkaError] = FencedError
    elif code in _REFUSED:
        kind = AuthorizationError
        if code != Code.SASL_AUTHENTICATION_FAILED:
            detail = f"{detail}. {_ACL_REMEDY}"
    elif code == Code.UNKNOWN_TOPIC_OR_PARTITION:
        kind = UnknownTopicError
    else:
        kind = KafkaError
    return kind(api=api, code=code, name=describe_error(code).name, detail=detail)
