"""Kept batches: a decided batch is only noted as done after its topics and logs have shown its records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jdbc_state import DECIDED
from spark_2pc_sink.errors import KafkaError, KafkaTimeoutError
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.recipe.kept_records import WrittenRecords, find_lost_records, was_remade
from spark_2pc_sink.recipe.resolve import Halt, Resolution, Verdict

if TYPE_CHECKING:
    from jdbc_state import StateRow
    from spark_2pc_sink.recovery.kafka_side import KafkaSide


def check_kept(kafka: KafkaSide, row: StateRow, resolution: Resolution) -> Resolution | Halt:
    """A verdict that ends a decided batch as done, or why it must not.

    Args:
        kafka: whom to ask.
        row: the claimed row.
        resolution: the verdict on it; one that ends nothing as done is answered as it is.

    Raises:
        AuthorizationError: a topic may not be described.
        KafkaError, KafkaTimeoutError: Kafka does not tell.
    """
    committed = resolution.verdict is Verdict.MARK_DONE
    if row.status != DECIDED or not (committed or resolution.verdict is Verdict.COMMIT):
        return resolution
    written = _written_by(row)
    logs = kafka.view_logs(written.offsets, starts=not committed)
    lost = find_lost_records(written, logs, committed=committed)
    return lost or resolution


def explain_outcome_lost(kafka: KafkaSide, row: StateRow, halt: Halt) -> Halt:
    """Why no log tells how the row's transaction ended: where a topic was made anew, because of that.

    Args:
        kafka: whom to ask.
        row: the claimed row.
        halt: what the logs came to; it stands where Kafka does not tell more.
    """
    written = _written_by(row)
    try:
        logs = kafka.view_logs(written.offsets)
    except (KafkaError, KafkaTimeoutError):
        return halt
    if not was_remade(written, logs):
        return halt
    return find_lost_records(written, logs, committed=True) or halt


def _written_by(row: StateRow) -> WrittenRecords:
    """Where the records of a row's batch went."""
    offsets = {TopicPartition.parse(name): at for name, at in row.kafka_offsets.items()}
    return WrittenRecords(row.batch_id, offsets, row.topic_ids)
