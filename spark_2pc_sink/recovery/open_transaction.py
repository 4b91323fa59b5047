"""Open transactions whose decision is lost: the places of their records, and the operator's choice how to end them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from spark_2pc_sink.errors import KafkaError, KafkaTimeoutError
from spark_2pc_sink.recipe.remedies import RECOVER, remedy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jdbc_state import StateRow, StateStore
    from spark_2pc_sink.clock import Deadline
    from spark_2pc_sink.ids import ProducerIdAndEpoch, TopicPartition
    from spark_2pc_sink.recipe.resolve import Halt
    from spark_2pc_sink.recovery.kafka_side import KafkaSide

#: How many of the partitions a message names.
SHOWN_PARTITIONS_MAX: Final = 20
#: Minimum time for each partition.
_PARTITION_MS_MIN: Final = 1_000


def began_at(kafka: KafkaSide, deadline: Deadline) -> dict[TopicPartition, int | str]:
    """First offset of the open transaction in each of its partitions, or why it is unknown.

    Args:
        kafka: shows the transaction as open.
        deadline: for all requests together; after it no further partition is read.
    """
    described = kafka.describe()
    found: dict[TopicPartition, int | str] = {}
    producer = described.producer
    if producer is None:
        return found
    for partition in sorted(described.partitions):
        found[partition] = "not asked, for lack of time"
        if deadline.passed:
            continue
        limit_ms = max(int(deadline.remaining_s * 1000) // 2, _PARTITION_MS_MIN)
        try:
            offset = kafka.open_since(partition, producer_id=producer.producer_id, limit_ms=limit_ms)
        except (KafkaError, KafkaTimeoutError) as error:
            found[partition] = f"not to be read: {error}"
        else:
            found[partition] = "no record yet" if offset is None else offset
    return found


def note_decision(
    store: StateStore,
    row: StateRow,
    producer: ProducerIdAndEpoch,
    batch_id: int,
    *,
    found: Mapping[TopicPartition, int | str],
    did: Mapping[str, str],
) -> StateRow:
    """Record the open transaction as decided, BEFORE it is committed: then a crash in between loses nothing.

    Args:
        store: the state rows.
        row: claimed, and without a decision.
        producer: producer id and epoch of the transaction.
        batch_id: the batch whose rows are in the table.
        found: result of :func:`began_at`; its end can be read in the log from there on.
        did: description for the action log.
    """
    offsets = {str(partition): (at, at) for partition, at in found.items() if isinstance(at, int)}
    return store.accept_open(row.transactional_id, row.generation, str(producer), batch_id, offsets, detail=did)


def explained(halt: Halt, found: Mapping[TopicPartition, int | str]) -> Halt:
    """The halt with the places to look at, and with the commands that settle it.

    Args:
        halt: with the cause OPEN_TRANSACTION.
        found: result of :func:`began_at`.
    """
    shown = [
        f"{partition} from offset {began}" if isinstance(began, int) else f"{partition} ({began})"
        for partition, began in list(found.items())[:SHOWN_PARTITIONS_MAX]
    ]
    if len(found) > len(shown):
        shown.append(f"and {len(found) - len(shown)} more")
    command = f"{RECOVER} --adopt --open-transaction"
    newest = "the newest batch in the checkpoint's offsets/ that is not in its commits/"
    return replace(
        halt,
        reason=f"{halt.reason}. It wrote to {', '.join(shown) or 'no partition yet'}",
        remedies=(
            *halt.remedies,
            "else read its records from there on with isolation.level=read_uncommitted: are their rows in the table?",
            remedy(
                f"{command} commit --batch N",
                f"where they are; N is {newest}. Readers of the topic see the records, and Spark's replay is skipped",
            ),
            remedy(
                f"{command} abort",
                "where they are not: no reader sees the records; then start the job, which says how adopt=True names "
                "what came before",
            ),
        ),
    )
