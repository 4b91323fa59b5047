"""Record batches made of records that other batches had: see `spark_2pc_sink.wire.record_contents`. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_2pc_sink.producer.record_encoder import EncodedBatch, printable_key, records_bytes_max
from spark_2pc_sink.wire.digest import batch_digest
from spark_2pc_sink.wire.record_batch import encode_unassigned_batch
from spark_2pc_sink.wire.record_contents import key_of_content, section_of_contents
from spark_2pc_sink.wire.varints import VARINT_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from spark_2pc_sink.ids import TopicPartition
    from spark_2pc_sink.options import KafkaOptions
    from spark_2pc_sink.producer.partition_lookup import TopicLimits

#: What a record has before its content: two varints, its attributes and its timestamp delta.
_HEAD_BYTES_MAX = 2 * VARINT_BYTES_MAX + 2


class ContentEncoder:
    """Puts contents of records into batches.

    Args:
        options: batch size and compression.
        timestamp_ms: of every record, milliseconds since 1970.
        limits: what a topic allows.
    """

    def __init__(self, options: KafkaOptions, *, timestamp_ms: int, limits: Callable[[str], TopicLimits]) -> None:
        self._options = options
        self._timestamp_ms = timestamp_ms
        self._limits = limits
        self._kept: dict[TopicPartition, list[bytes]] = {}
        self._kept_bytes: dict[TopicPartition, int] = {}

    def append(self, partition: TopicPartition, contents: Sequence[bytes]) -> Iterator[EncodedBatch]:
        """Take records of one partition, in order; yields the batches that are full now."""
        bytes_max = records_bytes_max(self._options.batch_bytes_max, self._limits(partition.topic))
        for content in contents:
            content_bytes = len(content) + _HEAD_BYTES_MAX
            if self._kept.get(partition) and self._kept_bytes[partition] + content_bytes > bytes_max:
                yield self._taken(partition)
            self._kept.setdefault(partition, []).append(content)
            self._kept_bytes[partition] = self._kept_bytes.get(partition, 0) + content_bytes

    def finish(self) -> Iterator[EncodedBatch]:
        """Encode what is kept; nothing is kept afterwards."""
        for partition in list(self._kept):
            yield self._taken(partition)

    def encode(self, partition: TopicPartition, contents: Sequence[bytes]) -> EncodedBatch:
        """One batch of these records, at least one, beside what is kept: no more than another batch had."""
        section = section_of_contents(contents)
        payload = encode_unassigned_batch(
            section,
            timestamp_ms=self._timestamp_ms,
            compression=self._options.compression,
            level=self._options.compression_level,
        )
        row_key = printable_key(key_of_content(contents[0])) if len(contents) == 1 else None
        return EncodedBatch(partition, payload, len(contents), batch_digest(partition.topic, section), row_key)

    def _taken(self, partition: TopicPartition) -> EncodedBatch:
        del self._kept_bytes[partition]
        return self.encode(partition, self._kept.pop(partition))
