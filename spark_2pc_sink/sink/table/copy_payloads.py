"""The COPY payloads of values that pgpq has no encoder for, as Arrow binary arrays.

pgpq writes a binary column as it is, behind its length. So what it cannot encode itself travels as a binary column
that already holds the bytes which the type's receive function expects (``uuid_recv``, ``array_recv``).

pgpq names an element type by itself in an array: ``text[]`` and ``timestamp[]``, never ``varchar[]`` or
``timestamptz[]``, and PostgreSQL refuses an array of another element type than the column's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_2pc_sink.sink.table.value_checks import text_bytes

#: Element types (pg_type.oid) that pgpq names in arrays: bool, bytea, int8, int2, int4, text, float4, float8, date,
#: time, timestamp, interval, numeric.
PGPQ_ELEMENT_OIDS = frozenset({16, 17, 20, 21, 23, 25, 700, 701, 1082, 1083, 1114, 1186, 1700})

# Microseconds from 1970-01-01, Arrow's and Spark's epoch, to 2000-01-01, PostgreSQL's.
_POSTGRES_EPOCH_MICROSECONDS = 946_684_800_000_000
_UUID_BYTES = 16
_NIL_UUID = "00000000-0000-0000-0000-000000000000"
# array_recv: dimensions, flag for nulls, element type; then of each dimension its length and lower bound.
_ARRAY_HEADER = np.dtype(
    [("dimensions", ">i4"), ("nulls", ">i4"), ("element", ">u4"), ("length", ">i4"), ("lower", ">i4")]
)


def uuid_payload(texts: Any) -> Any:
    """The 16 bytes of each uuid.

    Args:
        texts: string or large_string array; all values canonical, see `UUID_TEXT`.
    """
    digits = text_bytes(pc.replace_substring(texts.fill_null(_NIL_UUID), "-", ""))
    width = pa.binary(_UUID_BYTES)
    payload = pa.Array.from_buffers(width, len(texts), [None, pa.py_buffer(bytes.fromhex(digits.tobytes().decode()))])
    return payload if texts.null_count == 0 else pc.if_else(texts.is_valid(), payload, pa.scalar(None, width))


def timestamp_payload(timestamps: Any) -> Any:
    """The 8 bytes of each timestamp, as ``timestamptz_recv`` reads them: microseconds since 2000-01-01 UTC.

    Args:
        timestamps: timestamp[us] array of any zone, checked to be in PostgreSQL's range.
    """
    microseconds = timestamps.view(pa.int64()).fill_null(_POSTGRES_EPOCH_MICROSECONDS).to_numpy(zero_copy_only=False)
    data = (microseconds - _POSTGRES_EPOCH_MICROSECONDS).astype(">i8").tobytes()
    width = pa.binary(8)
    payload = pa.Array.from_buffers(width, len(timestamps), [None, pa.py_buffer(data)])
    return payload if timestamps.null_count == 0 else pc.if_else(timestamps.is_valid(), payload, pa.scalar(None, width))


def array_payload(lists: Any, elements: Any, *, element_oid: int) -> Any:
    """The binary form of one-dimensional arrays.

    Args:
        lists: list or large_list array; its values are not looked at.
        elements: the payloads of all elements, as ``lists.flatten()`` orders them; null for a null element.
        element_oid: the element type of the column.

    Returns:
        A large_binary array with a value for each list, null for a null list.
    """
    framed = _framed(elements)
    ends = np.cumsum(pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False), dtype=np.int64)
    element_offsets = np.frombuffer(framed.buffers()[1], np.int64)[framed.offset :]
    bodies = pa.Array.from_buffers(
        pa.large_binary(),
        len(lists),
        [None, pa.py_buffer(element_offsets[np.concatenate(([0], ends)).astype(np.int64)]), framed.buffers()[2]],
    )
    whole = pc.binary_join_element_wise(_headers(ends, elements, element_oid), bodies, _nothing())
    return whole if lists.null_count == 0 else pc.if_else(lists.is_valid(), whole, pa.scalar(None, pa.large_binary()))


def _headers(ends: Any, elements: Any, element_oid: int) -> Any:
    headers = np.zeros(len(ends), _ARRAY_HEADER)
    headers["dimensions"] = 1
    headers["nulls"] = elements.null_count > 0
    headers["element"] = element_oid
    headers["length"] = np.diff(ends, prepend=0)
    headers["lower"] = 1
    return _fixed(headers.tobytes(), _ARRAY_HEADER.itemsize, len(ends))


def _framed(elements: Any) -> Any:
    """Each element behind its length; -1 and nothing for null."""
    payloads = elements.cast(pa.large_binary())
    lengths = pc.fill_null(pc.binary_length(payloads), -1).to_numpy(zero_copy_only=False).astype(">i4")
    prefixes = _fixed(lengths.tobytes(), lengths.itemsize, len(payloads))
    return pc.binary_join_element_wise(prefixes, payloads.fill_null(b""), _nothing())


def _fixed(data: bytes, width: int, count: int) -> Any:
    return pa.Array.from_buffers(pa.binary(width), count, [None, pa.py_buffer(data)]).cast(pa.large_binary())


def _nothing() -> Any:
    return pa.scalar(b"", pa.large_binary())
