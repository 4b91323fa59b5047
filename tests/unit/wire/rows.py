"""Rows for the tests of this folder: as Python values, and as Arrow columns in every layout that Arrow allows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
from hypothesis import strategies as st

Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]
Row: TypeAlias = tuple[bytes | None, bytes | None, Headers]

HEADERS_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


class Filled(bytes):
    """Many equal bytes, shown in the space of a few: Hypothesis refuses to print kilobytes."""

    def __repr__(self) -> str:
        return f"{bytes(self[:1])!r} * {len(self)}"


# Lengths on both sides of the points where a varint grows by a byte: 2^6 and 2^13.
_contents = st.one_of(
    st.binary(max_size=12),
    st.builds(
        lambda size, byte: Filled(bytes([byte]) * size),
        st.sampled_from([62, 63, 64, 65, 8190, 8192]),
        st.integers(0, 255),
    ),
)
_headers = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=70)), max_size=3).map(tuple)


def rows(*, max_size: int = 30, min_size: int = 0) -> st.SearchStrategy[list[Row]]:
    """Any rows: nulls, empty values, lengths round the corners, headers."""
    return st.lists(
        st.tuples(st.none() | _contents, st.none() | _contents, _headers), min_size=min_size, max_size=max_size
    )


def columns(rows: Sequence[Row], *, layout: str = "plain", binary: Any = None) -> tuple[Any, Any, Any]:
    """Key, value and headers of ``rows`` as Arrow columns, in one of `LAYOUTS`."""
    kind = pa.binary() if binary is None else binary
    lists = [None if not headers and index % 2 else [{"key": k, "value": v} for k, v in headers]
             for index, (_, _, headers) in enumerate(rows)]  # fmt: skip
    arrays = (
        pa.array([row[0] for row in rows], kind),
        pa.array([row[1] for row in rows], kind),
        pa.array(lists, HEADERS_TYPE),
    )
    key, value, headers = (LAYOUTS[layout](array) for array in arrays)
    return key, value, headers


def _sliced(array: Any) -> Any:
    junk = [b"junk before"] if not pa.types.is_list(array.type) else [[{"key": "junk", "value": b"j"}]]
    around = pa.array(junk * 3, array.type)
    return pa.concat_arrays([around, array, around])[3 : 3 + len(array)]


def _null_rows_span_bytes(array: Any) -> Any:
    """The same column, its null rows spanning bytes or headers, which Arrow's format permits."""
    if not array.null_count:
        return array
    fill = [{"key": "hidden", "value": b"h"}] if pa.types.is_list(array.type) else b"hidden"
    filled = pa.array([fill if item is None else item for item in array.to_pylist()], array.type)
    validity = array.buffers()[0]
    if pa.types.is_list(array.type):
        return pa.Array.from_buffers(array.type, len(array), [validity, filled.buffers()[1]], children=[filled.values])
    return pa.Array.from_buffers(array.type, len(array), [validity, *filled.buffers()[1:]])


def _chunked(array: Any) -> Any:
    half = len(array) // 2
    return pa.chunked_array([array[:half], array[half:]], array.type)


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "plain": lambda array: array,
    "sliced": _sliced,
    "null rows span bytes": _null_rows_span_bytes,
    "chunked": _chunked,
    "one chunk": lambda array: pa.chunked_array([array]),
    "no chunks": lambda array: pa.chunked_array([], array.type) if len(array) == 0 else array,
}
