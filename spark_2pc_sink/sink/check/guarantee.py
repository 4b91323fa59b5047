"""The guarantee with given settings, in one paragraph: what holds, for how long a crash, and what does not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from spark_2pc_sink.sink.check.kafka_rules import is_durable, minutes, timeout_ms

if TYPE_CHECKING:
    from spark_2pc_sink.options import SinkOptions
    from spark_2pc_sink.sink.check.database_side import DatabaseFacts
    from spark_2pc_sink.sink.check.kafka_side import KafkaFacts

_PAGE: Final = "docs/limits.md has the rest."


def guarantee(options: SinkOptions, kafka: KafkaFacts, database: DatabaseFacts) -> str:
    """The paragraph.

    Args:
        options: of the sink.
        kafka: what its side has answered.
        database: what its side has answered.
    """
    return " ".join(
        [_promise(options), *_bad_rows(options), *_crash(options, kafka), *_not_promised(kafka, database), _PAGE]
    )


def _promise(options: SinkOptions) -> str:
    topics = [f"topic {topic}" for topic in options.topics]
    if not topics and any(lane.records is not None for lane in options.lanes):
        topics = ["the topic that it names"]
    tables = [f"table {lane.rows.table}" for lane in options.lanes if lane.rows is not None]
    where = [*topics, *tables]
    places = where[0] if len(where) == 1 else f"{', '.join(where[:-1])} and {where[-1]}"
    given = ", as far as where lets it" if any(lane.source.where is not None for lane in options.lanes) else ""
    return (
        f"Each row of a batch gets to {places} exactly once{given}, whichever process dies and when: once the sink is "
        "at rest, readers of the topic with isolation.level=read_committed and of the table see the same batches."
    )


def _bad_rows(options: SinkOptions) -> Iterator[str]:
    if options.bad_rows == "dead_letter":
        name = options.dead_letter_name
        topic = "" if options.dead_letter_topic is None else f" and topic {options.dead_letter_topic}"
        yield f"A row that a side cannot take gets to table {name.schema}.{name.name}{topic} alone, exactly once too."


def _crash(options: SinkOptions, kafka: KafkaFacts) -> Iterator[str]:
    if kafka.problem:
        yield "How long a crash may last is not known, since Kafka did not answer."
        return
    limit_ms = timeout_ms(options, kafka)
    if limit_ms is None:
        yield "A crash may last as long as it likes: transactions of the sink never time out."
        return
    yield (
        f"A crash may last {minutes(limit_ms)}. After a longer one between the two commits, Kafka has aborted what the "
        "database has decided; the sink then sends the same records again, behind later records of others, as long as "
        "the source still replays them."
    )


def _not_promised(kafka: KafkaFacts, database: DatabaseFacts) -> Iterator[str]:
    weak = [topic.name for topic in kafka.topics if topic.there and not is_durable(topic)]
    if weak:
        yield f"Not guaranteed: records of {', '.join(weak)} after the loss of one broker, by the topic's settings."
    if not database.problem and not database.fsync:
        yield "Not guaranteed: rows that PostgreSQL has committed, after a crash of its machine (fsync=off)."
    yield (
        "Not guaranteed: both sides at the same moment, since rows come a moment before records; and an order of "
        "records, but that the last one of a key with upsert_order_by is the row of the table."
    )
