"""Rows that will become records, in every layout of Arrow: sizes, cuts, refusals, digests, one by one or in columns."""

from __future__ import annotations

import mmap
import random
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, example, given, strategies as st
from kafka.record.util import encode_varint

from spark_2pc_sink.errors import LocalProtocolError, UnstorableValueError
from spark_2pc_sink.kafka.record_encoder import partition_for_key, partition_for_keys
from spark_2pc_sink.wire import record_batch
from spark_2pc_sink.wire.arrow_layout import (
    EncodedRows,
    Varints,
    as_binary,
    as_one_array,
    binary_array,
    binary_layout,
    chosen_rows,
    encode_varint_rows,
    fixed_rows,
    grouped_rows,
    joined_rows,
    spread_rows,
    varint_rows,
)
from spark_2pc_sink.wire.batch_format import (
    HEADER_BYTES,
    TRANSACTIONAL_BIT,
    encode_varint as our_varint,
    read_header,
    read_unsigned,
    read_varint,
    record_content,
)
from spark_2pc_sink.wire.record_batch import (
    COMPRESSED_BYTES_MIN,
    RECORD_BYTES,
    Compression,
    batch_digest,
    combine_digests,
    cut_contents,
    encode_listed_batch,
    encode_listed_batches,
    encode_sections,
    encode_unassigned_batch,
    format_digest,
)
from tests.harness.record_batches import section_of
from tests.unit.wire.rows import HEADERS_TYPE, LAYOUTS, Row, columns, rows
from tests.unit.wire.test_messages import ORDERS_0, ORDERS_3

#: Bytes by which a record may be smaller than it is taken for: an offset delta has 1 to 5, and with the longest of them
#: a record's length may take one more.
SLACK_BYTES = 5


def encoded(some: EncodedRows) -> bytes:
    """The records of one batch."""
    (section,) = encode_sections(some, [len(some)])
    return bytes(section.buffer.to_pybytes())


@given(rows(), st.sampled_from(sorted(LAYOUTS)))
def test_no_record_is_larger_than_it_is_taken_for_nor_much_smaller(some: list[Row], layout: str) -> None:
    counted = EncodedRows.of(*columns(some, layout=layout))
    alone = [len(encoded(counted.slice(row, row + 1))) for row in range(len(some))]
    slack = counted.sizes_max - np.asarray(alone, np.int64)
    assert ((slack >= 0) & (slack <= SLACK_BYTES)).all()
    assert counted.bytes_max == counted.sizes_max.sum()


@given(rows(), st.sampled_from(sorted(LAYOUTS)), st.data())
def test_rows_cut_and_joined_in_any_way_make_the_same_records(
    some: list[Row], layout: str, data: st.DataObject
) -> None:
    whole = EncodedRows.of(*columns(some, layout=layout))
    bounds = [0, *sorted(data.draw(st.lists(st.integers(0, len(some)), max_size=4))), len(some)]
    ranges = list(pairwise(bounds))
    parts = [whole.slice(start, stop) for start, stop in ranges]
    again = EncodedRows.joined(parts)
    assert again.layout == whole.layout
    assert again.sizes_max.tolist() == whole.sizes_max.tolist()
    assert encoded(again) == encoded(whole)
    for part, (start, stop) in zip(parts, ranges, strict=True):
        assert encoded(part) == section_of(*columns(some[start:stop])).buffer.to_pybytes()


@given(rows(min_size=1), st.integers(1, 30_000))
def test_parts_keep_to_the_bound_and_are_as_full_as_it_allows(some: list[Row], bytes_max: int) -> None:
    whole = EncodedRows.of(*columns(some))
    parts = whole.cut(bytes_max)
    assert encoded(EncodedRows.joined(parts)) == encoded(whole)
    stop = 0
    for part in parts:
        stop += len(part)
        assert len(encoded(part)) <= part.bytes_max <= bytes_max or len(part) == 1
        if stop < len(some):
            assert part.bytes_max + whole.sizes_max[stop] > bytes_max


@pytest.mark.parametrize("bytes_max", [500, 70_000, 200_000])
def test_the_bound_holds_where_offset_deltas_grow(bytes_max: int) -> None:
    """Offset deltas take two bytes from 64 on and three from 8192 on."""
    count = 30_000
    key = pa.array([b"k"] * count)
    parts = EncodedRows.of(key, pa.array([b"v" * (index % 5) for index in range(count)]), None).cut(bytes_max)
    assert max(len(encoded(part)) for part in parts) <= bytes_max
    assert sum(map(len, parts)) == count


def test_a_part_that_has_begun_takes_what_still_fits() -> None:
    three = EncodedRows.of(None, pa.array([b"a", b"bb", b"ccc"]), None)
    first = int(three.sizes_max[0])
    bound = three.bytes_max
    assert [len(part) for part in three.cut(bound, begun=bound - first)] == [1, 2]
    assert [len(part) for part in three.cut(bound, begun=bound - first + 1)] == [0, 3]


@pytest.mark.parametrize("which", ["key", "headers"])
def test_columns_of_different_length_are_refused(which: str) -> None:
    key = pa.array([b"k"] * (3 if which == "key" else 2))
    headers = pa.array([None] * (3 if which == "headers" else 2), HEADERS_TYPE)
    with pytest.raises(LocalProtocolError, match=f"3 rows of column '{which}', 2 of column 'value'"):
        EncodedRows.of(key, pa.array([b"v", b"w"]), headers)


@pytest.mark.parametrize(
    "kind",
    [
        pa.string(),
        pa.list_(pa.struct([("key", pa.string())])),
        pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())])),
    ],
    ids=str,
)
def test_headers_of_any_other_type_are_refused(kind: Any) -> None:
    with pytest.raises(LocalProtocolError, match="headers must be list<struct<key: string, value: binary>>"):
        EncodedRows.of(None, pa.array([b"v"]), pa.array([None], kind))


def test_a_header_value_that_is_not_bytes_is_refused() -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.int32())]))
    with pytest.raises(LocalProtocolError, match=r"headers\.value"):
        EncodedRows.of(None, pa.array([b"v"]), pa.array([None], kind))


@pytest.mark.parametrize("broken", [None, {"key": None, "value": b"x"}], ids=["null header", "null key"])
@pytest.mark.parametrize("key", [None, pa.array([b"k0", b"k1", b"k2"])], ids=["no key", "key"])
def test_a_header_without_a_key_is_refused_with_its_row(broken: Any, key: Any) -> None:
    good = {"key": "a", "value": None}
    headers = pa.array([[good], [good, broken], []], HEADERS_TYPE)
    with pytest.raises(UnstorableValueError) as raised:
        EncodedRows.of(key, pa.array([b"v"] * 3), headers)
    assert raised.value.row_key == ("number 1 of its Arrow batch" if key is None else "key=b'k1'")


@given(st.lists(rows(), max_size=5))
def test_several_sections_in_one_pass_are_those_of_each_alone(batches: list[list[Row]]) -> None:
    together = EncodedRows.of(*columns([row for some in batches for row in some]))
    sections = encode_sections(together, [len(some) for some in batches])
    assert len(sections) == len(batches)
    for some, section in zip(batches, sections, strict=True):
        alone = section_of(*columns(some))
        assert section.buffer.to_pybytes() == alone.buffer.to_pybytes()
        assert section.ends.tolist() == alone.ends.tolist()
        assert section.content_starts.tolist() == alone.content_starts.tolist()
        assert section.frame[HEADER_BYTES:] == alone.frame[HEADER_BYTES:] == section.buffer.to_pybytes()


@pytest.mark.parametrize(
    "kind",
    [pa.large_list(HEADERS_TYPE.value_type), pa.list_(pa.struct([("value", pa.binary()), ("key", pa.string())]))],
    ids=["large lists", "fields in another order"],
)
def test_headers_are_read(kind: Any) -> None:
    value, headers = pa.array([b"v"]), [[{"key": "h", "value": b"x"}]]
    expected = section_of(None, value, pa.array(headers, HEADERS_TYPE)).buffer
    assert section_of(None, value, pa.array(headers, kind)).buffer == expected


def test_rows_beyond_what_a_batch_can_hold_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound is that of an int32; a smaller one stands in for it here, the test below uses the real one."""
    key, value, headers = columns([(b"k" * 40, b"v" * 40, ())] * 3)
    size = len(section_of(key, value, headers).frame)
    monkeypatch.setattr(record_batch, "INT32_BYTES_MAX", size)
    section_of(key, value, headers)
    monkeypatch.setattr(record_batch, "INT32_BYTES_MAX", size - 1)
    with pytest.raises(LocalProtocolError, match=f"3 rows take {size} bytes"):
        section_of(key, value, headers)


def test_a_column_of_more_than_two_gibibytes_is_cut_and_encoded() -> None:
    """Offsets beyond 2^31 in a large_binary column neither wrap nor overflow, and the whole is refused as one batch."""
    row_bytes, row_count = 2**20, 2049
    content = mmap.mmap(-1, row_bytes * row_count)  # pages that nobody touches take no memory
    content[-4:] = b"last"
    offsets = np.arange(row_count + 1, dtype=np.int64) * row_bytes
    value = pa.Array.from_buffers(pa.large_binary(), row_count, [None, pa.py_buffer(offsets), pa.py_buffer(content)])
    with pytest.raises(LocalProtocolError, match="2049 rows take"):
        section_of(None, value, None)
    parts = EncodedRows.of(None, value, None).cut(4 * 2**20)
    assert sum(map(len, parts)) == row_count
    (tail,) = encode_sections(parts[-1], [len(parts[-1])])
    assert tail.buffer.to_pybytes().endswith(b"last\x00")


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
    batch = encode_listed_batch(ORDERS_0, contents, timestamp_ms=7, compression=compression)
    assert batch.payload == expected
    assert (batch.record_count, batch.digest) == (len(records), batch_digest("orders", section))


@pytest.mark.parametrize(("size", "compressed"), [(502, False), (503, True)])
def test_little_is_not_compressed(size: int, compressed: bool) -> None:
    """A record of 502 bytes takes 511 with what is around it."""
    contents = [record_content(None, bytes(size))]
    batch = encode_listed_batch(ORDERS_0, contents, timestamp_ms=7, compression="zstd")
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


def test_batches_are_cut_within_each_partition() -> None:
    """Each partition has batches of its own, in its order, of which none is too large for several records."""
    contents = {ORDERS_0: [bytes(30), b"b", b"c"], ORDERS_3: [b"d"]}
    found = encode_listed_batches(contents, bytes_max=30, timestamp_ms=7, compression="none", level=None)
    parts = [(ORDERS_0, contents[ORDERS_0][:1]), (ORDERS_0, [b"b", b"c"]), (ORDERS_3, [b"d"])]
    assert list(found) == [
        encode_listed_batch(partition, part, timestamp_ms=7, compression="none") for partition, part in parts
    ]


@given(keys=st.lists(st.binary(max_size=40), min_size=1), partitions=st.integers(1, 1_000))
def test_a_key_has_the_partition_that_it_has_in_a_column(keys: list[bytes], partitions: int) -> None:
    expected = partition_for_keys(pa.array(keys), partitions).tolist()
    assert [partition_for_key(key, partitions) for key in keys] == expected


def digest(some: list[Row], *, topic: str = "orders", layout: str = "plain") -> int:
    return batch_digest(topic, section_of(*columns(some, layout=layout)))


@given(rows(), st.integers(0, 2**32), st.sampled_from(sorted(LAYOUTS)))
def test_order_and_layout_do_not_matter(some: list[Row], seed: int, layout: str) -> None:
    shuffled = random.Random(seed).sample(some, len(some))
    assert digest(shuffled, layout=layout) == digest(some)


@given(rows(), st.data())
def test_digests_of_parts_add_up_to_that_of_the_whole(some: list[Row], data: st.DataObject) -> None:
    """A6: batches cut elsewhere, tasks that share rows otherwise: offset deltas and lengths of records change."""
    first = data.draw(st.integers(0, len(some)))
    second = data.draw(st.integers(first, len(some)))
    parts = [digest(part) for part in (some[:first], some[first:second], some[second:])]
    assert combine_digests(*parts) == digest(some)


@given(rows(max_size=5), rows(max_size=5))
def test_other_records_have_another_digest(some: list[Row], others: list[Row]) -> None:
    assume(sorted(map(repr, some)) != sorted(map(repr, others)))
    assert digest(some) != digest(others)


_BASE: Row = (b"ab", b"cd", (("h", b"x"),))


@pytest.mark.parametrize(
    "other",
    [
        (b"abc", b"d", (("h", b"x"),)),
        (b"cd", b"ab", (("h", b"x"),)),
        (None, b"cd", (("h", b"x"),)),
        (b"ab", None, (("h", b"x"),)),
        (b"ab", b"cd", (("h", None),)),
        (b"ab", b"cd", (("", b"hx"),)),
        (b"ab", b"cd", (("h", b"x"), ("h", b"x"))),
        (b"ab", b"cdh", (("", b"x"),)),
    ],
    ids=repr,
)
def test_bytes_that_move_and_values_that_become_null_are_seen(other: Row) -> None:
    assert digest([other]) != digest([_BASE])


def test_a_record_that_comes_twice_is_seen() -> None:
    """An exclusive or would cancel out: two copies would look like none."""
    assert len({digest([]), digest([_BASE]), digest([_BASE] * 2), digest([_BASE] * 3)}) == 4


def test_the_topic_counts() -> None:
    assert digest([_BASE], topic="orders") != digest([_BASE], topic="orders2")


def test_the_number_is_fixed() -> None:
    """State rows outlive releases: what this says must never change."""
    assert format_digest(digest([_BASE, (None, None, ())])) == "3e00bc1a7daae62920e2d14a708b83ce"


@given(
    st.lists(st.none() | st.binary(max_size=9), max_size=20),
    st.sampled_from(sorted(LAYOUTS)),
    st.sampled_from([pa.binary(), pa.large_binary(), pa.binary_view()]),
)
def test_every_layout_gives_the_bytes_of_its_rows(items: list[bytes | None], layout: str, kind: Any) -> None:
    column = pa.array(items, pa.binary())
    seen = binary_layout(as_binary(as_one_array(LAYOUTS[layout](column)).cast(kind), "key"))

    assert [bytes(seen.data[start : start + size]) for start, size in zip(seen.starts, seen.lengths, strict=True)] == [
        item or b"" for item in items
    ]
    assert (seen.valid is None) == (None not in items)
    if seen.valid is not None:
        assert seen.valid.tolist() == [item is not None for item in items]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()], ids=str)
def test_strings_are_their_utf8_bytes(kind: Any) -> None:
    assert as_binary(pa.array(["naïve", None, ""], kind), "key").to_pylist() == ["naïve".encode(), None, b""]


def test_a_column_that_is_not_bytes_is_refused_by_name() -> None:
    with pytest.raises(LocalProtocolError, match="'amount' as bytes in state Arrow type int64"):
        as_binary(pa.array([1]), "amount")


def test_chunks_beyond_the_bound_become_large_binary(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the test below, with a bound that needs no gigabytes."""
    short, long = (pa.chunked_array([[b"abc"], [b"d" * size]], pa.binary()) for size in (1, 4))
    monkeypatch.setattr("spark_2pc_sink.wire.arrow_layout.INT32_BYTES_MAX", short.nbytes)
    assert pa.types.is_binary(as_one_array(short).type)
    assert pa.types.is_large_binary(as_one_array(long).type)
    assert as_one_array(long).to_pylist() == [b"abc", b"dddd"]


def test_binary_array_takes_its_rows_from_the_offsets() -> None:
    data = np.frombuffer(b"abcd", np.uint8)
    assert binary_array(data, np.array([0, 1, 1, 4])).to_pylist() == [b"a", b"", b"bcd"]


INT32 = st.integers(-(2**31), 2**31 - 1)


def kafka_varint(number: int) -> bytes:
    written = bytearray()
    encode_varint(number, written.append)
    return bytes(written)


@given(st.lists(st.tuples(INT32, INT32), max_size=40))
@example([(64 if row % 2 else 8192, row) for row in range(40)])  # sizes change often, and none is a single byte
def test_rows_are_what_kafka_python_writes(numbers: list[tuple[int, int]]) -> None:
    columns = [np.array([pair[side] for pair in numbers], np.int64) for side in (0, 1)]
    data, offsets = encode_varint_rows([Varints.of(columns[0]), None, Varints.of(columns[1])], len(numbers))

    rows = [bytes(data[start:stop]) for start, stop in pairwise(offsets)]
    assert rows == [kafka_varint(left) + b"\x00" + kafka_varint(right) for left, right in numbers]


@pytest.mark.parametrize("bits", [6, 13, 20, 27])
def test_a_varint_grows_exactly_at_its_corners(bits: int) -> None:
    corners = np.array([2**bits - 1, 2**bits, -(2**bits), -(2**bits) - 1], np.int64)
    expected = [len(kafka_varint(int(corner))) for corner in corners]
    assert Varints.of(corners).sizes.tolist() == expected
    assert expected == [bits // 7 + 1, bits // 7 + 2, bits // 7 + 1, bits // 7 + 2]


@given(st.integers(-(2**63), 2**63 - 1))
def test_one_number_is_what_kafka_python_writes_and_reads_back(number: int) -> None:
    data = our_varint(number)
    assert data == kafka_varint(number)
    assert read_varint(b"x" + data + b"y", 1) == (number, 1 + len(data))


def test_a_varint_that_does_not_end_in_time_is_refused() -> None:
    assert read_unsigned(b"\xff\xff\xff\xff\x0f", 0, bytes_max=5) == (2**32 - 1, 5)
    with pytest.raises(IndexError, match="more than 5 bytes"):
        read_unsigned(b"\xff" * 9, 0, bytes_max=5)


ROWS = st.lists(st.binary(max_size=5), max_size=10)


def column(rows: list[bytes]) -> pa.Array:
    """A slice, with a row before and behind."""
    return pa.array([b"before", *rows, b"behind"], pa.large_binary()).slice(1, len(rows))


def plain_varint(number: int) -> bytes:
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*written, number])


@given(st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 300), max_size=20))
def test_unsigned_varints_have_64_bits(numbers: list[int]) -> None:
    found = varint_rows(Varints.of_unsigned(np.array(numbers, np.uint64)))
    assert found.to_pylist() == [plain_varint(number) for number in numbers]


@given(ROWS)
def test_pieces_are_joined(rows: list[bytes]) -> None:
    found = joined_rows([b"<", b"-", column(rows), b"|", column(rows), b">"], len(rows))
    assert found.to_pylist() == [b"<-" + row + b"|" + row + b">" for row in rows]
    assert binary_layout(found).lengths.tolist() == [2 * len(row) + 4 for row in rows]
    assert joined_rows([b"a", b"b"], len(rows)).to_pylist() == [b"ab"] * len(rows)


@given(ROWS, st.data())
def test_rows_are_spread(rows: list[bytes], data: st.DataObject) -> None:
    there = data.draw(st.permutations([True] * len(rows) + [False] * 3))
    left = iter(rows)
    expected = [next(left) if each else b"" for each in there]
    assert spread_rows(column(rows), np.array(there)).to_pylist() == expected


@given(st.lists(ROWS, max_size=5))
def test_rows_are_grouped(groups: list[list[bytes]]) -> None:
    rows = [row for group in groups for row in group]
    counts = np.array([len(group) for group in groups], np.int64)
    assert grouped_rows(column(rows), counts).to_pylist() == [b"".join(group) for group in groups]


def test_numbers_and_chosen_bytes() -> None:
    assert fixed_rows(np.array([1.5], "<f8")).to_pylist() == [b"\0\0\0\0\0\0\xf8?"]
    matrix = np.array([[1, 2, 3], [4, 5, 6]], np.uint8)
    chosen = np.array([[True, False, True], [False, False, True]])
    assert chosen_rows(matrix, chosen).to_pylist() == [b"\x01\x03", b"\x06"]
