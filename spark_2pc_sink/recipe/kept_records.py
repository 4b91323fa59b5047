"""Lost records: compare a decided batch with the current topics and logs.

A transaction can be committed after its records are gone: EndTxn does not check the logs. A topic that was deleted and
re-created has the same name but another id (KIP-516), and a log may have lost its tail. Such a batch must not be noted
as done. One that is already done is not compared: consumers could read it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from spark_2pc_sink.choices import Facts, HaltCause
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.plural import first_of
from spark_2pc_sink.recipe.resolve import Halt

#: How many of a batch's partitions a message names: there may be hundreds.
_SHOWN_PARTITIONS_MAX = 8


@dataclass(frozen=True)
class WrittenRecords:
    """Offsets of a batch's records."""

    batch_id: int | None
    offsets: Mapping[TopicPartition, tuple[int, int]]
    #: Ids of its topics when it was written; a missing topic had no id, or it is unknown.
    topic_ids: Mapping[str, str] = field(default_factory=dict)

    @property
    def topics(self) -> list[str]:
        return sorted({partition.topic for partition in self.offsets})


@dataclass(frozen=True)
class LogsView:
    """Kafka's current description of some topics."""

    topic_ids: Mapping[str, str]
    #: One past the last offset of each partition that exists.
    ends: Mapping[TopicPartition, int]
    #: The first offset of each, if requested.
    starts: Mapping[TopicPartition, int] = field(default_factory=dict)


def find_lost_records(written: WrittenRecords, logs: LogsView, *, committed: bool) -> Halt | None:
    """Say which records of a decided batch Kafka lacks; None if it has all of it, as far as can be seen.

    While its transaction is not ``committed``, no consumer could read records deleted from the start of a log;
    afterwards that is retention, as with any record.
    """
    damaged = {
        topic: found
        for topic in written.topics
        if (found := "; ".join(_damages(topic, written, logs, committed=committed)))
    }
    if not damaged:
        return None
    intact = [topic for topic in written.topics if topic not in damaged]
    reason = (
        f"the database has batch {written.batch_id}, and Kafka has lost records of it: {'; '.join(damaged.values())}"
    )
    missing = ", ".join(topic for topic in damaged if topic not in logs.topic_ids)
    again = f"; create {missing} first, with as many partitions as before" if missing else ""
    again += f"; {', '.join(intact)} will have all of it twice" if intact and committed else ""
    return Halt(HaltCause.TOPIC_REMADE, reason, Facts(batch=written.batch_id, more={"accept_replay": again}))


def was_remade(written: WrittenRecords, logs: LogsView) -> bool:
    return any(
        (was := written.topic_ids.get(topic)) and (now := logs.topic_ids.get(topic)) and was != now
        for topic in written.topics
    )


def missing_id_topics(written: WrittenRecords) -> list[str]:
    """The batch's topics without an id that would distinguish them from others of the same name."""
    return [topic for topic in written.topics if not written.topic_ids.get(topic)]


def _damages(topic: str, written: WrittenRecords, logs: LogsView, *, committed: bool) -> Iterator[str]:
    """The problems of one topic, one sentence each; stops after one that explains all others."""
    offsets = {each: at for each, at in sorted(written.offsets.items()) if each.topic == topic}
    was, now = written.topic_ids.get(topic, ""), logs.topic_ids.get(topic)
    if now is None:
        known = f" (it had the id {was})" if was else ""
        yield f"topic {topic!r} was deleted{known}, with {_listed(offsets)}"
        return
    if was and now and was != now:
        yield (
            f"topic {topic!r} was deleted and created again (its id was {was}, it is {now} now): the old one had "
            f"{_listed(offsets)}"
        )
        return
    for partition, (first, last) in offsets.items():
        end = logs.ends.get(partition)
        if end is None:
            yield f"partition {partition} no longer exists, which had offsets {first} to {last} of it"
        elif end <= last:
            yield f"the log of {partition} ends at offset {end}, and the batch had offsets {first} to {last} there"
        elif not committed and logs.starts.get(partition, first) > first:
            yield (
                f"the log of {partition} begins at offset {logs.starts[partition]}, and the batch had offsets {first} "
                f"to {last} there, which were deleted before any reader could see them"
            )


def _listed(offsets: Mapping[TopicPartition, tuple[int, int]]) -> str:
    shown = [f"offsets {first} to {last} of {each}" for each, (first, last) in offsets.items()]
    return ", ".join(first_of(shown, _SHOWN_PARTITIONS_MAX, "partition"))
