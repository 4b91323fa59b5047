"""Kafka as recovery and the batch driver use it: the coordinator, topics and logs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from spark_2pc_sink.recovery.control_marker import LogSide
from spark_2pc_sink.recovery.kept_batches import RecordsSide
from spark_2pc_sink.recovery.lost_commits import CommitsSide

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spark_2pc_sink.ids import ProducerIdAndEpoch, TopicPartition
    from spark_2pc_sink.producer.transaction_client import EndTxnAnswer, InitializedProducer


class KafkaSide(LogSide, CommitsSide, RecordsSide, Protocol):
    """The operations of recovery and the batch driver; `TransactionClient` is the real one."""

    @property
    def cluster_id(self) -> str:
        """Id of the cluster, asked once per connection."""

    @property
    def transaction_version(self) -> int:
        """The finalised feature transaction.version, 0 to 2, as of the last `refresh`."""

    @property
    def offers_keep_prepared(self) -> bool:
        """True while the broker has not refused keepPreparedTxn and offers the request version that has it."""

    def refresh(self) -> None:
        """Ask the broker for its versions and features again."""

    def init_producer_id(self, *, keep_prepared: bool = False) -> InitializedProducer:
        """Send InitProducerId until it is answered."""

    def usable_producer(self) -> InitializedProducer:
        """Send InitProducerId until the pair can begin a transaction (epoch below 32766)."""

    def add_partitions(self, producer: ProducerIdAndEpoch, partitions: Iterable[TopicPartition]) -> None:
        """Add partitions to the transaction; needed below transaction.version 2 only."""

    def end(self, producer: ProducerIdAndEpoch, *, commit: bool) -> EndTxnAnswer:
        """Send EndTxn until it is answered; codes that no retry changes are returned, not interpreted."""
