"""Kafka as recovery and the batch driver use it: the coordinator, topics and logs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spark_2pc_sink.ids import ProducerIdAndEpoch, TopicPartition
    from spark_2pc_sink.kafka.coordinator_calls import InitializedProducer, TransactionDescription
    from spark_2pc_sink.kafka.log_reader import CommitQuery, Marker
    from spark_2pc_sink.kafka.transaction_client import EndTxnAnswer
    from spark_2pc_sink.recipe.kept_records import LogsView
    from spark_2pc_sink.recipe.lost_batches import FoundCommits


class KafkaSide(Protocol):
    """The operations of recovery and the batch driver; `TransactionClient` is the real one."""

    @property
    def cluster_id(self) -> str:
        """Id of the cluster, read once per connection."""

    @property
    def transaction_version(self) -> int:
        """The finalised feature transaction.version, 0 to 2, as of the last `refresh` or `refresh_features`."""

    @property
    def offers_keep_prepared(self) -> bool:
        """True while the broker has not refused keepPreparedTxn and offers the request version that has it."""

    def refresh(self) -> None:
        """Ask the broker for its versions and features again."""

    def prefetch_features(self) -> None:
        """Send the feature request that `refresh_features` or `end` will need, without waiting."""

    def refresh_features(self) -> None:
        """Read the features again; each transaction does before it begins."""

    def describe(self) -> TransactionDescription:
        """Read the state of the transactional id from the coordinator."""

    def init_producer_id(self, *, keep_prepared: bool = False) -> InitializedProducer:
        """Send InitProducerId until it is answered."""

    def usable_producer(self) -> InitializedProducer:
        """Send InitProducerId until its epoch can begin a transaction (epoch below 32766)."""

    def add_partitions(self, producer: ProducerIdAndEpoch, partitions: Iterable[TopicPartition]) -> None:
        """Add partitions to the transaction; needed below transaction.version 2 only."""

    def end(self, producer: ProducerIdAndEpoch, *, commit: bool) -> EndTxnAnswer:
        """Send EndTxn until it is answered; non-retriable codes are returned, not interpreted."""

    def open_since(self, partition: TopicPartition, *, producer_id: int, limit_ms: int) -> int | None:
        """First offset of a producer's open transaction in one partition, read for at most ``limit_ms``."""

    def find_marker(
        self, partition: TopicPartition, *, from_offset: int, producer_id: int, epochs: frozenset[int], limit_ms: int
    ) -> Marker:
        """Read the control marker of a transaction from one partition's log, for at most ``limit_ms``."""

    def find_commits(self, query: CommitQuery, topics: Iterable[str], *, limit_ms: int, bytes_max: int) -> FoundCommits:
        """Read the transactions committed since, within these limits."""

    def view_logs(self, partitions: Iterable[TopicPartition], *, starts: bool = False) -> LogsView:
        """Read the current topics and logs of a batch; with ``starts`` also their first offsets."""
