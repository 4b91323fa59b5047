"""The commit of a decided transaction in Kafka, taken over first where the broker keeps prepared transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jdbc_state.sink_log import sink_log
from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import InDoubtError, KafkaError, KafkaTimeoutError
from spark_2pc_sink.ids import PreparedTxnState, ProducerIdAndEpoch

if TYPE_CHECKING:
    from spark_2pc_sink.recovery.kafka_side import KafkaSide


#: What a broker answers that does not keep prepared transactions (every released Kafka), or not for this principal:
#: INVALID_REQUEST where keeping takes two-phase commit (apache/kafka#22704).
_KEEP_PREPARED_REFUSED: Final = frozenset(
    {Code.UNSUPPORTED_VERSION, Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, Code.INVALID_REQUEST}
)


def commit_prepared(
    kafka: KafkaSide, transactional_id: str, prepared: PreparedTxnState, *, take_over: bool
) -> PreparedTxnState | None:
    """End the transaction of a decided row with COMMIT.

    Args:
        kafka: shows the transaction as ongoing.
        transactional_id: of the sink.
        prepared: the row's pair.
        take_over: keep the transaction first, where the broker does that.

    Returns:
        The pair at which Kafka shows the end; None when the answer was anything but success: look again.

    Raises:
        InDoubtError: there was no answer in time.
    """
    producer = prepared.producer
    if producer is None:
        message = "a decided row always names a pair"
        raise AssertionError(message)
    if take_over:
        kept = keep_prepared(kafka, prepared)
        if kept is None:
            return None
        producer = kept
    try:
        answer = kafka.end(producer, commit=True)
    except KafkaTimeoutError as error:
        raise InDoubtError(transactional_id=transactional_id, prepared=str(prepared), detail=str(error)) from error
    if answer.code != Code.NONE:
        sink_log(__name__, transactional_id).info("EndTxn(commit, %s) answered %s; looking again", producer, answer)
        return None
    return PreparedTxnState.of(answer.producer or producer)


def keep_prepared(kafka: KafkaSide, prepared: PreparedTxnState) -> ProducerIdAndEpoch | None:
    """Take the prepared transaction over (KIP-939); the pair that can end it, or None to look again.

    Only ever called when the coordinator has just shown the transaction as ongoing: with nothing ongoing,
    InitProducerId would replace the outcome that the coordinator still shows.
    """
    try:
        initialized = kafka.init_producer_id(keep_prepared=True)
    except KafkaError as error:
        if error.code not in _KEEP_PREPARED_REFUSED:
            raise
        return prepared.producer
    return initialized.producer if initialized.ongoing == prepared else None
