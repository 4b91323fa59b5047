"""What a broker's answer to one record batch means for the transaction. Pure."""

from __future__ import annotations

from typing import Final

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import AbortableError, BatchRetryError, ConfigurationError, RecordTooLargeError
from spark_2pc_sink.ids import ProducerIdAndEpoch, TopicPartition
from spark_2pc_sink.producer.answers import LEADER_MOVED, kafka_error
from spark_2pc_sink.producer.leader_lookup import TopicLimits
from spark_2pc_sink.producer.partition_queue import Batch, PartitionQueue
from spark_2pc_sink.wire.error_codes import describe_error
from spark_2pc_sink.wire.replies import ProducedPartition

#: Answers after which the same batch is sent again. The three codes of the coordinator come from Kafka before 4.0;
#: later ones answer NOT_ENOUGH_REPLICAS in their place.
RETRIED: Final = LEADER_MOVED | {
    Code.REQUEST_TIMED_OUT,
    Code.NETWORK_EXCEPTION,
    Code.COORDINATOR_LOAD_IN_PROGRESS,
    Code.COORDINATOR_NOT_AVAILABLE,
    Code.NOT_COORDINATOR,
    Code.NOT_ENOUGH_REPLICAS,
    Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    Code.CONCURRENT_TRANSACTIONS,
}
#: The transaction is lost, the producer is not (KIP-890, TransactionAbortableException; KIP-360 for 45).
_ABORTABLE: Final = frozenset({Code.OUT_OF_ORDER_SEQUENCE_NUMBER, Code.INVALID_TXN_STATE, Code.TRANSACTION_ABORTABLE})
_TOO_LARGE: Final = frozenset({Code.MESSAGE_TOO_LARGE, Code.RECORD_LIST_TOO_LARGE})


def check_ours(
    queue: PartitionQueue,
    batch: Batch,
    answer: ProducedPartition,
    limits: TopicLimits,
    producer: ProducerIdAndEpoch,
) -> None:
    """Fail where the broker says "done" about somebody else's batch.

    A broker answers a batch that it has already with success, the offset of the first one and, whatever the topic's
    timestamp type, the time of that batch (``ProducerStateEntry.findDuplicateBatch``). That is right for a batch sent
    again, and impossible for one that is sent for the first time.

    Raises:
        BatchRetryError: it is not ours.
    """
    first = batch.sends == 1
    floor = queue.next_offset() if first else queue.floor_offset
    stamped = first and limits.create_time is True and answer.log_append_time_ms != -1
    if stamped or answer.base_offset < floor:
        raise BatchRetryError(
            reason=f"{queue.partition} already had a batch of producer {producer} with the sequence numbers of ours, "
            f"at offset {answer.base_offset}: another writer uses the same transaction, and ours was not written (or "
            "the topic was deleted and made anew). The whole transaction must be aborted"
        )


def refusal(
    partition: TopicPartition, batch: Batch, answer: ProducedPartition, producer: ProducerIdAndEpoch
) -> Exception:
    """The error for an answer that no repetition changes."""
    code = answer.error_code
    detail = f"{partition}, pair {producer}: {answer.error_message or 'the broker gave no reason'}"
    if answer.record_errors:
        detail += "; " + "; ".join(f"record {index}: {text}" for index, text in answer.record_errors)
    if code in _ABORTABLE:
        return AbortableError(api="Produce", code=code, name=describe_error(code).name, detail=detail)
    if code not in _TOO_LARGE:
        return kafka_error("Produce", code, detail)
    if batch.row_key is not None:
        limit = f"the broker answered {describe_error(code)}"
        return record_too_large(partition, batch.row_key, len(batch.payload), limit)
    return ConfigurationError(
        option="batch.size",
        value=len(batch.payload),
        rule=f"{partition} does not take a batch of {batch.record_count} records in so many bytes",
        remedy="set batch.size below max.message.bytes of the topic; with the permission DESCRIBE_CONFIGS on the "
        "topic that is done without asking",
    )


def record_too_large(partition: TopicPartition, row_key: str, record_bytes: int, limit: str) -> RecordTooLargeError:
    """The error for a record that does not fit, ``limit`` saying what."""
    return RecordTooLargeError(
        topic=partition.topic,
        partition=partition.partition,
        row_key=row_key,
        record_bytes=record_bytes,
        limit=limit,
    )
