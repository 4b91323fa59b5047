"""Reading a topic back with librdkafka, an implementation that shares no code with this package."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from typing import cast

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from spark_2pc_sink.testing.processes import POLL_INTERVAL_S, DeadlineError

_REQUEST_DEADLINE_S = 10.0
#: A leader has moved, and the broker that was asked did not know yet.
_NO_LEADER_YET = {
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
}
_MESSAGES_MAX = 10_000
_POLL_S = 0.2
#: How long a broker delays its answer at the end of a partition; 500 ms unless set.
_FETCH_WAIT_MS = 10


@dataclass(frozen=True)
class TopicRecord:
    """A record as a consumer sees it; ``timestamp`` in ms since 1970."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp: int


def read_topic(
    bootstrap: str, topic: str, *, isolation: str = "read_committed", deadline_s: float = 60.0
) -> list[TopicRecord]:
    """Read a topic from its beginning to its current end.

    The beginning is the first record that was not deleted. The end of a partition is its last stable offset for
    ``read_committed``, so that records of a transaction that is still open are neither returned nor waited for, and its
    high watermark for ``read_uncommitted``.

    Args:
        bootstrap: ``bootstrap.servers``.
        topic: name of the topic.
        isolation: ``read_committed`` or ``read_uncommitted``.
        deadline_s: maximum seconds in total.

    Returns:
        Records of all partitions, by partition and offset.

    Raises:
        confluent_kafka.KafkaException: the topic does not exist, or the brokers cannot be reached.
        DeadlineError: the end was not reached in time.
    """
    begun_s = time.monotonic()
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"read-topic-{secrets.token_hex(4)}",  # never joined: partitions are assigned by hand
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,  # the end is reached also where its last offsets are no records
            "fetch.wait.max.ms": _FETCH_WAIT_MS,
            "check.crcs": True,
        }
    )
    try:
        records = _read(consumer, topic, _bounds(consumer, topic, begun_s, deadline_s), begun_s, deadline_s)
    finally:
        consumer.close()
    return sorted(records, key=lambda record: (record.partition, record.offset))


def _bounds(consumer: Consumer, topic: str, begun_s: float, deadline_s: float) -> dict[int, tuple[int, int]]:
    """First offset and end of each partition. librdkafka asks only once, even a former leader; hence the loop."""
    while True:
        try:
            return _bounds_now(consumer, topic)
        except KafkaException as error:
            if error.args[0].code() not in _NO_LEADER_YET:
                raise
            if time.monotonic() > begun_s + deadline_s:
                raise DeadlineError(f"no leader of {topic} gave offsets within {deadline_s} s: {error}") from error
        time.sleep(POLL_INTERVAL_S)


def _bounds_now(consumer: Consumer, topic: str) -> dict[int, tuple[int, int]]:
    metadata = consumer.list_topics(topic, timeout=_REQUEST_DEADLINE_S).topics[topic]
    if metadata.error is not None:
        raise KafkaException(metadata.error)
    bounds = {}
    for partition in metadata.partitions:
        watermarks = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=_REQUEST_DEADLINE_S)
        if watermarks is None:
            raise DeadlineError(f"no offsets of {topic}-{partition} within {_REQUEST_DEADLINE_S} s")
        bounds[partition] = watermarks
    return bounds


def _read(
    consumer: Consumer, topic: str, bounds: dict[int, tuple[int, int]], begun_s: float, deadline_s: float
) -> list[TopicRecord]:
    records: list[TopicRecord] = []
    ends = {partition: end for partition, (begin, end) in bounds.items() if end > begin}
    unfinished = set(ends)
    consumer.assign([TopicPartition(topic, partition, bounds[partition][0]) for partition in unfinished])
    while unfinished:
        if time.monotonic() > begun_s + deadline_s:
            raise DeadlineError(f"{topic}-{sorted(unfinished)} not read to {ends} within {deadline_s} s")
        # `Consumer.consume` alone waits for as many messages as it may return.
        first = consumer.poll(_POLL_S)
        for message in [] if first is None else [first, *consumer.consume(_MESSAGES_MAX, timeout=0)]:
            error, partition, offset = message.error(), message.partition(), message.offset()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - its public name
                raise KafkaException(error)
            if partition is None or offset is None or partition not in unfinished:
                continue
            if error is None and offset < ends[partition]:
                headers = cast("list[tuple[str, bytes | None]] | None", message.headers())
                records.append(
                    TopicRecord(
                        topic=topic,
                        partition=partition,
                        offset=offset,
                        key=message.key(),
                        value=message.value(),
                        headers=tuple(headers or ()),
                        timestamp=message.timestamp()[1],
                    )
                )
            if offset >= ends[partition] - (error is None):
                unfinished.discard(partition)
    return records
