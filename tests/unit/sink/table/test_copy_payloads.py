"""Binary forms that are made here, against the same made value by value with struct."""

from __future__ import annotations

import datetime as dt
import struct
import uuid
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_2pc_sink.sink.rows.copy_encoder import array_payload, timestamp_payload, uuid_payload

VARCHAR_OID = 1043


def naive_array(elements: list[str | None], *, nulls: bool) -> bytes:
    framed = b"".join(
        struct.pack(">i", -1) if text is None else struct.pack(">i", len(text.encode())) + text.encode()
        for text in elements
    )
    return struct.pack(">iiIii", 1, nulls, VARCHAR_OID, len(elements), 1) + framed


texts = st.none() | st.text("aü\x00", max_size=3)


@given(st.lists(st.none() | st.lists(texts, max_size=4), max_size=5), st.integers(0, 3), st.booleans())
def test_arrays_of_text(lists: list[list[str | None] | None], start: int, large: bool) -> None:
    whole = pa.array(lists, pa.large_list(pa.large_string()) if large else pa.list_(pa.string()))
    part = whole.slice(start)
    elements = pc.list_flatten(part)
    payload = array_payload(part, elements, element_oid=VARCHAR_OID)
    nulls = elements.null_count > 0
    assert payload.to_pylist() == [
        None if value is None else naive_array(value, nulls=nulls) for value in part.to_pylist()
    ]


def test_elements_of_a_null_list_are_passed_over() -> None:
    hiding = pa.ListArray.from_arrays(pa.array([0, 1, 3]), pa.array(["a", "b", "c"]), mask=pa.array([True, False]))
    payload = array_payload(hiding, pc.list_flatten(hiding), element_oid=VARCHAR_OID)
    assert payload.to_pylist() == [None, naive_array(["b", "c"], nulls=False)]


@given(st.lists(st.none() | st.datetimes(), max_size=5), st.integers(0, 2))
def test_timestamps(moments: list[dt.datetime | None], start: int) -> None:
    array: Any = pa.array(moments, pa.timestamp("us", tz="Europe/Berlin")).slice(start)
    epoch = dt.datetime(2000, 1, 1)  # noqa: DTZ001 - the difference is what counts
    expected = [
        None if moment is None else struct.pack(">q", (moment - epoch) // dt.timedelta(microseconds=1))
        for moment in moments[start:]
    ]
    assert timestamp_payload(array).to_pylist() == expected


@pytest.mark.parametrize("text_type", [pa.string(), pa.large_string()])
def test_uuids(text_type: Any) -> None:
    some = uuid.UUID("123E4567-E89B-12D3-A456-426614174000")
    array = pa.array(["gone", None, str(some), str(some).upper(), str(uuid.UUID(int=0))], text_type).slice(1)
    assert uuid_payload(array).to_pylist() == [None, some.bytes, some.bytes, bytes(16)]
