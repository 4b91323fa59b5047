"""Disks with a past: records in the state log and data in partitions, as an earlier node left them."""

from __future__ import annotations

from collections.abc import Mapping

from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.reference.coordinator.coordinator_state import partition_for
from spark_2pc_sink.reference.coordinator.records import LogRecord
from spark_2pc_sink.reference.coordinator.states import StateId, TransactionMetadata
from spark_2pc_sink.reference.internal_topics import TRANSACTION_STATE
from spark_2pc_sink.reference.log.producer_state import VerificationGuard
from spark_2pc_sink.reference.storage.batches import inspect
from tests.unit.reference.coordinator.driver import metadata
from tests.unit.reference.node import START_MS, Disk, FakeCluster, batch
from tests.unit.reference.waiting import present


def seeded(*recorded: TransactionMetadata, data: Mapping[TopicPartition, tuple[int, int]] | None = None) -> Disk:
    """What a node left that knew some ids, and that had one record of an open transaction in some partitions.

    Args:
        recorded: what the state log says.
        data: the pair that wrote it, by partition.
    """
    disk = Disk()
    cluster = FakeCluster(disk)
    for each in recorded:
        _append_state(cluster, each)
    for partition, pair in (data or {}).items():
        _append_data(cluster, partition, pair)
    return disk.copied(everything=True)


def known(state: StateId = StateId.COMPLETE_COMMIT) -> Disk:
    """What a node left that knew one id, in this state."""
    return seeded(metadata(state))


def _append_state(cluster: FakeCluster, recorded: TransactionMetadata) -> None:
    topic = present(cluster.topic(TRANSACTION_STATE))
    index = partition_for(recorded.transactional_id, topic.partitions)
    record = LogRecord(partition=index, transactional_id=recorded.transactional_id, value=recorded)
    log = present(cluster.log(TRANSACTION_STATE, index))
    log.append_records([(record.key_bytes, record.value_bytes)], now_ms=START_MS)


def _append_data(cluster: FakeCluster, partition: TopicPartition, pair: tuple[int, int]) -> None:
    log = present(cluster.log(partition.topic, partition.partition))
    records = batch(b"before", pair=pair, sequence=0)
    header = inspect(records)
    guard = log.start_verification(header, supports_epoch_bump=True, now_ms=START_MS)
    assert isinstance(guard, VerificationGuard)
    assert log.append(records, header, now_ms=START_MS, guard=guard).code == 0
