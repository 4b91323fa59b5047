"""Reads partition logs for the outcome of transactions.

The coordinator remembers only an id's last transaction, and forgets the id after seven days. The partitions keep
the end marker as long as they keep the data: it is the first control batch of the producer after the transaction's
records (KIP-98, "Control Records"; with transaction.version 2 its epoch is the transaction's + 1, KIP-890). A
producer has one transaction at a time, so `CommitScan` uses the same rule to find which transactions were committed
since a point. It reports partitions that it could not read within its bounds: their outcome is unknown.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from spark_2pc_sink.clock import Deadline
from spark_2pc_sink.errors import DualWriteError, KafkaTimeoutError
from spark_2pc_sink.ids import ProducerIdAndEpoch, TopicPartition
from spark_2pc_sink.kafka.cluster import Cluster, ask_leader, ask_leaders, end_offset, end_offsets
from spark_2pc_sink.recipe.kept_records import LogsView
from spark_2pc_sink.recipe.lost_batches import CommittedTransaction, FoundCommits
from spark_2pc_sink.wire import messages
from spark_2pc_sink.wire.batch_reader import DecodedBatch, decode_record_batches
from spark_2pc_sink.wire.framed_request import RequestTemplate
from spark_2pc_sink.wire.messages import IsolationLevel, OffsetSpec

#: Bytes per Fetch. The marker is usually the next batch, so little is read; a larger batch is returned whole.
FETCH_BYTES_MAX: Final = 1024 * 1024
#: The requested data already exists, so the broker need not wait for more.
_FETCH_WAIT_MS: Final = 100


class Marker(Enum):
    """A transaction's end, according to the log."""

    COMMIT = "committed"
    ABORT = "aborted"
    OPEN = "not ended yet"
    MISSING = "no marker, and nothing open: deleted, compacted, or never written"


class LogReader:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def find_marker(
        self, partition: TopicPartition, *, from_offset: int, producer_id: int, epochs: frozenset[int], limit_ms: int
    ) -> Marker:
        """Read forward to the producer's first end marker, for at most ``limit_ms`` and ``max_block_ms``."""
        # From one past the transaction's last offset here; the epochs are the transaction's and the next one.
        cluster, deadline = self._cluster, self._bounded(limit_ms)
        # In this order: a marker appended between the two reads is below the end, so it is read. The leader counts a
        # transaction as ended when it appends the marker; readers see that marker only below the high watermark: until
        # then the transaction holds back the last stable offset.
        was_open = self._open_since(partition, producer_id, deadline) is not None
        stable = end_offset(cluster, partition, OffsetSpec.LATEST, deadline, isolation=IsolationLevel.READ_COMMITTED)
        end = end_offset(cluster, partition, OffsetSpec.LATEST, deadline)
        begin = max(from_offset, end_offset(cluster, partition, OffsetSpec.EARLIEST, deadline))
        for batch in read_log(cluster, partition, begin, end, deadline):
            own = batch.control and batch.producer_id == producer_id and batch.producer_epoch in epochs
            marker = batch.marker if own else None
            if marker is not None:
                return Marker.COMMIT if marker.commit else Marker.ABORT
        return Marker.OPEN if was_open or stable < min(from_offset, end) else Marker.MISSING

    def find_commits(self, query: CommitQuery, topics: Iterable[str], *, limit_ms: int, bytes_max: int) -> FoundCommits:
        """Find which transactions were committed since; lists what the limits, for all logs together, left unread."""
        deadline = self._cluster.deadline(limit_ms)
        wanted = sorted(set(topics))
        existing = self._cluster.existing_topics(wanted, deadline)
        found = CommitScan(self._cluster, query, deadline, bytes_max=bytes_max).run(
            TopicPartition(topic.name, part.partition_index) for topic in existing.values() for part in topic.partitions
        )
        gone = tuple(f"topic {topic!r} (it does not exist)" for topic in wanted if topic not in existing)
        return replace(found, unread=found.unread + gone)

    def open_since(self, partition: TopicPartition, *, producer_id: int, limit_ms: int) -> int | None:
        """First offset of the producer's open transaction in a partition, by its leader; None if none is open."""
        return self._open_since(partition, producer_id, self._bounded(limit_ms))

    def view_logs(self, partitions: Iterable[TopicPartition], *, starts: bool = False) -> LogsView:
        """The ids of topics and the ends of logs, with ``starts`` also their first offsets; without what is gone."""
        cluster, deadline = self._cluster, self._cluster.deadline()
        wanted = sorted(set(partitions))
        topics = cluster.existing_topics({partition.topic for partition in wanted}, deadline)
        present = {
            TopicPartition(topic.name, part.partition_index) for topic in topics.values() for part in topic.partitions
        }
        existing = [each for each in wanted if each in present]
        return LogsView(
            topic_ids={name: messages.topic_id(topic) for name, topic in topics.items()},
            ends=end_offsets(cluster, existing, OffsetSpec.LATEST, deadline),
            starts=end_offsets(cluster, existing, OffsetSpec.EARLIEST, deadline) if starts else {},
        )

    def _bounded(self, limit_ms: int) -> Deadline:
        return self._cluster.deadline(min(limit_ms, self._cluster.options.max_block_ms))

    def _open_since(self, partition: TopicPartition, producer_id: int, deadline: Deadline) -> int | None:
        request = messages.describe_producers_request([partition])
        producers = ask_leader(self._cluster, partition, request, deadline).active_producers
        found = [each.current_txn_start_offset for each in producers if each.producer_id == producer_id]
        return next((offset for offset in found if offset >= 0), None)


def read_log(
    cluster: Cluster, partition: TopicPartition, begin: int, end: int, deadline: Deadline
) -> Iterator[DecodedBatch]:
    """The batches in a log from offset ``begin`` up to, but not including, ``end``; also those of open transactions."""
    offset = begin
    while offset < end:
        if deadline.passed:
            raise KafkaTimeoutError(
                operation=f"reading {partition}",
                deadline_ms=deadline.limit_ms,
                last_error=f"reached offset {offset} of {end}",
            )
        began_at = offset
        for batch in decode_record_batches(_fetch(cluster, partition, offset, deadline)):
            yield batch
            offset = batch.last_offset + 1
        if offset == began_at:
            deadline.pause()


def fetch_logs(
    cluster: Cluster, offsets: Mapping[TopicPartition, int], deadline: Deadline
) -> dict[TopicPartition, bytes]:
    """Whole batches, then perhaps a partial one, of several logs; without those whose leader is unknown or silent."""
    # One request to each leader: they share `FETCH_BYTES_MAX`, so some are empty until others have been read.
    found = ask_leaders(cluster, offsets, lambda led: _fetch_request({at: offsets[at] for at in led}), deadline)
    if not found:
        first, offset = next(iter(offsets.items()))
        return {first: _fetch(cluster, first, offset, deadline)}  # retried until the deadline
    return {at: bytes(answer.records or b"") for at, answer in found.items()}


def _fetch_request(offsets: Mapping[TopicPartition, int]) -> RequestTemplate:
    return messages.fetch_request(offsets, max_wait_ms=_FETCH_WAIT_MS, bytes_max=FETCH_BYTES_MAX)


def _fetch(cluster: Cluster, partition: TopicPartition, offset: int, deadline: Deadline) -> bytes:
    fetched = ask_leader(cluster, partition, _fetch_request({partition: offset}), deadline)
    return bytes(fetched.records or b"")


@dataclass(frozen=True)
class CommitQuery:
    """Which transactions to look for, and from where."""

    #: The last known offset, by partition.
    after: Mapping[TopicPartition, int]
    #: Where to begin in partitions missing from ``after``, since 1970; None for the first offset.
    since_ms: int | None = None
    #: The pair of the last known transaction; None if unknown.
    newer_than: ProducerIdAndEpoch | None = None
    #: The sink's other producer ids.
    producer_ids: frozenset[int] = frozenset()

    def matches(self, batch: DecodedBatch) -> bool:
        """Whether this batch belongs to, or ends, one of the transactions."""
        known = self.newer_than
        if known is not None and batch.producer_id == known.producer_id:
            return batch.producer_epoch > known.epoch
        return batch.producer_id in self.producer_ids


class CommitScan:
    def __init__(self, cluster: Cluster, query: CommitQuery, deadline: Deadline, *, bytes_max: int) -> None:
        self._cluster = cluster
        self._query = query
        self._deadline = deadline
        self._bytes_left = bytes_max
        #: Records of each committed transaction, in the partitions read so far.
        self._records: Counter[ProducerIdAndEpoch] = Counter()
        self._offsets: defaultdict[ProducerIdAndEpoch, dict[TopicPartition, tuple[int, int]]] = defaultdict(dict)
        self._unread: list[str] = []

    def run(self, partitions: Iterable[TopicPartition]) -> FoundCommits:
        ordered = sorted(set(partitions), key=lambda each: (each not in self._query.after, each))
        for number, partition in enumerate(ordered):
            if self._bytes_left <= 0 or (number and self._deadline.passed):
                self._unread.append(f"{', '.join(map(str, ordered[number:]))} (not reached within the limit)")
                break
            try:
                self._read(partition)
            except DualWriteError as error:
                self._unread.append(f"{partition} ({error})")
        known = self._query.newer_than
        own = None if known is None else known.producer_id
        # The row's producer id is sorted first: a later one replaced it when its epochs were used up.
        pairs = sorted(self._offsets, key=lambda pair: (pair.producer_id != own, pair))
        found = (CommittedTransaction(pair, self._records[pair], self._offsets[pair]) for pair in pairs)
        return FoundCommits(tuple(found), tuple(self._unread))

    def _read(self, partition: TopicPartition) -> None:
        end = end_offset(self._cluster, partition, OffsetSpec.LATEST, self._deadline)
        begin = end_offset(self._cluster, partition, OffsetSpec.EARLIEST, self._deadline)
        last = self._query.after.get(partition)
        if last is not None:
            if begin > last + 1:
                self._unread.append(f"{partition} from offset {last + 1} to {begin - 1} (deleted)")
            begin = max(begin, last + 1)
        elif self._query.since_ms is not None:
            begin = end_offset(self._cluster, partition, self._query.since_ms, self._deadline)
            if begin < 0:
                return  # every record is older
        open_: dict[int, list[DecodedBatch]] = {}
        for batch in read_log(self._cluster, partition, begin, end, self._deadline):
            self._bytes_left -= len(batch.payload)
            if self._query.matches(batch):
                self._take(partition, batch, open_)
            if self._bytes_left <= 0:
                self._unread.append(f"{partition} from offset {batch.last_offset + 1} to {end} (beyond the limit)")
                return

    def _take(self, partition: TopicPartition, batch: DecodedBatch, open_: dict[int, list[DecodedBatch]]) -> None:
        if batch.transactional and not batch.control:
            # A marker that was deleted has ended a transaction of another epoch.
            of_one = open_.setdefault(batch.producer_id, [])
            if of_one and of_one[0].producer_epoch != batch.producer_epoch:
                of_one.clear()
            of_one.append(batch)
        elif (marker := batch.marker) is not None:
            ended = open_.pop(batch.producer_id, [])
            if ended and marker.commit:
                pair = ProducerIdAndEpoch(batch.producer_id, ended[0].producer_epoch)
                self._records[pair] += sum(part.record_count for part in ended)
                self._offsets[pair][partition] = (ended[0].base_offset, ended[-1].last_offset)
