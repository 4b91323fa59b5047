"""Record batches and end markers, put into the logs of a fake cluster."""

from __future__ import annotations

import struct

import google_crc32c

from spark_2pc_sink.ids import ProducerIdAndEpoch, TopicPartition
from spark_2pc_sink.wire.arrow_records import encode_sections
from tests.harness.record_batches import batch_of
from tests.unit.producer.fake_broker import FakeCluster
from tests.unit.producer.support import T0, rows


def with_offset(batch: bytes | memoryview, offset: int) -> bytes:
    return struct.pack(">q", offset) + batch[8:]


def data(fake: FakeCluster, producer: ProducerIdAndEpoch, count: int = 1, *, at: TopicPartition = T0) -> int:
    """Put a data batch into a log; its first offset."""
    log = fake.partitions[at]
    (section,) = encode_sections(rows(*("x" for _ in range(count))), [count])
    batch = batch_of(section, producer=producer, base_sequence=0, timestamp_ms=0, compression="none")
    offset = log.next_offset
    log.raw.append((offset + count - 1, with_offset(batch, offset)))
    log.next_offset += count
    return offset


def marker(fake: FakeCluster, producer: ProducerIdAndEpoch, *, kind: int, at: TopicPartition = T0) -> int:
    """Put a control batch into a log, byte by byte as KIP-98 has it; its offset."""
    record = b"\x00\x00\x00" + b"\x08" + struct.pack(">hh", 0, kind) + b"\x0c" + struct.pack(">hi", 0, 1) + b"\x00"
    record = bytes([len(record) * 2]) + record
    checked = struct.pack(">hiqqqhii", 0x30, 0, 0, 0, producer.producer_id, producer.epoch, -1, 1) + record
    crc = google_crc32c.value(checked)
    log = fake.partitions[at]
    offset = log.next_offset
    batch = struct.pack(">qiibI", offset, 9 + len(checked), 0, 2, crc) + checked
    log.raw.append((offset, batch))
    log.next_offset += 1
    return offset
