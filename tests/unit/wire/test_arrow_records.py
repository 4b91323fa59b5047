"""Records made from Arrow columns: exact sizes, cutting into batches, and what is refused.

That the bytes are right is shown in test_record_batch.py, where other decoders read them.
"""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_2pc_sink.errors import LocalProtocolError, UnstorableValueError
from spark_2pc_sink.wire import arrow_records
from spark_2pc_sink.wire.arrow_records import (
    BATCH_HEADER_BYTES,
    encode_records,
    encode_sections,
    record_sizes,
    split_rows,
)
from tests.unit.wire.rows import HEADERS_TYPE, LAYOUTS, Row, columns, rows


def sliced(all_columns: tuple[Any, Any, Any], start: int, stop: int) -> tuple[Any, Any, Any]:
    key, value, headers = (column[start:stop] for column in all_columns)
    return key, value, headers


@given(rows(), st.sampled_from(sorted(LAYOUTS)))
def test_a_size_is_that_of_the_row_alone_in_a_batch(some: list[Row], layout: str) -> None:
    all_columns = columns(some, layout=layout)
    sizes = record_sizes(*all_columns)
    alone = [encode_records(*sliced(all_columns, row, row + 1)).buffer.size for row in range(len(some))]
    assert sizes.tolist() == alone


@given(rows(min_size=1), st.integers(1, 30_000))
def test_batches_keep_to_the_bound_and_are_as_full_as_they_can_be(some: list[Row], bytes_max: int) -> None:
    all_columns = columns(some)
    ranges = split_rows(record_sizes(*all_columns), bytes_max)

    assert [start for start, _ in ranges] == [0, *(stop for _, stop in ranges[:-1])]
    assert ranges[-1][1] == len(some)
    for start, stop in ranges:
        size = encode_records(*sliced(all_columns, start, stop)).buffer.size
        assert size <= bytes_max or stop == start + 1
        if stop < len(some):
            assert encode_records(*sliced(all_columns, start, stop + 1)).buffer.size > bytes_max


@pytest.mark.parametrize("bytes_max", [500, 64 * 8, 70_000, 70_001, 200_000])
def test_batches_are_exact_where_offset_deltas_grow(bytes_max: int) -> None:
    """Offset deltas take two bytes from 64 on and three from 8192 on: the bound must hold to the byte."""
    count = 30_000
    key = pa.array([b"k"] * count)
    value = pa.array([b"v" * (index % 5) for index in range(count)])
    ranges = split_rows(record_sizes(key, value, None), bytes_max)

    for start, stop in ranges[:20]:
        assert encode_records(key[start:stop], value[start:stop], None).buffer.size <= bytes_max
        if stop < count:
            assert encode_records(key[start : stop + 1], value[start : stop + 1], None).buffer.size > bytes_max
    assert sum(stop - start for start, stop in ranges) == count


def test_a_row_beyond_the_bound_goes_alone_and_shows_its_size() -> None:
    value = pa.array([b"a", b"b" * 500, b"c", b"d"])
    sizes = record_sizes(None, value, None)
    assert split_rows(sizes, 100) == [(0, 1), (1, 2), (2, 4)]
    assert sizes[1] > 500


def test_no_rows_make_no_batches() -> None:
    key, value, headers = columns([])
    assert split_rows(record_sizes(key, value, headers), 100) == []
    section = encode_records(key, value, headers)
    assert (section.record_count, section.buffer.size) == (0, 0)


@given(rows(min_size=1))
def test_ends_and_content_starts_lie_where_the_records_do(some: list[Row]) -> None:
    section = encode_records(*columns(some))
    assert section.ends[-1] == section.buffer.size
    assert (np.diff(section.ends) > 0).all()
    data = section.buffer.to_pybytes()
    for (key, _, _), start, end in zip(some, section.content_starts, section.ends, strict=True):
        content = data[start:end]
        if key is None:
            assert content.startswith(b"\x01")
        else:
            prefix = 1 + (len(key) >= 2**6) + (len(key) >= 2**13)
            assert content[prefix:].startswith(key)


@given(st.lists(rows(), max_size=5))
def test_several_sections_in_one_pass_are_those_of_each_alone(batches: list[list[Row]]) -> None:
    sections = encode_sections(*columns([row for some in batches for row in some]), [len(some) for some in batches])
    assert len(sections) == len(batches)
    for some, section in zip(batches, sections, strict=True):
        alone = encode_records(*columns(some))
        assert section.buffer.to_pybytes() == alone.buffer.to_pybytes()
        assert section.ends.tolist() == alone.ends.tolist()
        assert section.content_starts.tolist() == alone.content_starts.tolist()
        assert section.frame[BATCH_HEADER_BYTES:] == alone.frame[BATCH_HEADER_BYTES:] == section.buffer.to_pybytes()


def test_large_binary_and_binary_columns_mix() -> None:
    section = encode_records(pa.array([b"k"], pa.large_binary()), pa.array([b"v"], pa.binary()), None)
    plain = encode_records(pa.array([b"k"]), pa.array([b"v"]), None)
    assert section.buffer.to_pybytes() == plain.buffer.to_pybytes()


def test_headers_of_large_lists_are_read() -> None:
    headers = pa.array([[{"key": "h", "value": b"x"}]], HEADERS_TYPE)
    large = headers.cast(pa.large_list(HEADERS_TYPE.value_type))
    value = pa.array([b"v"])
    assert encode_records(None, value, large).buffer == encode_records(None, value, headers).buffer


def test_fields_of_a_header_are_found_by_name() -> None:
    turned = pa.list_(pa.struct([("value", pa.binary()), ("key", pa.string())]))
    headers = [[{"key": "h", "value": b"x"}]]
    value = pa.array([b"v"])
    expected = encode_records(None, value, pa.array(headers, HEADERS_TYPE)).buffer
    assert encode_records(None, value, pa.array(headers, turned)).buffer == expected


def test_rows_without_key_or_headers_are_those_with_null_ones() -> None:
    value = pa.array([b"v", None])
    nulls = encode_records(pa.array([None, None], pa.binary()), value, pa.array([None, []], HEADERS_TYPE))
    assert encode_records(None, value, None).buffer == nulls.buffer


@pytest.mark.parametrize("which", ["key", "headers"])
def test_columns_of_different_length_are_refused(which: str) -> None:
    key = pa.array([b"k"] * (3 if which == "key" else 2))
    headers = pa.array([None] * (3 if which == "headers" else 2), HEADERS_TYPE)
    with pytest.raises(LocalProtocolError, match=f"3 rows of column '{which}', 2 of column 'value'"):
        encode_records(key, pa.array([b"v", b"w"]), headers)


@pytest.mark.parametrize(
    "kind",
    [
        pa.string(),
        pa.list_(pa.string()),
        pa.list_(pa.struct([("key", pa.string())])),
        pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())])),
        pa.map_(pa.string(), pa.binary()),
    ],
    ids=str,
)
def test_headers_of_any_other_type_are_refused(kind: Any) -> None:
    with pytest.raises(LocalProtocolError, match="headers are list<struct<key: string, value: binary>>"):
        record_sizes(None, pa.array([b"v"]), pa.array([None], kind))


def test_a_header_value_that_is_not_bytes_is_refused() -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.int32())]))
    with pytest.raises(LocalProtocolError, match=r"headers\.value"):
        record_sizes(None, pa.array([b"v"]), pa.array([None], kind))


@pytest.mark.parametrize("broken", [None, {"key": None, "value": b"x"}], ids=["null header", "null key"])
@pytest.mark.parametrize("key", [None, pa.array([b"k0", b"k1", b"k2"])], ids=["no key", "key"])
def test_a_header_without_a_key_is_refused_with_its_row(broken: Any, key: Any) -> None:
    good = {"key": "a", "value": None}
    headers = pa.array([[good], [good, broken], []], HEADERS_TYPE)
    with pytest.raises(UnstorableValueError) as raised:
        encode_records(key, pa.array([b"v"] * 3), headers)
    assert raised.value.row_key == ("in row 1" if key is None else "b'k1'")


def test_rows_beyond_what_a_batch_can_hold_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound is that of an int32; a smaller one stands in for it here, the test below uses the real one."""
    key, value, headers = columns([(b"k" * 40, b"v" * 40, ())] * 3)
    size = len(encode_records(key, value, headers).frame)
    monkeypatch.setattr(arrow_records, "INT32_BYTES_MAX", size)
    encode_records(key, value, headers)
    monkeypatch.setattr(arrow_records, "INT32_BYTES_MAX", size - 1)
    with pytest.raises(LocalProtocolError, match=f"3 rows take {size} bytes"):
        encode_records(key, value, headers)


def test_a_column_of_more_than_two_gibibytes_is_cut_and_encoded() -> None:
    """Offsets beyond 2^31 in a large_binary column neither wrap nor overflow, and the whole is refused as one batch."""
    row_bytes, row_count = 2**20, 2049
    content = mmap.mmap(-1, row_bytes * row_count)  # pages that nobody touches take no memory
    content[-4:] = b"last"
    offsets = np.arange(row_count + 1, dtype=np.int64) * row_bytes
    value = pa.Array.from_buffers(pa.large_binary(), row_count, [None, pa.py_buffer(offsets), pa.py_buffer(content)])
    sizes = record_sizes(None, value, None)
    with pytest.raises(LocalProtocolError, match="2049 rows take"):
        encode_records(None, value, None)
    start, stop = split_rows(sizes, 4 * 2**20)[-1]
    tail = encode_records(None, value[start:stop], None).buffer.to_pybytes()
    assert stop == row_count
    assert tail.endswith(b"last\x00")
