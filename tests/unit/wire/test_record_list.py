"""Records one by one are the same as in columns: the bytes, the digest, and the partition of a key."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_2pc_sink.kafka.record_encoder import partition_for_keys
from spark_2pc_sink.wire.arrow_layout import EncodedRows
from spark_2pc_sink.wire.batch_format import TRANSACTIONAL_BIT, read_header
from spark_2pc_sink.wire.record_batch import Compression, batch_digest, encode_sections, encode_unassigned_batch
from spark_2pc_sink.wire.record_list import (
    COMPRESSED_BYTES_MIN,
    RECORD_BYTES,
    cut_contents,
    encode_listed_batch,
    partition_for_key,
    record_content,
)

CONTENT = st.none() | st.binary(max_size=200)
HEADERS = st.lists(st.tuples(st.text(max_size=5), CONTENT), max_size=3)
RECORDS = st.lists(st.tuples(CONTENT, CONTENT, HEADERS), min_size=1, max_size=70)
PAIRS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@given(records=RECORDS, compression=st.sampled_from(["none", "gzip", "snappy", "lz4", "zstd"]))
def test_a_batch_is_that_of_the_columns(
    records: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]], compression: str
) -> None:
    keys, values, headers = zip(*records, strict=True)
    pairs = pa.array([[{"key": key, "value": value} for key, value in each] for each in headers], PAIRS)
    rows = EncodedRows.of(pa.array(keys, pa.binary()), pa.array(values, pa.binary()), pairs)
    (section,) = encode_sections(rows, [len(records)])
    used = compression if section.buffer.size >= COMPRESSED_BYTES_MIN else "none"
    expected = bytes(encode_unassigned_batch(section, timestamp_ms=7, compression=used))
    contents = [record_content(*record) for record in records]
    batch = encode_listed_batch("orders", contents, timestamp_ms=7, compression=compression)
    assert batch.payload == expected
    assert (batch.record_count, batch.digest) == (len(records), batch_digest("orders", section))


@pytest.mark.parametrize(("size", "compressed"), [(502, False), (503, True)])
def test_little_is_not_compressed(size: int, compressed: bool) -> None:
    """A record of 502 bytes takes 511 with what is around it."""
    contents = [record_content(None, bytes(size), ())]
    batch = encode_listed_batch("orders", contents, timestamp_ms=7, compression="zstd")
    attributes = read_header(batch.payload).attributes
    assert attributes == TRANSACTIONAL_BIT | (Compression.ZSTD if compressed else Compression.NONE).value


@given(contents=st.lists(st.binary(max_size=50), min_size=1), bytes_max=st.integers(1, 200))
def test_what_is_cut_is_full_and_not_too_large(contents: list[bytes], bytes_max: int) -> None:
    parts = list(cut_contents(contents, bytes_max))
    assert [content for part in parts for content in part] == contents
    sizes = [sum(len(content) + RECORD_BYTES for content in part) for part in parts]
    assert all(size <= bytes_max or len(part) == 1 for size, part in zip(sizes, parts, strict=True))
    nexts = [len(part[0]) + RECORD_BYTES for part in parts[1:]]
    assert all(size + following > bytes_max for size, following in zip(sizes, nexts, strict=False))


@given(keys=st.lists(st.binary(max_size=40), min_size=1), partitions=st.integers(1, 1_000))
def test_a_key_has_the_partition_that_it_has_in_a_column(keys: list[bytes], partitions: int) -> None:
    expected = partition_for_keys(pa.array(keys), partitions).tolist()
    assert [partition_for_key(key, partitions) for key in keys] == expected
