"""Replies of brokers, as small frozen values.

One class per response that this package reads, with its parts. They hold what a caller decides by and nothing
else; `spark_2pc_sink.wire.responses` makes them. An ``error_code`` is always the number from the wire
(`spark_2pc_sink.wire.error_codes.describe_error` names it): no reply is ever turned into an exception here,
because what a code means depends on what was asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from spark_2pc_sink.ids import ProducerIdAndEpoch, TopicPartition

#: The feature that says which transaction protocol a cluster speaks (KIP-890, KIP-1022); absent means 0.
TRANSACTION_VERSION_FEATURE = "transaction.version"


@dataclass(frozen=True)
class VersionRange:
    """The versions of one API that a broker, or this package, speaks. Both ends are included."""

    oldest: int
    newest: int


@dataclass(frozen=True)
class ApiVersionsReply:
    """Which APIs a broker offers, and the features its cluster has finalized.

    Args:
        error_code: 0, or 35 where the broker does not know the version of the question.
        apis: the range of versions by API key.
        finalized_features: the finalized level by name of the feature.
        features_epoch: grows with the levels: of two brokers the one with the greater epoch is right; -1 where the
            broker does not know (KIP-584).
    """

    error_code: int
    apis: Mapping[int, VersionRange]
    finalized_features: Mapping[str, int] = field(default_factory=dict)
    features_epoch: int = -1

    @property
    def transaction_version(self) -> int:
        """The finalized transaction.version: 0 or 1 for the protocol of KIP-98, 2 for that of KIP-890."""
        return self.finalized_features.get(TRANSACTION_VERSION_FEATURE, 0)


@dataclass(frozen=True)
class Broker:
    """Where one broker listens."""

    node_id: int
    host: str
    port: int


@dataclass(frozen=True)
class PartitionMetadata:
    """Who leads one partition, and who has a copy; ``leader_id`` is -1 while nobody leads."""

    error_code: int
    partition: int
    leader_id: int
    leader_epoch: int
    replica_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class TopicMetadata:
    """One topic that was asked for, or the reason why there is nothing to tell.

    Args:
        topic_id: as Kafka's tools print it (KIP-516); another one after the topic was deleted and made anew. '' where
            the broker has none: below version 10, and in clusters that were never upgraded past Kafka 2.7.
        operations: codes of what this client may do (``AclOperation``), where that was asked.
    """

    error_code: int
    name: str
    partitions: tuple[PartitionMetadata, ...]
    topic_id: str = ""
    operations: frozenset[int] = frozenset()

    @property
    def exists(self) -> bool:
        """False where the broker does not say of the topic that it is there."""
        return self.error_code == 0 and bool(self.partitions)


@dataclass(frozen=True)
class MetadataReply:
    """The cluster as one broker sees it."""

    error_code: int
    cluster_id: str | None
    brokers: tuple[Broker, ...]
    topics: tuple[TopicMetadata, ...]


@dataclass(frozen=True)
class FindCoordinatorReply:
    """The broker that coordinates one transactional id."""

    error_code: int
    error_message: str | None
    node_id: int
    host: str
    port: int


@dataclass(frozen=True)
class InitProducerIdReply:
    """The pair to use next, and the pair of a transaction that was kept.

    Args:
        error_code: 0, or why there is no pair.
        producer: the pair to produce or to end with; None with an error.
        ongoing: the pair of the prepared transaction that keepPreparedTxn left ongoing (KIP-939, "Protocol
            Changes"); None where there is none, and below version 6.
    """

    error_code: int
    producer: ProducerIdAndEpoch | None
    ongoing: ProducerIdAndEpoch | None = None


@dataclass(frozen=True)
class ProducedPartition:
    """What happened to the batch of one partition.

    Args:
        error_code: 0 means appended on every in-sync replica, now or by an earlier attempt.
        base_offset: offset of the batch's first record; -1 with an error, and for a duplicate whose place the
            broker no longer remembers.
        log_append_time_ms: -1 on a topic that keeps the producer's timestamps; otherwise the broker's time. For a
            batch that the broker takes for a duplicate it is the timestamp of the batch appended before, on any topic.
        error_message: the broker's words, or None.
        record_errors: (index in the batch, message) of each record that the broker refused.
        leader_id: with error 6, the leader to ask instead; -1 where the broker did not say.
    """

    error_code: int
    base_offset: int
    log_append_time_ms: int
    error_message: str | None = None
    record_errors: tuple[tuple[int, str | None], ...] = ()
    leader_id: int = -1


@dataclass(frozen=True)
class EndTxnReply:
    """How the coordinator took EndTxn.

    Args:
        error_code: 0 means that the outcome is decided and durable.
        producer: the pair for the next transaction (version 5, KIP-890); None below version 5 and with an error.
    """

    error_code: int
    producer: ProducerIdAndEpoch | None


@dataclass(frozen=True)
class DescribedTransaction:
    """One transactional id as its coordinator sees it (KIP-664).

    Args:
        state: Kafka's name: Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort, ...
        timeout_ms: 2147483647 for a transaction that never times out (KIP-939).
        start_time_ms: when the transaction began; -1 if none ever did.
        producer: None where the coordinator holds no pair (error, or an id that is just being created).
        partitions: those of the transaction that have no end marker yet.
    """

    error_code: int
    transactional_id: str
    state: str
    timeout_ms: int
    start_time_ms: int
    producer: ProducerIdAndEpoch | None
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True)
class ListedTransaction:
    """One line of ListTransactions."""

    transactional_id: str
    producer_id: int
    state: str


@dataclass(frozen=True)
class ListTransactionsReply:
    """The transactional ids of one coordinator."""

    error_code: int
    unknown_state_filters: tuple[str, ...]
    transactions: tuple[ListedTransaction, ...]


@dataclass(frozen=True)
class ActiveProducer:
    """One producer that a partition leader remembers.

    Args:
        last_sequence: -1 where no data batch is remembered.
        txn_start_offset: first offset of its open transaction, or -1.
    """

    producer_id: int
    epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    txn_start_offset: int


@dataclass(frozen=True)
class DescribedProducers:
    """The producers of one partition."""

    error_code: int
    error_message: str | None
    producers: tuple[ActiveProducer, ...]


@dataclass(frozen=True)
class DescribedConfig:
    """The configuration of one resource; a sensitive or unset value is None."""

    error_code: int
    error_message: str | None
    values: Mapping[str, str | None]


@dataclass(frozen=True)
class FetchedPartition:
    """Record batches of one partition.

    Args:
        records: whole batches, and possibly the beginning of another, as they are in the log.
    """

    error_code: int
    records: bytes


@dataclass(frozen=True)
class FetchReply:
    """The answer to one Fetch request, by partition."""

    error_code: int
    partitions: Mapping[TopicPartition, FetchedPartition]


@dataclass(frozen=True)
class ListedOffset:
    """An offset found by timestamp, or an end of the log; -1 where there is none."""

    error_code: int
    offset: int
