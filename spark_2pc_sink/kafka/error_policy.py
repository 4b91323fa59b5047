"""The error policy for broker answers: which requests are retried, and exceptions for the others."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final

from spark_2pc_sink.codes import FENCED, Code
from spark_2pc_sink.errors import (
    AbortableError,
    AuthorizationError,
    FencedError,
    KafkaError,
    RecordRefusedError,
    UnknownTopicError,
)
from spark_2pc_sink.ids import ProducerIdAndEpoch, TopicPartition
from spark_2pc_sink.kafka.record_encoder import printable_key, record_lacks_key, record_too_large
from spark_2pc_sink.options.settings import refused
from spark_2pc_sink.wire.batch_format import read_header
from spark_2pc_sink.wire.batch_reader import content_digests, contents_of, key_and_value
from spark_2pc_sink.wire.framed_request import ProducedPartition
from spark_2pc_sink.wire.messages import describe_error

if TYPE_CHECKING:
    from spark_2pc_sink.kafka.batch_sender import Batch
    from spark_2pc_sink.wire.record_batch import PlacedBatch

#: Answers to a commit with two possible causes. A commit that meets the coordinator's own abort gets INVALID_TXN_STATE
#: up to Kafka 4.4.0, and PRODUCER_FENCED after it (KAFKA-20785) and below transaction.version 2.
COMMIT_REFUSED: Final = FENCED | {Code.INVALID_TXN_STATE}
TWO_CAUSES: Final = "the transaction has timed out, or another writer uses the transactional id"
#: The coordinator is loading, unreachable or another broker: find it again (KIP-98).
COORDINATOR_MOVED: Final = frozenset(
    {Code.COORDINATOR_LOAD_IN_PROGRESS, Code.COORDINATOR_NOT_AVAILABLE, Code.NOT_COORDINATOR}
)
#: The partition's leader is, or will be, another broker: look it up before retrying.
LEADER_MOVED: Final = frozenset(
    {Code.UNKNOWN_TOPIC_OR_PARTITION, Code.LEADER_NOT_AVAILABLE, Code.NOT_LEADER_OR_FOLLOWER, Code.KAFKA_STORAGE_ERROR}
)
#: Transaction coordinator answers that are retried with the same request. CONCURRENT_TRANSACTIONS means that
#: the previous transaction's markers are still being written (KIP-890). REQUEST_TIMED_OUT means, before Kafka 3.4,
#: that the controller has not granted new producer ids yet (KAFKA-14417); since then COORDINATOR_LOAD_IN_PROGRESS does.
COORDINATOR_BUSY: Final = COORDINATOR_MOVED | {Code.CONCURRENT_TRANSACTIONS, Code.REQUEST_TIMED_OUT}
#: Markers are written within milliseconds, so the first retry after such an answer uses this pause, not
#: retry.backoff.ms (Java: ADD_PARTITIONS_RETRY_BACKOFF_MS).
BUSY_BACKOFF_MS: Final = 20

#: Produce answers after which the same record batch is sent again. The coordinator's three codes are from Kafka
#: before 4.0; later versions use NOT_ENOUGH_REPLICAS instead.
PRODUCE_RETRIED: Final = (
    LEADER_MOVED
    | COORDINATOR_MOVED
    | {
        Code.REQUEST_TIMED_OUT,
        Code.NETWORK_EXCEPTION,
        Code.CONCURRENT_TRANSACTIONS,
        Code.NOT_ENOUGH_REPLICAS,
        Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    }
)
#: Produce answers that lose the transaction, but not the producer (KIP-890, TransactionAbortableException;
#: KIP-360 for 45).
_ABORTABLE: Final = frozenset({Code.OUT_OF_ORDER_SEQUENCE_NUMBER, Code.INVALID_TXN_STATE, Code.TRANSACTION_ABORTABLE})
_TOO_LARGE: Final = frozenset({Code.MESSAGE_TOO_LARGE, Code.RECORD_LIST_TOO_LARGE})
_NOT_ALLOWED: Final = frozenset(
    {
        Code.TOPIC_AUTHORIZATION_FAILED,
        Code.GROUP_AUTHORIZATION_FAILED,
        Code.CLUSTER_AUTHORIZATION_FAILED,
        Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
_LOGIN_REFUSED: Final = frozenset(
    {Code.UNSUPPORTED_SASL_MECHANISM, Code.ILLEGAL_SASL_STATE, Code.SASL_AUTHENTICATION_FAILED}
)
_ACL_REMEDY: Final = (
    "An ACL is missing: docs/permissions.md lists those of a sink, and `spark-2pc transactions --help` those of its "
    "commands"
)

_CLOCK_REMEDY: Final = (
    "records are stamped with this machine's time at the start of their batch: correct the clock, for example by NTP, "
    "or raise message.timestamp.after.max.ms of the topic, or message.timestamp.before.max.ms if batches take longer"
)
_KEY_REMEDY: Final = (
    "If the topic is compacted (cleanup.policy), each record needs a key: set one, for example by the option key"
)


def kafka_error(api: str, code: int, detail: str = "the broker gave no reason") -> KafkaError:
    """The exception for a code; plain `KafkaError` if its meaning depends on the request (45, 48, 120 on Produce)."""
    if code in FENCED:
        kind: type[KafkaError] = FencedError
    elif code in _NOT_ALLOWED:
        kind, detail = AuthorizationError, f"{detail}. {_ACL_REMEDY}"
    elif code in _LOGIN_REFUSED:
        kind = AuthorizationError
    elif code == Code.UNKNOWN_TOPIC_OR_PARTITION:
        kind = UnknownTopicError
    else:
        kind = KafkaError
    return kind(api=api, code=code, name=describe_error(code).name, detail=detail)


def produce_error(
    partition: TopicPartition, batch: Batch | PlacedBatch, answer: ProducedPartition, producer: ProducerIdAndEpoch
) -> Exception:
    code = answer.error_code
    detail = f"{partition}, producer {producer}: {answer.error_message or 'the broker gave no reason'}"
    if code == Code.INVALID_TIMESTAMP:
        # The rows are not at fault: all records have the timestamp of their batch.
        time_ms = read_header(memoryview(batch.payload).cast("B")).max_timestamp_ms
        reason = next((text for _, text in answer.record_errors if text), detail)
        time = datetime.fromtimestamp(time_ms / 1000, timezone.utc).isoformat(timespec="milliseconds")
        return refused("timestamp", time, f"{partition} must accept records with this time: {reason}", _CLOCK_REMEDY)
    if code == Code.INVALID_RECORD:
        individually = _record_refused(partition, batch, answer)
        if individually is not None:
            return individually
        detail = f"{detail}. {_KEY_REMEDY}"
    if code in _ABORTABLE:
        return AbortableError(api="Produce", code=code, name=describe_error(code).name, detail=detail)
    if code not in _TOO_LARGE:
        return kafka_error("Produce", code, detail)
    if batch.row_key is not None:
        limit = f"the broker answered {describe_error(code)}"
        return record_too_large(partition, batch.row_key, len(batch.payload), limit)
    rule = f"{partition} does not accept a batch of this size ({batch.record_count} records)"
    remedy = (
        "set batch.size below max.message.bytes of the topic; with the permission DESCRIBE_CONFIGS on the "
        "topic it is limited automatically"
    )
    return refused("batch.size", len(batch.payload), rule, remedy)


def _record_refused(
    partition: TopicPartition, batch: Batch | PlacedBatch, answer: ProducedPartition
) -> RecordRefusedError | None:
    """The error for records that the broker lists individually (KIP-467); None if it lists none."""
    named = [(index, text) for index, text in answer.record_errors if 0 <= index < batch.record_count]
    if not named:
        return None
    contents = contents_of(batch.payload, batch.record_count)
    found = [contents[index] for index, _ in named]
    digests = content_digests(found)
    key, value = key_and_value(found[0])
    if all(key_and_value(each)[0] is None for each in found):
        return replace(record_lacks_key(partition, value), contents=digests)
    return RecordRefusedError(
        topic=partition.topic,
        partition=partition.partition,
        record=f"value {printable_key(value)}" if key is None else f"key {printable_key(key)}",
        reason=named[0][1] or answer.error_message or f"the broker answered {describe_error(answer.error_code)}",
        contents=digests,
    )
