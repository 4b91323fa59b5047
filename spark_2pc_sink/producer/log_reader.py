"""The log reader: how a transaction ended, read from the log of one partition that it wrote.

The coordinator remembers only the last transaction of an id, and forgets the id after seven days. The partitions keep
the end marker as long as they keep the data: it is the first control batch of the producer behind the transaction's
records (KIP-98, "Control Records"; with transaction.version 2 its epoch is that of the transaction + 1, KIP-890).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Final

from spark_2pc_sink.clock import Deadline
from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import KafkaTimeoutError
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.producer.cluster import Cluster
from spark_2pc_sink.producer.connection_failures import NodeUnavailableError
from spark_2pc_sink.producer.error_policy import kafka_error
from spark_2pc_sink.producer.leader_lookup import ask_leader, by_leader, end_offset
from spark_2pc_sink.wire import messages, responses
from spark_2pc_sink.wire.api_versions import Api
from spark_2pc_sink.wire.messages import IsolationLevel, KafkaRequest, OffsetSpec
from spark_2pc_sink.wire.record_batch import DecodedBatch, decode_record_batches
from spark_2pc_sink.wire.replies import DescribedProducers, FetchedPartition

#: Bytes of one Fetch. The marker is usually the next batch, so little is read; a larger batch comes whole anyway.
FETCH_BYTES_MAX: Final = 1024 * 1024
#: What is asked for exists already, so the broker need not wait for more.
_FETCH_WAIT_MS: Final = 100


class Marker(Enum):
    """The end of a transaction, by the log."""

    COMMIT = "committed"
    ABORT = "aborted"
    OPEN = "not ended yet"
    MISSING = "no marker, and nothing open: deleted, compacted, or never written"


def find_marker(
    cluster: Cluster,
    partition: TopicPartition,
    *,
    from_offset: int,
    producer_id: int,
    epochs: frozenset[int],
    deadline: Deadline,
) -> Marker:
    """Read forward from ``from_offset`` to the first end marker of the producer.

    Args:
        cluster: where to read.
        partition: one that the transaction wrote.
        from_offset: one past the last offset of the transaction in this partition.
        producer_id: of the transaction.
        epochs: that the marker may carry: the transaction's, and the one after it.
        deadline: when to give up.

    Raises:
        KafkaTimeoutError: the end of the log was not reached in time.
        UnknownTopicError: the topic or partition is gone.
        AuthorizationError: the topic may not be read.
    """
    # In this order: a marker that comes between two looks is below the end, so it is read. The leader counts a
    # transaction as ended when it appends the marker, readers see that marker only below the high watermark: until
    # then the transaction holds the last stable offset back.
    was_open = open_since(cluster, partition, producer_id, deadline) is not None
    stable = end_offset(cluster, partition, OffsetSpec.LATEST, deadline, isolation=IsolationLevel.READ_COMMITTED)
    end = end_offset(cluster, partition, OffsetSpec.LATEST, deadline)
    begin = max(from_offset, end_offset(cluster, partition, OffsetSpec.EARLIEST, deadline))
    for batch in read_log(cluster, partition, begin, end, deadline):
        ended = _ended(batch, producer_id, epochs)
        if ended is not None:
            return ended
    return Marker.OPEN if was_open or stable < min(from_offset, end) else Marker.MISSING


def read_log(
    cluster: Cluster, partition: TopicPartition, begin: int, end: int, deadline: Deadline
) -> Iterator[DecodedBatch]:
    """The batches of a log from offset ``begin`` up to, and without, ``end``; those of open transactions too.

    Raises:
        KafkaTimeoutError: the end was not reached in time.
        UnknownTopicError: the topic or partition is gone.
        AuthorizationError: the topic may not be read.
    """
    offset = begin
    while offset < end:
        if deadline.passed:
            raise KafkaTimeoutError(
                operation=f"reading {partition}",
                deadline_ms=deadline.limit_ms,
                last_error=f"reached offset {offset} of {end}",
            )
        began_at = offset
        for batch in decode_record_batches(_fetch(cluster, partition, offset, deadline).records):
            yield batch
            offset = batch.last_offset + 1
        if offset == began_at:
            deadline.pause()


def _ended(batch: DecodedBatch, producer_id: int, epochs: frozenset[int]) -> Marker | None:
    if not batch.control or batch.producer_id != producer_id or batch.producer_epoch not in epochs:
        return None
    marker = batch.marker
    if marker is None:
        return None
    return Marker.COMMIT if marker.commit else Marker.ABORT


def fetch_logs(
    cluster: Cluster, offsets: Mapping[TopicPartition, int], deadline: Deadline
) -> dict[TopicPartition, bytes]:
    """Whole batches of several logs, and possibly the beginning of another, by one request to each leader.

    Together they have `FETCH_BYTES_MAX` or one batch of each leader, so that some come empty until others are read.

    Args:
        cluster: where to read.
        offsets: where to begin in each log.
        deadline: when to give up.

    Returns:
        The bytes of at least one log. A log is left out whose leader is unknown or does not answer.

    Raises:
        KafkaError, KafkaTimeoutError, UnknownTopicError: of the first log, where there is no answer about any.
    """
    found: dict[TopicPartition, bytes] = {}
    for leader, led in by_leader(cluster, offsets, deadline).items():
        try:
            request = _fetch_request({at: offsets[at] for at in led}, cluster.version(leader, Api.FETCH, deadline))
            answers = responses.read_fetch(cluster.request(leader, request, deadline)).partitions
        except NodeUnavailableError:
            continue  # the first of them is asked for below, until the deadline, if nobody else answers
        found |= {at: answer.records for at, answer in answers.items() if answer.error_code == Code.NONE}
    if not found:
        first, offset = next(iter(offsets.items()))
        found[first] = _fetch(cluster, first, offset, deadline).records
    return found


def _fetch_request(offsets: Mapping[TopicPartition, int], version: int) -> KafkaRequest:
    return messages.fetch_request(
        offsets,
        version=version,
        isolation=IsolationLevel.READ_UNCOMMITTED,
        max_wait_ms=_FETCH_WAIT_MS,
        partition_bytes_max=FETCH_BYTES_MAX,
        bytes_max=FETCH_BYTES_MAX,
    )


def _fetch(cluster: Cluster, partition: TopicPartition, offset: int, deadline: Deadline) -> FetchedPartition:
    """Whole batches from ``offset`` on, at least one."""

    def read(response: responses.KafkaResponse) -> tuple[int, FetchedPartition]:
        found = responses.read_fetch(response).partitions[partition]
        return found.error_code, found

    code, fetched = ask_leader(
        cluster,
        partition,
        Api.FETCH,
        lambda version: _fetch_request({partition: offset}, version),
        read,
        deadline=deadline,
    )
    if code != Code.NONE:
        raise kafka_error("Fetch", code, f"partition {partition} at offset {offset}")
    return fetched


def open_since(cluster: Cluster, partition: TopicPartition, producer_id: int, deadline: Deadline) -> int | None:
    """First offset of the transaction that a producer has open on a partition (KIP-664, DescribeProducers).

    Args:
        cluster: where to ask.
        partition: whose leader is asked.
        producer_id: of the transaction.
        deadline: when to give up.

    Returns:
        The offset, or None where the producer has none open.

    Raises:
        KafkaTimeoutError: no usable answer came in time.
        UnknownTopicError: the topic or partition is gone.
        AuthorizationError: the topic may not be read.
    """

    def read(response: responses.KafkaResponse) -> tuple[int, DescribedProducers]:
        found = responses.read_describe_producers(response)[partition]
        return found.error_code, found

    code, described = ask_leader(
        cluster,
        partition,
        Api.DESCRIBE_PRODUCERS,
        lambda version: messages.describe_producers_request([partition], version=version),
        read,
        deadline=deadline,
    )
    if code != Code.NONE:
        raise kafka_error("DescribeProducers", code, f"partition {partition}")
    found = [each.txn_start_offset for each in described.producers if each.producer_id == producer_id]
    return next((offset for offset in found if offset >= 0), None)
