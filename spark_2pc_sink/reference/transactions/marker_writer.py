"""Marker writer: end markers on the partitions of this node, for the coordinator and for WriteTxnMarkers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from spark_2pc_sink.codes import Code
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.reference.internal_topics import GROUP_OFFSETS
from spark_2pc_sink.reference.log.partition_log import PartitionLog
from spark_2pc_sink.reference.log.producer_state import EndMarker


class Logs(Protocol):
    """Lookup of the logs of this node's partitions; the catalog."""

    def log(self, topic: str, partition: int) -> PartitionLog | None: ...


#: Called when a marker was appended to a partition of ``__consumer_offsets``: partition, producer id, committed or not.
GroupMarker = Callable[[int, int, bool], None]


class MarkerWriter:
    """Appends end markers, to all partitions of a marker at once, then waits once until they are durable.

    ``on_group_marker`` is called for each marker in ``__consumer_offsets`` as it is appended, in log order, so that
    pending offsets take effect or are dropped; readers of the offsets wait for the disk.
    """

    def __init__(self, logs: Logs, *, on_group_marker: GroupMarker, now_ms: Callable[[], int]) -> None:
        self._logs = logs
        self._on_group_marker = on_group_marker
        self._now_ms = now_ms

    async def write(self, marker: EndMarker, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return each partition's code: 0 once its marker is durable, 3 if this node does not have the partition."""
        now_ms = self._now_ms()
        results: dict[TopicPartition, int] = {}
        written: dict[TopicPartition, PartitionLog] = {}
        for partition in partitions:
            log = self._logs.log(partition.topic, partition.partition)
            if log is None:
                results[partition] = Code.UNKNOWN_TOPIC_OR_PARTITION
                continue
            results[partition] = log.append_marker(marker, now_ms=now_ms)
            if results[partition] == Code.NONE:
                written[partition] = log
                if partition.topic == GROUP_OFFSETS:
                    self._on_group_marker(partition.partition, marker.producer_id, marker.commit)
        results.update(zip(written, await synced(written.values()), strict=True))
        return results


async def synced(logs: Iterable[PartitionLog]) -> list[int]:
    """Wait until appended records of these logs are durable: 0 for each, or KAFKA_STORAGE_ERROR."""
    begun = [log.flush() for log in logs]  # start all of them, before waiting for the first
    return [Code.NONE if await future is None else Code.KAFKA_STORAGE_ERROR for future in begun]
