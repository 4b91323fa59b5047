"""Records are taken out of a batch, and say what they said in it."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spark_2pc_sink.wire.record_batch import batch_digest, content_digest, encode_unassigned_batch
from spark_2pc_sink.wire.record_contents import content_digests, contents_of, key_of_content, value_of_content
from spark_2pc_sink.wire.record_rows import RecordsSection
from tests.harness.record_batches import section_of

Record = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
BYTES = st.none() | st.binary(max_size=200)
RECORDS: st.SearchStrategy[list[Record]] = st.lists(
    st.tuples(BYTES, BYTES, st.lists(st.tuples(st.text(max_size=3), BYTES), max_size=2)), min_size=1, max_size=80
)


def encoded_section(records: list[Record]) -> RecordsSection:
    lists = pa.array([[{"key": key, "value": value} for key, value in pairs] for _, _, pairs in records], HEADERS)
    keys, values = [key for key, _, _ in records], [value for _, value, _ in records]
    return section_of(pa.array(keys, pa.binary()), pa.array(values, pa.binary()), lists)


def encoded(records: list[Record], compression: str) -> memoryview:
    section = encoded_section(records)
    return encode_unassigned_batch(section, timestamp_ms=1_700_000_000_000, compression=compression)


# Lengths that take 1 to 4 bytes, which are seldom drawn.
@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
@given(records=RECORDS)
@example(records=[(b"k", bytes(size), []) for size in (0, 63, 64, 8_191, 8_192, 2_000_000)])
def test_each_record_is_taken_out_as_it_was_put_in(compression: str, records: list[Record]) -> None:
    contents = contents_of(encoded(records, compression), len(records))
    assert [key_of_content(content) for content in contents.to_pylist()] == [key for key, _, _ in records]
    assert [value_of_content(content) for content in contents.to_pylist()] == [value for _, value, _ in records]
    assert content_digest("t", contents) == batch_digest("t", encoded_section(records))
    assert content_digests(contents) == content_digests(contents_of(encoded(records[::-1], "none"), len(records)))


def test_records_that_differ_have_other_digests() -> None:
    records: list[Record] = [(b"k", b"v", []), (b"k", None, []), (None, b"v", []), (b"k", b"v", [("h", None)])]
    assert len(content_digests(contents_of(encoded(records, "none"), len(records)))) == len(records)
