"""Record batches in the broker's hands, written and read by kafka-python on the other side."""

from __future__ import annotations

import random
import struct

import google_crc32c
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import RemoteProtocolError
from spark_2pc_sink.reference.coordinator.plans import EndMarker
from spark_2pc_sink.reference.storage.batches import (
    build_batch,
    build_marker,
    decode_records,
    encode_records,
    inspect,
    is_whole,
    read_marker,
    stamp_batch,
)
from spark_2pc_sink.reference.storage.errors import BatchError
from spark_2pc_sink.wire.batch_format import CONTROL_BIT, HEADER_BYTES, TRANSACTIONAL_BIT, StoredMarker, read_header
from spark_2pc_sink.wire.batch_reader import decode_record_batches
from spark_2pc_sink.wire.record_batch import Compression, compress
from tests.unit.reference.batches import NOW_MS, client_batch, read_back, seen

BYTES = st.one_of(st.none(), st.binary(max_size=200))

#: Field of the header, where it is, and how it is packed.
FIELDS = {
    "base offset": (0, ">q"),
    "length": (8, ">i"),
    "magic": (16, ">b"),
    "attributes": (21, ">h"),
    "last offset delta": (23, ">i"),
    "base sequence": (53, ">i"),
    "record count": (57, ">i"),
}


def changed(batch: bytes, **values: int) -> bytes:
    """The batch with other values in its header, and a CRC that fits."""
    data = bytearray(batch)
    for name, value in values.items():
        position, form = FIELDS[name.replace("_", " ")]
        struct.pack_into(form, data, position, value)
    struct.pack_into(">I", data, 17, google_crc32c.value(bytes(data[21:])))
    return bytes(data)


def compressed(batch: bytes, number: int) -> bytes:
    """The batch with its records compressed as our own writer does."""
    payload = compress(pa.py_buffer(batch[HEADER_BYTES:]), Compression(number))
    size_bytes = HEADER_BYTES + len(payload)
    attributes = read_header(batch).attributes | number
    return changed(batch[:HEADER_BYTES] + bytes(payload), attributes=attributes, length=size_bytes - 12)


def refusal(batch: bytes) -> Code:
    with pytest.raises(BatchError) as caught:
        inspect(batch)
    return caught.value.code


@pytest.mark.parametrize("compression", range(5))
def test_a_clients_batch_is_taken_whatever_its_compression(compression: int) -> None:
    plain = client_batch([b"a" * 100, b"b"], producer=(5, 3), sequence=9, transactional=True)
    batch = compressed(plain, compression)
    header = inspect(memoryview(bytearray(batch)))
    assert header == read_header(batch)
    assert (header.size_bytes, header.record_count, header.last_offset) == (len(batch), 2, 1)
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.last_sequence) == (5, 3, 9, 10)
    assert (header.transactional, header.control, header.compression) == (True, False, compression)
    assert [(record.offset, record.value) for record in decode_records(batch, header)] == [(0, b"a" * 100), (1, b"b")]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"base_offset": 1}, Code.INVALID_RECORD),
        ({"length": 48}, Code.CORRUPT_MESSAGE),
        ({"length": 1 << 20}, Code.INVALID_RECORD),
        ({"attributes": TRANSACTIONAL_BIT | CONTROL_BIT}, Code.INVALID_RECORD),
        ({"base_sequence": -1}, Code.INVALID_RECORD),
        ({"record_count": 0, "last_offset_delta": -1}, Code.INVALID_RECORD),
        ({"record_count": 2**31 - 1, "last_offset_delta": 2**31 - 2}, Code.INVALID_RECORD),
    ],
    ids=str,
)
def test_what_no_client_may_send(values: dict[str, int], expected: Code) -> None:
    """``ProduceRequest.validateRecords`` and ``LogValidator.validateBatch``."""
    assert refusal(changed(client_batch(producer=(5, 0), sequence=0), **values)) == expected


def test_every_wrong_bit_behind_the_crc_is_found() -> None:
    batch = client_batch()
    for position in range(17, len(batch)):
        damaged = bytearray(batch)
        damaged[position] ^= 0x10
        assert refusal(bytes(damaged)) == Code.CORRUPT_MESSAGE
        assert not is_whole(bytes(damaged), read_header(damaged))
    assert is_whole(batch, read_header(batch))


def test_a_stamp_changes_the_first_bytes_only_and_copies_no_record() -> None:
    batch = client_batch([b"a", b"b"])
    stamped = stamp_batch(batch, inspect(batch), base_offset=1000, leader_epoch=7)
    data = b"".join(stamped.parts)
    assert data[:16] == struct.pack(">qii", 1000, len(batch) - 12, 7)
    assert data[16:] == batch[16:]
    assert isinstance(stamped.parts[1], memoryview)
    assert stamped.parts[1].obj is batch
    assert stamped.header == read_header(data)
    assert [record.offset for record in seen(data)] == [1000, 1001]


@given(st.lists(st.tuples(BYTES, BYTES), min_size=1, max_size=20))
def test_records_of_the_broker_are_read_by_others(records: list[tuple[bytes | None, bytes | None]]) -> None:
    batch = build_batch(encode_records(records), record_count=len(records), timestamp_ms=NOW_MS)
    assert [(record.key, record.value) for record in seen(batch)] == records
    header = read_header(batch)
    assert [(each.offset, each.timestamp_ms, each.key, each.value) for each in decode_records(batch, header)] == [
        (offset, NOW_MS, key, value) for offset, (key, value) in enumerate(records)
    ]


@pytest.mark.parametrize("commit", [True, False])
def test_an_end_marker_is_what_consumers_take_for_one(commit: bool) -> None:
    """KIP-98, "Control Records"."""
    batch = build_marker(EndMarker(5, 3, commit, coordinator_epoch=2), timestamp_ms=NOW_MS)
    (decoded,) = decode_record_batches(batch)
    assert decoded.marker == StoredMarker(commit, 2)
    assert (decoded.transactional, decoded.control, decoded.base_sequence) == (True, True, -1)
    (read,) = read_back(batch)
    assert read.is_control_batch
    assert read_marker(batch, read_header(batch)) == StoredMarker(commit, 2)


@pytest.mark.parametrize("codec", list(Compression)[1:])
def test_compressed_data_that_is_cut_off_anywhere_is_refused_by_both_readers(codec: Compression) -> None:
    """D13. Snappy has no end of its own and an empty zstd is nothing: there the number of records tells."""
    chance = random.Random(codec.value)
    section = encode_records([(b"%d" % n, chance.randbytes(250)) for n in range(300)])
    packed = bytes(memoryview(compress(pa.py_buffer(section), codec)))
    edges = {*range(40), *range(len(packed) - 40, len(packed))}
    for size in sorted(edges | {chance.randrange(len(packed)) for _ in range(100)}):
        batch = build_batch(packed[:size], record_count=300, timestamp_ms=NOW_MS, attributes=codec.value)
        with pytest.raises(BatchError) as caught:
            list(decode_records(batch, read_header(batch)))
        assert caught.value.code == Code.CORRUPT_MESSAGE
        (decoded,) = decode_record_batches(batch)
        with pytest.raises(RemoteProtocolError):
            list(decoded.records())
    whole_batch = build_batch(packed, record_count=300, timestamp_ms=NOW_MS, attributes=codec.value)
    assert len(list(decode_records(whole_batch, read_header(whole_batch)))) == 300
