"""The state of the coordinator: settings, producer ids, and the transactional ids by partition of the log.

All values are frozen. A change copies the dictionary of the affected partition, so it costs as much as that has ids.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import lru_cache

from spark_2pc_sink.ids import EPOCH_BUMP_VERSION
from spark_2pc_sink.reference.coordinator.records import FLEXIBLE_VERSION
from spark_2pc_sink.reference.coordinator.states import Pair, TransactionMetadata


class Profile(Enum):
    """Which Kafka to emulate, where released Kafka and the accepted proposals differ."""

    #: Apache Kafka 4.4.0: keepPreparedTxn is answered UNSUPPORTED_VERSION.
    AS_RELEASED = "as-released-4.4.0"
    #: KIP-939 with apache/kafka pull request 21735: keeping hands out the next epoch, and logs it.
    KEEP_PREPARED = "kip-939"
    #: KIP-939 with apache/kafka pull request 22704: keeping needs enable2Pc, and appends nothing.
    KEEP_UNCHANGED = "kip-939-unchanged"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Broker properties and the feature level that determine answers; the defaults are Kafka's."""

    profile: Profile = Profile.AS_RELEASED
    transaction_version: int = EPOCH_BUMP_VERSION
    keep_prepared_version: int = EPOCH_BUMP_VERSION
    fences_late_commits: bool = False
    two_phase_commit_enable: bool = False
    transaction_max_timeout_ms: int = 900_000
    transactional_id_expiration_ms: int = 604_800_000
    offsets_partition_count: int = 50

    @property
    def keeps_prepared(self) -> bool:
        """True if keepPreparedTxn is supported: it needs the tags of value version 1 and the epoch bump."""
        return self.profile is not Profile.AS_RELEASED and self.transaction_version >= self.keep_prepared_version

    @property
    def log_version(self) -> int:
        """TransactionLogValue version to write (KIP-890, Transaction Feature Version)."""
        return min(self.transaction_version, FLEXIBLE_VERSION)


NO_PRODUCER_IDS = range(0)


@dataclass(frozen=True)
class StatePartition:
    """One partition of ``__transaction_state``: its transactional ids by name.

    ``coordinator_epoch`` is the partition's leader epoch, which every marker carries; ``sealed`` are the pairs of its
    kept transactions, so that a leader need not look through all ids.
    """

    coordinator_epoch: int = 0
    transactions: Mapping[str, TransactionMetadata] = field(default_factory=dict)
    sealed: frozenset[Pair] = frozenset()


@dataclass(frozen=True)
class CoordinatorState:
    """``producer_ids`` are those of the allocated block that are left."""

    settings: Settings
    partitions: tuple[StatePartition, ...]
    producer_ids: range

    @classmethod
    def new(
        cls, settings: Settings, *, partition_count: int = 50, producer_ids: range = NO_PRODUCER_IDS
    ) -> CoordinatorState:
        return cls(settings, (StatePartition(),) * partition_count, producer_ids)

    def partition_of(self, transactional_id: str) -> int:
        return partition_for(transactional_id, len(self.partitions))

    def get(self, transactional_id: str) -> TransactionMetadata | None:
        return self.partitions[self.partition_of(transactional_id)].transactions.get(transactional_id)

    def keeps(self, pair: Pair) -> bool:
        """True if the pair's transaction was kept, and accepts no more data (KIP-939, Proposed Changes)."""
        return any(pair in partition.sealed for partition in self.partitions)

    def __iter__(self) -> Iterator[TransactionMetadata]:
        return (metadata for partition in self.partitions for metadata in partition.transactions.values())

    def with_metadata(self, transactional_id: str, metadata: TransactionMetadata | None) -> CoordinatorState:
        """This state with one id replaced, or removed for None."""
        index = self.partition_of(transactional_id)
        partition = self.partitions[index]
        transactions = dict(partition.transactions)
        before = transactions.pop(transactional_id, None)
        if metadata is not None:
            transactions[transactional_id] = metadata
        sealed = (partition.sealed - _sealed(before)) | _sealed(metadata)
        return self.with_partition(index, replace(partition, transactions=transactions, sealed=sealed))

    def with_partition(self, index: int, partition: StatePartition) -> CoordinatorState:
        return replace(self, partitions=(*self.partitions[:index], partition, *self.partitions[index + 1 :]))


def _sealed(metadata: TransactionMetadata | None) -> frozenset[Pair]:
    pair = None if metadata is None else metadata.sealed_pair
    return frozenset() if pair is None else frozenset({pair})


#: Names whose partition is cached. It is needed a dozen times per transaction, and computing it scans the name.
_PARTITIONS_REMEMBERED_MAX = 4096


@lru_cache(_PARTITIONS_REMEMBERED_MAX)
def partition_for(name: str, count: int) -> int:
    """The partition of Kafka's internal topics for a transactional id or group: ``abs(name.hashCode()) % count``.

    Java's hash runs over UTF-16 code units in 32 bits; ``Utils.abs`` maps the one value without a positive to 0.
    """
    units = name.encode("utf-16-be", "surrogatepass")
    value = 0
    for (unit,) in struct.iter_unpack(">H", units):
        value = (31 * value + unit) & 0xFFFFFFFF
    signed = value - (1 << 32) if value >= 1 << 31 else value
    return 0 if signed == -(1 << 31) else abs(signed) % count
