"""Rows kept until they fill a batch, and what is left of several partitions, which is encoded together."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.kafka.record_encoder import (
    TOGETHER_BYTES_MAX,
    EncodedBatch,
    EncodingOptions,
    RecordEncoder,
    RowBuffer,
    TopicLimits,
)
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.wire.record_rows import Rows, encode_sections

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
    limits = TopicLimits(None, create_time=True)
    return RecordEncoder(EncodingOptions.of(OPTIONS), timestamp_ms=1_700_000_000_000, limits=lambda _: limits)


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


def rows_of(values: list[bytes | None], *, kind: Any = None, key: bool = True) -> Rows:
    column = pa.array(values, kind or pa.binary())
    return Rows.of(column if key else None, column, None)


def values_of(batches: list[Rows]) -> list[bytes | None]:
    return [value for batch in batches for column in batch.value.values() for value in column.to_pylist()]


@given(
    st.lists(st.lists(st.one_of(st.none(), st.binary(max_size=60)), max_size=30), max_size=8),
    st.integers(min_value=20, max_value=400),
)
def test_every_row_leaves_once_and_in_order(chunks: list[list[bytes | None]], bytes_max: int) -> None:
    buffer = RowBuffer(bytes_max)
    batches = [batch for chunk in chunks for batch in buffer.add(rows_of(chunk))]
    kept = buffer.take()
    assert values_of(batches) + values_of(kept) == [value for chunk in chunks for value in chunk]
    assert len(kept) <= 1
    assert buffer.kept_bytes == 0
    for batch in (*batches, *kept):
        (section,) = encode_sections(batch, [len(batch)])
        assert len(section.buffer) <= bytes_max or len(batch) == 1


def test_small_additions_are_joined_into_full_batches() -> None:
    buffer = RowBuffer(1000)
    batches = [batch for _ in range(100) for batch in buffer.add(rows_of([b"x" * 20] * 3))]
    assert min(len(batch) for batch in batches) >= 15
    assert sum(map(len, batches + buffer.take())) == 300


def test_columns_of_another_layout_begin_a_new_batch() -> None:
    buffer = RowBuffer(1000)
    assert buffer.add(rows_of([b"a"])) == []
    (first,) = buffer.add(rows_of([b"b"], kind=pa.large_binary()))
    (second,) = buffer.add(rows_of([b"c"], key=False))
    assert values_of([first, second, *buffer.take()]) == [b"a", b"b", b"c"]


def test_slices_of_larger_columns_are_read_from_their_offset() -> None:
    whole = pa.array([b"0", b"1", b"2", b"3"])
    buffer = RowBuffer(1000)
    buffer.add(Rows.of(whole.slice(1, 1), whole.slice(1, 1), None))
    buffer.add(Rows.of(whole.slice(3, 1), whole.slice(3, 1), None))
    assert values_of(buffer.take()) == [b"1", b"3"]
