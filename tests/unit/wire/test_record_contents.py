"""Records are taken out of one batch and put into another, and say the same there."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spark_2pc_sink.ids import ProducerIdAndEpoch
from spark_2pc_sink.wire.arrow_records import RecordsSection
from spark_2pc_sink.wire.digest import batch_digest, content_digest
from spark_2pc_sink.wire.record_batch import assign_producer, decode_record_batches, encode_unassigned_batch
from spark_2pc_sink.wire.record_contents import contents_of, key_of_content, section_of_contents
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


def decoded(batch: memoryview) -> list[Record]:
    [found] = decode_record_batches(assign_producer(batch, producer=ProducerIdAndEpoch(1, 2), base_sequence=0))
    return [(record.key, record.value, list(record.headers)) for record in found.records()]


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
@given(records=RECORDS, data=st.data())
def test_any_choice_of_records_in_any_order(compression: str, records: list[Record], data: st.DataObject) -> None:
    contents = contents_of(encoded(records, compression), len(records))
    assert [key_of_content(content) for content in contents.to_pylist()] == [key for key, _, _ in records]
    chosen = data.draw(st.lists(st.sampled_from(range(len(records))), min_size=1, unique=True))
    section = section_of_contents(contents.take(pa.array(chosen)))
    again = encode_unassigned_batch(section, timestamp_ms=1_700_000_000_000, compression=compression)
    assert decoded(again) == [records[number] for number in chosen]


# Lengths that take 1 to 4 bytes, which are seldom drawn.
@given(records=RECORDS)
@example(records=[(b"k", bytes(size), []) for size in (0, 63, 64, 8_191, 8_192, 2_000_000)])
def test_all_records_make_the_same_batch_and_digest(records: list[Record]) -> None:
    """Byte for byte: so what is put together again is what an encoder would have made."""
    batch = bytes(encoded(records, "none"))
    contents = contents_of(batch, len(records))
    section = section_of_contents(contents)
    again = encode_unassigned_batch(section, timestamp_ms=1_700_000_000_000, compression="none")
    assert bytes(again) == batch
    digest = batch_digest("t", encoded_section(records))
    assert (batch_digest("t", section), content_digest("t", contents)) == (digest, digest)
