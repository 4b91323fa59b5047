"""The logs of a fake cluster: the reference broker's own, in memory, and what a test has put into them."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

import google_crc32c

from spark_2pc_sink.ids import NO_PRODUCER_ID, ProducerIdAndEpoch, TopicPartition
from spark_2pc_sink.reference.log.log_values import LogSettings
from spark_2pc_sink.reference.log.partition_log import PartitionLog
from spark_2pc_sink.reference.storage.batches import build_batch, encode_records
from spark_2pc_sink.reference.storage.files import MemoryStore

#: Clocks of tests need not be right.
_SETTINGS = LogSettings(timestamp_after_max_ms=1 << 62)
_TRANSACTIONAL = 0x10


@dataclass
class FakeProducer:
    """One producer as a partition is to show it."""

    producer_id: int
    epoch: int = 0
    start_offset: int = -1
    coordinator_epoch: int = -1
    last_timestamp_ms: int = 0
    last_sequence: int = 0


class FakeLog:
    """The log of one partition.

    Args:
        partition: its name.
        leader: the broker that leads it; -1 for none. All brokers share the records.

    Attributes:
        log: the leader of the reference broker.
        shown: the producers that DescribeProducers shows in place of those of the log.
        stable_offset: the last stable offset that ListOffsets shows in place of that of the log.
    """

    def __init__(self, partition: TopicPartition, leader: int) -> None:
        self.leader = leader
        self.shown: list[FakeProducer] | None = None
        self.stable_offset: int | None = None
        self._partition = partition
        self._store = MemoryStore()
        self.log = self._opened()

    @property
    def next_offset(self) -> int:
        """Of the next record."""
        return self.log.end_offset

    @property
    def batches(self) -> list[tuple[tuple[int, int], int]]:
        """Pair and base sequence of each batch of records, oldest first."""
        headers = dict.fromkeys(record.batch for record in self.log.records() if not record.batch.control)
        return [((each.producer_id, each.producer_epoch), each.base_sequence) for each in headers]

    @property
    def values(self) -> int:
        """How many records there are."""
        return sum(not record.batch.control for record in self.log.records())

    def stamp_appends(self) -> None:
        """Set message.timestamp.type=LogAppendTime."""
        self.log.settings = replace(self.log.settings, log_append_time=True)

    def fill(self, count: int) -> None:
        """Others have written so many records."""
        self.data(ProducerIdAndEpoch(0, 0), count, attributes=0)

    def data(
        self, producer: ProducerIdAndEpoch, count: int = 1, *, timestamp_ms: int = 0, attributes: int = _TRANSACTIONAL
    ) -> int:
        """Put a batch of a transaction there, whatever its leader and the coordinator say; its first offset."""
        batch = build_batch(
            encode_records([(b"x", b"x")] * count),
            record_count=count,
            timestamp_ms=timestamp_ms,
            producer_id=producer.producer_id if attributes else NO_PRODUCER_ID,
            producer_epoch=producer.epoch if attributes else -1,
            attributes=attributes,
        )
        return self.put(batch)

    def marker(self, producer: ProducerIdAndEpoch, *, kind: int) -> int:
        """Put a control batch there, byte by byte as KIP-98 has it; its offset."""
        record = b"\x00\x00\x00" + b"\x08" + struct.pack(">hh", 0, kind) + b"\x0c" + struct.pack(">hi", 0, 1) + b"\x00"
        record = bytes([len(record) * 2]) + record
        checked = struct.pack(">hiqqqhii", 0x30, 0, 0, 0, producer.producer_id, producer.epoch, -1, 1) + record
        crc = google_crc32c.value(checked)
        return self.put(struct.pack(">qiibI", 0, 9 + len(checked), 0, 2, crc) + checked)

    def put(self, batch: bytes) -> int:
        """Write a batch at the end, as if it had always stood there: the leader reads its log anew."""
        offset = self.next_offset
        self._store.segment(0).append([struct.pack(">q", offset) + bytes(batch[8:])])
        self.log = self._opened()
        return offset

    def _opened(self) -> PartitionLog:
        return PartitionLog.open(
            self._store,
            topic=self._partition.topic,
            partition=self._partition.partition,
            leader_epoch=0,
            settings=_SETTINGS,
        )
