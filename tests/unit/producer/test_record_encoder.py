"""What is left of several partitions is encoded together, and nobody can tell."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.producer.leader_lookup import TopicLimits
from spark_2pc_sink.producer.record_encoder import TOGETHER_BYTES_MAX, EncodedBatch, RecordEncoder
from spark_2pc_sink.wire.record_rows import Rows

OPTIONS = KafkaOptions.parse({"bootstrap.servers": "localhost:9092", "compression.type": "none"})
#: Columns of one partition each: no two of the same length, with and without keys, text and bytes of both widths.
PARTS = (
    (None, pa.array([b"a", None, b"c"])),
    (None, pa.array([b"d"] * 100)),
    (pa.array([b"k"]), pa.array([b"e"])),
    (pa.array(["k", None]), pa.array(["f", "g"])),
    (pa.array([b"k"] * 70), pa.array([b"h"] * 70, pa.large_binary())),
)


def encoder() -> RecordEncoder:
    return RecordEncoder(OPTIONS, timestamp_ms=1_700_000_000_000, limits=lambda _: TopicLimits(None, create_time=True))


def encoded(*parts: tuple[int, pa.Array | None, pa.Array]) -> list[EncodedBatch]:
    one = encoder()
    batches = [
        batch
        for number, key, value in parts
        for batch in one.append(TopicPartition("t", number), Rows.of(key, value, None))
    ]
    return [*batches, *one.finish()]


def test_batches_are_those_of_each_partition_alone() -> None:
    parts = [(number, *columns) for number, columns in enumerate(PARTS)]
    together = encoded(*parts)
    assert together == [batch for part in parts for batch in encoded(part)]
    assert [batch.row_key for batch in together] == [None, None, "k", None, None]


@pytest.mark.parametrize("value_bytes", [10, TOGETHER_BYTES_MAX // 3, TOGETHER_BYTES_MAX // 2])
def test_many_bytes_are_the_same_as_few(value_bytes: int) -> None:
    parts = [(number, None, pa.array([bytes([number]) * value_bytes])) for number in range(5)]
    assert encoded(*parts) == [batch for part in parts for batch in encoded(part)]


def test_nothing_is_kept_behind_finish() -> None:
    one = encoder()
    assert list(one.append(TopicPartition("t", 0), Rows.of(None, pa.array([b"a"]), None))) == []
    assert len(list(one.finish())) == 1
    assert list(one.finish()) == []
