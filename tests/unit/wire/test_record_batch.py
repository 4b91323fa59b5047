"""Record batches, read by kafka-python's reader and by ours; and batches of others, read by ours."""

from __future__ import annotations

import struct
from typing import Any

import google_crc32c
import pyarrow as pa
import pytest
from hypothesis import example, given, strategies as st
from kafka.record import MemoryRecords
from kafka.record.default_records import DefaultRecordBatchBuilder

from spark_2pc_sink.errors import LocalProtocolError, RemoteProtocolError
from spark_2pc_sink.ids import ProducerIdAndEpoch
from spark_2pc_sink.wire import batch_format, record_batch
from spark_2pc_sink.wire.batch_format import HEADER_BYTES, StoredMarker, next_sequence
from spark_2pc_sink.wire.batch_reader import (
    DecodedBatch,
    content_digests,
    contents_of,
    decode_record_batches,
    key_and_value,
)
from spark_2pc_sink.wire.record_batch import (
    assign_producer,
    batch_digest,
    content_digest,
    encode_unassigned_batch,
)
from tests.harness.record_batches import batch_of, section_of
from tests.unit.wire.rows import LAYOUTS, Row, columns, rows

PRODUCER = ProducerIdAndEpoch(4_000_000_007, 32_000)
NOW_MS = 1_790_000_000_123


def encode(some: list[Row], **changes: Any) -> bytes:
    layout = changes.pop("layout", "plain")
    binary = changes.pop("binary", None)
    options: dict[str, Any] = {
        "producer": PRODUCER,
        "base_sequence": 0,
        "timestamp_ms": NOW_MS,
        "compression": "none",
    } | changes
    return bytes(batch_of(section_of(*columns(some, layout=layout, binary=binary)), **options))


def decode_one(data: bytes | memoryview) -> DecodedBatch:
    (batch,) = decode_record_batches(data)
    return batch


def plain(batch: DecodedBatch) -> list[Row]:
    return [(record.key, record.value, record.headers) for record in batch.records()]


@given(
    rows(min_size=1),
    st.sampled_from(["none", "gzip", "lz4"]),
    st.sampled_from(sorted(LAYOUTS)),
    st.sampled_from([pa.binary(), pa.large_binary()]),
)
def test_kafka_python_reads_what_we_write(some: list[Row], compression: str, layout: str, binary: Any) -> None:
    data = encode(some, compression=compression, layout=layout, binary=binary, base_sequence=17)
    batch = MemoryRecords(data).next_batch()

    assert batch.validate_crc()
    assert [(record.key, record.value, tuple(record.headers)) for record in batch] == some
    batch = MemoryRecords(data).next_batch()
    assert [record.offset for record in batch] == list(range(len(some)))
    assert {record.timestamp for record in MemoryRecords(data).next_batch()} == {NOW_MS}
    header = MemoryRecords(data).next_batch()
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (4_000_000_007, 32_000, 17)
    assert (header.is_transactional, header.is_control_batch) == (True, False)
    assert (header.first_timestamp, header.max_timestamp, header.timestamp_type) == (NOW_MS, NOW_MS, 0)
    assert (header.base_offset, header.last_offset_delta, header.records_count) == (0, len(some) - 1, len(some))
    assert (header.leader_epoch, header.magic, header.size_in_bytes) == (-1, 2, len(data))


@given(rows(min_size=1, max_size=8), st.sampled_from([0, 1, 3]), st.booleans())
def test_our_reader_reads_what_kafka_python_writes(some: list[Row], compression_type: int, transactional: bool) -> None:
    builder = DefaultRecordBatchBuilder(
        magic=2, compression_type=compression_type, is_transactional=int(transactional), producer_id=5,
        producer_epoch=6, base_sequence=7, batch_size=1 << 20,
    )  # fmt: skip
    for offset, (key, value, headers) in enumerate(some):
        # kafka-python takes bytes, and no subclass of it.
        plain_key, plain_value = (None if part is None else bytes(part) for part in (key, value))
        builder.append(offset, 1000 + offset * 70, plain_key, plain_value, list(headers))
    batch = decode_one(bytes(builder.build()))

    assert plain(batch) == some
    assert [record.timestamp_ms for record in batch.records()] == [1000 + offset * 70 for offset in range(len(some))]
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (5, 6, 7)
    assert batch.transactional == transactional


def test_records_that_are_not_compressed_are_not_copied() -> None:
    section = section_of(*columns([(b"k", b"v", ())] * 3))
    batch = encode_unassigned_batch(section, timestamp_ms=NOW_MS, compression="none")
    sent = assign_producer(batch, producer=PRODUCER, base_sequence=7)
    assert pa.py_buffer(sent).address == section.buffer.address - HEADER_BYTES
    assert len(sent) == HEADER_BYTES + section.buffer.size
    assert decode_one(sent).base_sequence == 7


def test_a_batch_that_cannot_be_written_is_copied() -> None:
    """Such as one that came from another process."""
    section = section_of(*columns([(b"k", b"v", ())]))
    batch = bytes(encode_unassigned_batch(section, timestamp_ms=NOW_MS, compression="none"))
    before = bytearray(batch)
    sent = [assign_producer(batch, producer=PRODUCER, base_sequence=sequence) for sequence in (1, 2)]
    assert batch == before
    assert [decode_one(data).base_sequence for data in sent] == [1, 2]


@given(rows(min_size=1, max_size=4), st.data())
def test_any_changed_bit_behind_the_crc_is_found(some: list[Row], data: st.DataObject) -> None:
    encoded = bytearray(encode(some))
    position = data.draw(st.integers(17, len(encoded) - 1))
    encoded[position] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(RemoteProtocolError, match="CRC"):
        decode_one(bytes(encoded))


@given(st.lists(rows(min_size=1, max_size=3), min_size=1, max_size=3), st.data())
def test_a_batch_cut_off_at_the_end_is_left_out(batches: list[list[Row]], data: st.DataObject) -> None:
    """KIP-74: Fetch may end in the middle of a batch."""
    encoded = [encode(some) for some in batches]
    whole = b"".join(encoded)
    kept = data.draw(st.integers(0, len(whole)))
    complete = sum(sum(map(len, encoded[: index + 1])) <= kept for index in range(len(encoded)))
    assert [plain(batch) for batch in decode_record_batches(whole[:kept])] == batches[:complete]


def test_sequences_wrap_to_zero_after_int32() -> None:
    """``DefaultRecordBatch.incrementSequence``: Integer.MAX_VALUE is followed by 0."""
    top = 2**31 - 1
    assert next_sequence(0, 5) == 5
    assert next_sequence(top, 1) == 0
    assert next_sequence(top - 1, 3) == 1
    batch = decode_one(encode([(None, b"v", ())] * 3, base_sequence=top))
    assert (batch.base_sequence, batch.record_count) == (top, 3)
    with pytest.raises(LocalProtocolError, match="sequence"):
        encode([(None, b"v", ())], base_sequence=top + 1)


def test_a_batch_without_records_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match="at least one record"):
        encode([])


def test_a_batch_whose_length_is_no_int32_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    section = section_of(*columns([(b"k", b"v" * 9, ())]))
    monkeypatch.setattr(record_batch, "INT32_BYTES_MAX", 70)
    with pytest.raises(LocalProtocolError, match="at most 70 bytes"):
        encode_unassigned_batch(section, timestamp_ms=NOW_MS, compression="none")


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_of_a_compressed_batch_so_many_headers_are_read_and_no_more(
    compression: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D13: a header may take two bytes before it is compressed, and sixty in a reader."""
    some: list[Row] = [(b"k", b"v", (("a", b"1"), ("b", None)))] * 3
    batch = decode_one(encode(some, compression=compression))
    monkeypatch.setattr(batch_format, "COMPRESSED_HEADERS_MAX", 6)
    assert plain(batch) == some
    monkeypatch.setattr(batch_format, "COMPRESSED_HEADERS_MAX", 5)
    if compression == "none":
        assert plain(batch) == some
        return
    with pytest.raises(RemoteProtocolError, match="it has 2 headers, more than the 1 left for this batch"):
        plain(batch)


def control_batch(kind: int, *, value: bytes | None = struct.pack(">hi", 0, 7), key: bytes | None = None) -> bytes:
    """A control batch as ``MemoryRecords.withEndTransactionMarker`` makes it, with any key and value."""
    section = section_of(
        pa.array([struct.pack(">hh", 0, kind) if key is None else key]), pa.array([value], pa.binary()), None
    )
    encoded = bytearray(batch_of(section, producer=PRODUCER, base_sequence=0, timestamp_ms=NOW_MS, compression="none"))
    encoded[22] |= 0x20
    return with_crc(encoded)


def with_crc(encoded: bytearray) -> bytes:
    encoded[17:21] = google_crc32c.value(bytes(encoded[21:])).to_bytes(4, "big")
    return bytes(encoded)


@pytest.mark.parametrize(("kind", "expected"), [(0, False), (1, True)])
def test_end_markers_are_read(kind: int, expected: bool) -> None:
    """KIP-98, "Control Records": type 0 aborts, type 1 commits; kafka-python agrees."""
    data = control_batch(kind)
    batch = decode_one(data)
    assert (batch.control, batch.transactional) == (True, True)
    assert batch.marker == StoredMarker(expected, coordinator_epoch=7)
    theirs = next(iter(MemoryRecords(data).next_batch()))
    assert (theirs.abort, theirs.commit) == (not expected, expected)


def test_other_control_records_end_no_transaction() -> None:
    assert decode_one(control_batch(2)).marker is None


def test_an_emptied_control_batch_has_no_marker() -> None:
    """Compaction may keep a batch's header without its records (``DefaultRecordBatch.writeEmptyHeader``)."""
    encoded = bytearray(control_batch(1))
    del encoded[HEADER_BYTES:]
    encoded[8:12] = (len(encoded) - 12).to_bytes(4, "big")
    encoded[57:61] = bytes(4)
    assert decode_one(with_crc(encoded)).marker is None


@pytest.mark.parametrize("broken", [{"key": b"\x00"}, {"value": None}, {"value": b"\x00\x00"}], ids=str)
def test_a_control_record_that_is_too_short_is_refused(broken: dict[str, Any]) -> None:
    with pytest.raises(RemoteProtocolError, match=r"control record|end marker"):
        _ = decode_one(control_batch(1, **broken)).marker


def test_a_batch_stamped_by_the_broker_has_its_time() -> None:
    encoded = bytearray(encode([(None, b"v", ())]))
    encoded[22] |= 0x08
    encoded[35:43] = (NOW_MS + 5).to_bytes(8, "big")
    batch = decode_one(with_crc(encoded))
    assert batch.log_append_time
    assert [record.timestamp_ms for record in batch.records()] == [NOW_MS + 5]


@pytest.mark.parametrize(
    ("position", "content", "said"),
    [
        (8, (48).to_bytes(4, "big"), "too short"),
        (8, (2**32 - 5).to_bytes(4, "big"), "too short"),
        (16, b"\x01", "format v1"),
        (21, b"\x00\x17", "unknown compression 7"),
        (57, (2).to_bytes(4, "big"), "the record at byte"),
        (57, bytes(4), "after the last record"),
        (57, b"\xff" * 4, "it has -1 records"),
        (61, b"\x7e", "its length is 63"),
        (61, b"\x00", "its length is 0"),
        (61, b"\x0e", "by its length"),
        (64, b"\x80" * 10, "more than 10 bytes"),
        (65, b"\x7e", "63 bytes at"),
        (71, b"\xff", "the record at byte"),
    ],
)
def test_a_batch_that_contradicts_itself_is_refused(position: int, content: bytes, said: str) -> None:
    encoded = bytearray(encode([(b"k", b"v", (("h", b"x"),))]))
    encoded[position : position + len(content)] = content
    with pytest.raises(RemoteProtocolError, match=said):
        list(decode_one(with_crc(encoded)).records())


# Lengths that take 1 to 4 bytes, which are seldom drawn.
@pytest.mark.parametrize("compression", ["none", "zstd"])
@given(some=rows(min_size=1))
@example(some=[(b"k", bytes(size), ()) for size in (0, 63, 64, 8_191, 8_192, 2_000_000)])
def test_each_record_is_taken_out_as_it_was_put_in(compression: str, some: list[Row]) -> None:
    section, turned = section_of(*columns(some)), section_of(*columns(some[::-1]))
    batch = encode_unassigned_batch(section, timestamp_ms=NOW_MS, compression=compression)
    contents = contents_of(batch, len(some))
    assert list(map(key_and_value, contents)) == [(key, value) for key, value, _ in some]
    assert content_digest("t", pa.array(contents, pa.binary())) == batch_digest("t", section)
    others = contents_of(encode_unassigned_batch(turned, timestamp_ms=NOW_MS, compression="none"), len(some))
    assert content_digests(contents) == content_digests(others)
