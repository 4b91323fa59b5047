"""Rows that will become records: how large they are, cut and put together, and what is refused."""

from __future__ import annotations

import mmap
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_2pc_sink.errors import LocalProtocolError, UnstorableValueError
from spark_2pc_sink.wire import record_batch
from spark_2pc_sink.wire.arrow_layout import EncodedRows
from spark_2pc_sink.wire.batch_format import HEADER_BYTES
from spark_2pc_sink.wire.record_batch import encode_sections
from tests.harness.record_batches import section_of
from tests.unit.wire.rows import HEADERS_TYPE, LAYOUTS, Row, columns, rows

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
