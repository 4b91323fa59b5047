"""Control markers: they tell how a decided transaction ended, in the log of each partition that it wrote.

Recovery comes here when the coordinator no longer shows the transaction. A transaction ends in the same way in all its
partitions, so one that tells is enough: topics are deleted, logs compacted, brokers lost and permissions withdrawn,
and none of that may hide the marker that another partition still has, nor stop a person's decision.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spark_2pc_sink.errors import HaltCause, KafkaError, KafkaTimeoutError, RemoteProtocolError
from spark_2pc_sink.ids import ProducerIdAndEpoch, TopicPartition
from spark_2pc_sink.producer.log_reader import Marker
from spark_2pc_sink.recipe.remedies import accept_replay, compare, drop
from spark_2pc_sink.recipe.resolve import Halt, Resolution, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_2pc_sink.clock import Deadline
    from spark_2pc_sink.recovery.kafka_side import KafkaSide

#: A partition that is asked has at least this long, however many were asked before: one that is well answers at once.
PARTITION_MS_MIN: Final = 1_000
#: Of the partitions that did not tell, how many a message names: a row may have hundreds.
SHOWN_PARTITIONS_MAX: Final = 20

_UNREADABLE_REMEDY: Final = (
    "make the partitions readable that are not (their broker, the permission to READ, more time by max.block.ms), and "
    "start again"
)


def ask_the_log(
    kafka: KafkaSide,
    producer: ProducerIdAndEpoch | None,
    offsets: Mapping[str, tuple[int, int]],
    deadline: Deadline,
    *,
    batch_id: int | None,
) -> Resolution | Halt:
    """Ask one partition after the other until one tells how the transaction ended.

    Args:
        kafka: whom to ask.
        producer: the pair of the transaction.
        offsets: its first and its last offset in each ``topic-partition``.
        deadline: after which no further partition is asked; the first one is, whatever it says.
        batch_id: of the transaction, for the commands by which a person decides.

    Returns:
        What the first partition says that has a marker. Else to wait, where the transaction is open in one. Else to
        halt, with what each of them said.

    Raises:
        KafkaError, KafkaTimeoutError: no partition could be read, because the cluster cannot be used at all.
    """
    if producer is None or not offsets:
        reason = "the decided row names no partition whose log could be read"
        return Halt(HaltCause.OUTCOME_LOST, reason, _lost_remedies(batch_id))
    return _Inquiry(kafka, producer, deadline, batch_id).ask(offsets)


def _lost_remedies(batch_id: int | None) -> tuple[str, ...]:
    found = compare("whether Kafka has the batch, whose rows the table has", batch_id=batch_id)
    return found, accept_replay(batch_id), drop(batch_id)


class _Inquiry:
    """One round of questions."""

    def __init__(
        self, kafka: KafkaSide, producer: ProducerIdAndEpoch, deadline: Deadline, batch_id: int | None
    ) -> None:
        self._batch_id = batch_id
        self._kafka = kafka
        self._producer = producer
        self._deadline = deadline
        self._open: str | None = None
        self._unreadable = False
        self._said: list[str] = []

    def ask(self, offsets: Mapping[str, tuple[int, int]]) -> Resolution | Halt:
        partitions = {TopicPartition.parse(name): last for name, (_, last) in offsets.items()}
        # All topics first, then their second partitions, and so on: where a topic is gone, so are all of its own.
        ordered = sorted(partitions, key=lambda each: (each.partition, each.topic))
        for number, partition in enumerate(ordered):
            if number and self._deadline.passed:
                self._said.append(f"{len(ordered) - number} were not asked within {self._deadline.limit_ms} ms")
                self._unreadable = True
                break
            told = self._ask_one(partition, partitions[partition], last_one=number == len(ordered) - 1)
            if told is not None:
                return told
        if self._open is not None:
            return Resolution(Verdict.WAIT, f"{self._open} is not written yet")
        return self._halt()

    def _ask_one(self, partition: TopicPartition, last_offset: int, *, last_one: bool) -> Resolution | None:
        """What one partition tells; None when it does not tell how the transaction ended."""
        producer = self._producer
        where = f"the control marker of {producer} in {partition} after offset {last_offset}"
        try:
            marker = self._kafka.find_marker(
                partition,
                from_offset=last_offset + 1,
                producer_id=producer.producer_id,
                epochs=frozenset({producer.epoch, producer.epoch + 1}),
                limit_ms=self._share_ms(last_one=last_one),
            )
        except (KafkaError, KafkaTimeoutError, RemoteProtocolError) as error:
            # Where the coordinator is out of reach too, its error goes on from here: nobody need decide anything.
            self._kafka.describe()
            self._said.append(f"{partition} cannot be read: {error}")
            self._unreadable = True
            return None
        if marker is Marker.COMMIT:
            return Resolution(Verdict.MARK_DONE, f"{where} is COMMIT", from_log=True)
        if marker is Marker.ABORT:
            return Resolution(Verdict.MARK_OWED, f"{where} is ABORT", from_log=True)
        if marker is Marker.OPEN:
            # The others are asked all the same: what is open here may be another transaction.
            self._open = where
        else:
            self._said.append(f"{where} is missing: the log was deleted or compacted")
        return None

    def _share_ms(self, *, last_one: bool) -> int:
        """Half of the time that is left, all of it for the last one: a long log is read as far as that allows."""
        left_ms = int(self._deadline.remaining_s * 1000)
        return max(left_ms if last_one else left_ms // 2, PARTITION_MS_MIN)

    def _halt(self) -> Halt:
        shown = self._said[:SHOWN_PARTITIONS_MAX]
        if len(self._said) > len(shown):
            shown.append(f"and {len(self._said) - len(shown)} more like these")
        remedies = _lost_remedies(self._batch_id)
        if self._unreadable:
            remedies = (_UNREADABLE_REMEDY, *remedies)
        reason = f"no partition tells how {self._producer} ended: {'; '.join(shown)}"
        return Halt(HaltCause.OUTCOME_LOST, reason, remedies)
