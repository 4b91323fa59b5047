"""Descriptions of transactional ids: what their coordinators say of them (KIP-664)."""

from __future__ import annotations

from dataclasses import dataclass

from spark_2pc_sink.codes import Code
from spark_2pc_sink.ids import ProducerIdAndEpoch, TopicPartition, TransactionState
from spark_2pc_sink.producer.error_policy import kafka_error
from spark_2pc_sink.wire.replies import DescribedTransaction


@dataclass(frozen=True)
class TransactionDescription:
    """The coordinator's description of a transactional id (KIP-664, DescribeTransactions).

    Args:
        state: Kafka's name of the state, one of `TransactionState` or a newer one; ``Unknown`` for an id that the
            coordinator has never seen, or has forgotten.
        producer: the pair, None for an unknown id.
        timeout_ms: 2147483647 for transactions that never time out; 0 for an unknown id.
        partitions: those of the transaction that have no end marker yet.
        start_time_ms: when the current or the last transaction began, since 1970 by the coordinator's clock; None if
            there was none.
    """

    state: str
    producer: ProducerIdAndEpoch | None
    timeout_ms: int
    partitions: tuple[TopicPartition, ...] = ()
    start_time_ms: int | None = None


def description_of(found: DescribedTransaction) -> TransactionDescription:
    """What a coordinator has answered; that it has no such id is a state.

    Raises:
        KafkaError: any other refusal.
    """
    if found.error_code == Code.TRANSACTIONAL_ID_NOT_FOUND:
        return TransactionDescription(TransactionState.UNKNOWN.value, None, 0)
    if found.error_code != Code.NONE:
        raise kafka_error("DescribeTransactions", found.error_code, f"id {found.transactional_id!r}")
    began = found.start_time_ms if found.start_time_ms >= 0 else None
    return TransactionDescription(found.state, found.producer, found.timeout_ms, found.partitions, began)
