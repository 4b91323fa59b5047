"""Rows that will become records: how large they are, cut and put together, and what is refused."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_2pc_sink.errors import LocalProtocolError, UnstorableValueError
from spark_2pc_sink.wire.record_rows import Rows, encode_sections
from tests.harness.record_batches import section_of
from tests.unit.wire.rows import HEADERS_TYPE, LAYOUTS, Row, columns, rows

#: Bytes by which a record may be smaller than it is taken for: an offset delta has 1 to 5, and with the longest of them
#: a record's length may take one more.
SLACK_BYTES = 5


def encoded(some: Rows) -> bytes:
    """The records of one batch."""
    (section,) = encode_sections(some, [len(some)])
    return bytes(section.buffer.to_pybytes())


@given(rows(), st.sampled_from(sorted(LAYOUTS)))
def test_no_record_is_larger_than_it_is_taken_for_nor_much_smaller(some: list[Row], layout: str) -> None:
    counted = Rows.of(*columns(some, layout=layout))
    alone = [len(encoded(counted.slice(row, row + 1))) for row in range(len(some))]
    slack = counted.sizes_max - np.asarray(alone, np.int64)
    assert ((slack >= 0) & (slack <= SLACK_BYTES)).all()
    assert counted.bytes_max == counted.sizes_max.sum()


@given(rows(), st.sampled_from(sorted(LAYOUTS)), st.data())
def test_rows_cut_and_joined_in_any_way_make_the_same_records(
    some: list[Row], layout: str, data: st.DataObject
) -> None:
    whole = Rows.of(*columns(some, layout=layout))
    bounds = [0, *sorted(data.draw(st.lists(st.integers(0, len(some)), max_size=4))), len(some)]
    ranges = list(pairwise(bounds))
    parts = [whole.slice(start, stop) for start, stop in ranges]
    again = Rows.joined(parts)
    assert again.layout == whole.layout
    assert again.sizes_max.tolist() == whole.sizes_max.tolist()
    assert encoded(again) == encoded(whole)
    for part, (start, stop) in zip(parts, ranges, strict=True):
        assert encoded(part) == section_of(*columns(some[start:stop])).buffer.to_pybytes()


@given(rows(min_size=1), st.integers(1, 30_000))
def test_parts_keep_to_the_bound_and_are_as_full_as_it_allows(some: list[Row], bytes_max: int) -> None:
    whole = Rows.of(*columns(some))
    parts = whole.cut(bytes_max)
    assert encoded(Rows.joined(parts)) == encoded(whole)
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
    parts = Rows.of(key, pa.array([b"v" * (index % 5) for index in range(count)]), None).cut(bytes_max)
    assert max(len(encoded(part)) for part in parts) <= bytes_max
    assert sum(map(len, parts)) == count


def test_rows_fit_a_bound_to_the_byte() -> None:
    three = Rows.of(None, pa.array([b"a", b"bb", b"ccc"]), None)
    assert [len(part) for part in three.cut(three.bytes_max)] == [3]
    assert [len(part) for part in three.cut(three.bytes_max - 1)] == [2, 1]


def test_a_part_that_has_begun_takes_what_still_fits() -> None:
    three = Rows.of(None, pa.array([b"a", b"bb", b"ccc"]), None)
    first = int(three.sizes_max[0])
    bound = three.bytes_max
    assert [len(part) for part in three.cut(bound, begun=bound - first)] == [1, 2]
    assert [len(part) for part in three.cut(bound, begun=bound - first + 1)] == [0, 3]


def test_a_row_beyond_the_bound_goes_alone_and_shows_its_size() -> None:
    parts = Rows.of(None, pa.array([b"a", b"b" * 500, b"c", b"d"]), None).cut(100)
    assert [len(part) for part in parts] == [1, 1, 2]
    assert parts[1].bytes_max > 500


def test_no_rows_make_no_parts() -> None:
    nothing = Rows.of(*columns([]))
    assert nothing.cut(100) == []
    assert encoded(nothing) == b""


@pytest.mark.parametrize("which", ["key", "headers"])
def test_columns_of_different_length_are_refused(which: str) -> None:
    key = pa.array([b"k"] * (3 if which == "key" else 2))
    headers = pa.array([None] * (3 if which == "headers" else 2), HEADERS_TYPE)
    with pytest.raises(LocalProtocolError, match=f"3 rows of column '{which}', 2 of column 'value'"):
        Rows.of(key, pa.array([b"v", b"w"]), headers)


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
        Rows.of(None, pa.array([b"v"]), pa.array([None], kind))


def test_a_header_value_that_is_not_bytes_is_refused() -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.int32())]))
    with pytest.raises(LocalProtocolError, match=r"headers\.value"):
        Rows.of(None, pa.array([b"v"]), pa.array([None], kind))


@pytest.mark.parametrize("broken", [None, {"key": None, "value": b"x"}], ids=["null header", "null key"])
@pytest.mark.parametrize("key", [None, pa.array([b"k0", b"k1", b"k2"])], ids=["no key", "key"])
def test_a_header_without_a_key_is_refused_with_its_row(broken: Any, key: Any) -> None:
    good = {"key": "a", "value": None}
    headers = pa.array([[good], [good, broken], []], HEADERS_TYPE)
    with pytest.raises(UnstorableValueError) as raised:
        Rows.of(key, pa.array([b"v"] * 3), headers)
    assert raised.value.row_key == ("number 1 of its Arrow batch" if key is None else "key=b'k1'")
