"""Records made from Arrow columns: where they lie, several batches in one pass, and what no batch can hold.

That the bytes are right is shown in test_record_batch.py, where other decoders read them.
"""

from __future__ import annotations

import mmap

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_2pc_sink.errors import LocalProtocolError
from spark_2pc_sink.wire import record_rows
from spark_2pc_sink.wire.batch_format import HEADER_BYTES
from spark_2pc_sink.wire.record_rows import Rows, encode_sections
from tests.harness.record_batches import section_of
from tests.unit.wire.rows import HEADERS_TYPE, Row, columns, rows


@given(rows(min_size=1))
def test_ends_and_content_starts_lie_where_the_records_do(some: list[Row]) -> None:
    section = section_of(*columns(some))
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
    together = Rows.of(*columns([row for some in batches for row in some]))
    sections = encode_sections(together, [len(some) for some in batches])
    assert len(sections) == len(batches)
    for some, section in zip(batches, sections, strict=True):
        alone = section_of(*columns(some))
        assert section.buffer.to_pybytes() == alone.buffer.to_pybytes()
        assert section.ends.tolist() == alone.ends.tolist()
        assert section.content_starts.tolist() == alone.content_starts.tolist()
        assert section.frame[HEADER_BYTES:] == alone.frame[HEADER_BYTES:] == section.buffer.to_pybytes()


def test_large_binary_and_binary_columns_mix() -> None:
    section = section_of(pa.array([b"k"], pa.large_binary()), pa.array([b"v"], pa.binary()), None)
    plain = section_of(pa.array([b"k"]), pa.array([b"v"]), None)
    assert section.buffer.to_pybytes() == plain.buffer.to_pybytes()


def test_headers_of_large_lists_are_read() -> None:
    headers = pa.array([[{"key": "h", "value": b"x"}]], HEADERS_TYPE)
    large = headers.cast(pa.large_list(HEADERS_TYPE.value_type))
    value = pa.array([b"v"])
    assert section_of(None, value, large).buffer == section_of(None, value, headers).buffer


def test_fields_of_a_header_are_found_by_name() -> None:
    turned = pa.list_(pa.struct([("value", pa.binary()), ("key", pa.string())]))
    headers = [[{"key": "h", "value": b"x"}]]
    value = pa.array([b"v"])
    expected = section_of(None, value, pa.array(headers, HEADERS_TYPE)).buffer
    assert section_of(None, value, pa.array(headers, turned)).buffer == expected


def test_rows_without_key_or_headers_are_those_with_null_ones() -> None:
    value = pa.array([b"v", None])
    nulls = section_of(pa.array([None, None], pa.binary()), value, pa.array([None, []], HEADERS_TYPE))
    assert section_of(None, value, None).buffer == nulls.buffer


def test_rows_beyond_what_a_batch_can_hold_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound is that of an int32; a smaller one stands in for it here, the test below uses the real one."""
    key, value, headers = columns([(b"k" * 40, b"v" * 40, ())] * 3)
    size = len(section_of(key, value, headers).frame)
    monkeypatch.setattr(record_rows, "INT32_BYTES_MAX", size)
    section_of(key, value, headers)
    monkeypatch.setattr(record_rows, "INT32_BYTES_MAX", size - 1)
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
    parts = Rows.of(None, value, None).cut(4 * 2**20)
    assert sum(map(len, parts)) == row_count
    (tail,) = encode_sections(parts[-1], [len(parts[-1])])
    assert tail.buffer.to_pybytes().endswith(b"last\x00")
