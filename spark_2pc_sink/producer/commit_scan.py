"""The scan of logs for the transactions of a producer that were committed since a point.

Read from the headers of record batches and from the control markers alone, as `find_marker` does for one transaction: a
producer has one transaction at a time, so the first marker behind its records says how they ended (KIP-98, "Control
Records"). What cannot be read, or not within the bounds, is said: what is missing there is not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from spark_2pc_sink.clock import Deadline
from spark_2pc_sink.errors import DualWriteError
from spark_2pc_sink.ids import ProducerIdAndEpoch, TopicPartition
from spark_2pc_sink.producer.cluster import Cluster
from spark_2pc_sink.producer.leader_lookup import end_offset
from spark_2pc_sink.producer.log_reader import read_log
from spark_2pc_sink.recipe.lost_batches import CommittedTransaction, FoundCommits
from spark_2pc_sink.wire.messages import OffsetSpec
from spark_2pc_sink.wire.record_batch import DecodedBatch


@dataclass(frozen=True)
class CommitQuery:
    """Whose transactions to look for, and from where on.

    Args:
        after: the last offset that is known, by partition.
        since_ms: where to begin in partitions that are not in ``after``: milliseconds since 1970; None for the first
            offset.
        newer_than: the pair of the last transaction that is known; None for no such.
        producer_ids: further producer ids of the sink.
    """

    after: Mapping[TopicPartition, int]
    since_ms: int | None = None
    newer_than: ProducerIdAndEpoch | None = None
    producer_ids: frozenset[int] = frozenset()

    def asks_for(self, batch: DecodedBatch) -> bool:
        """Whether this batch is of one of the transactions, or ends one."""
        known = self.newer_than
        if known is not None and batch.producer_id == known.producer_id:
            return batch.producer_epoch > known.epoch
        return batch.producer_id in self.producer_ids


@dataclass
class _Account:
    """The records of one transaction in the partitions that were read so far."""

    records: int = 0
    offsets: dict[TopicPartition, tuple[int, int]] = field(default_factory=dict)

    def add(self, partition: TopicPartition, batches: list[DecodedBatch]) -> None:
        self.records += sum(batch.record_count for batch in batches)
        self.offsets[partition] = (batches[0].base_offset, batches[-1].last_offset)


class CommitScan:
    """One scan.

    Args:
        cluster: where to read.
        query: for what.
        deadline: when to stop.
        bytes_max: how much to read.
    """

    def __init__(self, cluster: Cluster, query: CommitQuery, deadline: Deadline, *, bytes_max: int) -> None:
        self._cluster = cluster
        self._query = query
        self._deadline = deadline
        self._bytes_left = bytes_max
        self._committed: dict[ProducerIdAndEpoch, _Account] = {}
        self._unread: list[str] = []

    def run(self, partitions: Iterable[TopicPartition]) -> FoundCommits:
        """Read the logs one after the other, those with a known offset first."""
        ordered = sorted(set(partitions), key=lambda each: (each not in self._query.after, each))
        for number, partition in enumerate(ordered):
            if self._bytes_left <= 0 or (number and self._deadline.passed):
                self._unread.append(f"{', '.join(map(str, ordered[number:]))} (too much before it)")
                break
            try:
                self._read(partition)
            except DualWriteError as error:
                self._unread.append(f"{partition} ({error})")
        known = self._query.newer_than
        own = None if known is None else known.producer_id
        # The id of the row's pair comes first: a later one took its place when its epochs were used up.
        pairs = sorted(self._committed, key=lambda pair: (pair.producer_id != own, pair))
        return FoundCommits(
            tuple(
                CommittedTransaction(pair, found.records, found.offsets)
                for pair in pairs
                for found in [self._committed[pair]]
            ),
            tuple(self._unread),
        )

    def _read(self, partition: TopicPartition) -> None:
        end = end_offset(self._cluster, partition, OffsetSpec.LATEST, self._deadline)
        begin = self._begin(partition)
        if begin is None:
            return
        open_: dict[int, list[DecodedBatch]] = {}
        for batch in read_log(self._cluster, partition, begin, end, self._deadline):
            self._bytes_left -= len(batch.payload)
            if self._query.asks_for(batch):
                self._take(partition, batch, open_)
            if self._bytes_left <= 0:
                self._unread.append(f"{partition} from offset {batch.last_offset + 1} to {end} (too much)")
                return

    def _begin(self, partition: TopicPartition) -> int | None:
        """Where to begin; None where no record can be asked for."""
        earliest = end_offset(self._cluster, partition, OffsetSpec.EARLIEST, self._deadline)
        last = self._query.after.get(partition)
        if last is not None:
            if earliest > last + 1:
                self._unread.append(f"{partition} from offset {last + 1} to {earliest - 1} (deleted)")
            return max(earliest, last + 1)
        if self._query.since_ms is None:
            return earliest
        found = end_offset(self._cluster, partition, self._query.since_ms, self._deadline)
        return None if found < 0 else found

    def _take(self, partition: TopicPartition, batch: DecodedBatch, open_: dict[int, list[DecodedBatch]]) -> None:
        if not batch.control:
            if batch.transactional:
                # A marker that is not there any more has ended what another epoch left.
                of_one = open_.setdefault(batch.producer_id, [])
                if of_one and of_one[0].producer_epoch != batch.producer_epoch:
                    of_one.clear()
                of_one.append(batch)
            return
        marker = batch.marker
        if marker is None:
            return
        ended = open_.pop(batch.producer_id, [])
        if ended and marker.commit:
            pair = ProducerIdAndEpoch(batch.producer_id, ended[0].producer_epoch)
            self._committed.setdefault(pair, _Account()).add(partition, ended)
