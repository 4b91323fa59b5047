"""Record batches of a few rows, made in one call."""

from __future__ import annotations

from spark_2pc_sink.ids import ProducerIdAndEpoch
from spark_2pc_sink.wire.arrow_layout import ArrowColumn, EncodedRows
from spark_2pc_sink.wire.record_batch import RecordsSection, assign_producer, encode_sections, encode_unassigned_batch


def section_of(key: ArrowColumn | None, value: ArrowColumn, headers: ArrowColumn | None) -> RecordsSection:
    (section,) = encode_sections(EncodedRows.of(key, value, headers), [len(value)])
    return section


def batch_of(
    section: RecordsSection,
    *,
    producer: ProducerIdAndEpoch,
    base_sequence: int,
    timestamp_ms: int,
    compression: str,
    level: int | None = None,
) -> memoryview:
    """One record batch, ready for Produce."""
    batch = encode_unassigned_batch(section, timestamp_ms=timestamp_ms, compression=compression, level=level)
    return assign_producer(batch, producer=producer, base_sequence=base_sequence)
