"""The content encoder: record batches made of records that other batches had (`wire.record_contents`). Pure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_2pc_sink.producer.error_policy import printable_key
from spark_2pc_sink.producer.record_encoder import BatchEncoder, EncodedBatch
from spark_2pc_sink.wire.digest import content_digest
from spark_2pc_sink.wire.record_contents import key_of_content, section_of_contents
from spark_2pc_sink.wire.varints import VARINT_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from spark_2pc_sink.ids import TopicPartition
    from spark_2pc_sink.options import KafkaOptions
    from spark_2pc_sink.producer.leader_lookup import TopicLimits
    from spark_2pc_sink.wire.arrow_layout import ArrowColumn

#: What a record has before its content: two varints, its attributes and its timestamp delta.
_HEAD_BYTES_MAX = 2 * VARINT_BYTES_MAX + 2


class ContentEncoder(BatchEncoder):
    """Puts contents of records into batches."""

    def __init__(self, options: KafkaOptions, *, timestamp_ms: int, limits: Callable[[str], TopicLimits]) -> None:
        super().__init__(options, timestamp_ms=timestamp_ms, limits=limits)
        self._kept: dict[TopicPartition, list[ArrowColumn]] = {}
        self._kept_bytes: Counter[TopicPartition] = Counter()

    def append(self, partition: TopicPartition, contents: ArrowColumn) -> Iterator[EncodedBatch]:
        """Take records of one partition, in order; yields the batches that are full now.

        Args:
            partition: where to.
            contents: from `contents_of`.
        """
        bytes_max = self._records_bytes_max(partition.topic)
        ends = np.cumsum(np.asarray(pc.binary_length(contents)).astype(np.int64) + _HEAD_BYTES_MAX)
        start = begin = 0
        while start < len(contents):
            room = bytes_max - self._kept_bytes[partition]
            stop = int(np.searchsorted(ends, begin + room, side="right"))
            if stop == start and not self._kept_bytes[partition]:
                # Larger than a batch by itself, as it was before.
                stop = start + 1
            if stop > start:
                self._kept.setdefault(partition, []).append(contents.slice(start, stop - start))
                self._kept_bytes[partition] += int(ends[stop - 1]) - begin
                start, begin = stop, int(ends[stop - 1])
            if start < len(contents):
                yield self._taken(partition)

    def finish(self) -> Iterator[EncodedBatch]:
        """Encode what is kept; nothing is kept afterwards."""
        for partition in list(self._kept):
            yield self._taken(partition)

    def encode(self, partition: TopicPartition, contents: ArrowColumn, *, digest: int) -> EncodedBatch:
        """One batch of these records, at least one, beside what is kept: no more than another batch had.

        Args:
            partition: where to.
            contents: from `contents_of`.
            digest: of the records.
        """
        payload = self._payload(section_of_contents(contents))
        row_key = printable_key(key_of_content(contents[0].as_py())) if len(contents) == 1 else None
        return EncodedBatch(partition, payload, len(contents), digest, row_key)

    def _taken(self, partition: TopicPartition) -> EncodedBatch:
        del self._kept_bytes[partition]
        contents = pa.concat_arrays(self._kept.pop(partition))
        return self.encode(partition, contents, digest=content_digest(partition.topic, contents))
