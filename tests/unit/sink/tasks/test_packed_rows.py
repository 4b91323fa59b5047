"""Rows of several lanes in one column each, and the digest of those that have no records."""

from __future__ import annotations

from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_2pc_sink.sink.tasks.packed_rows import unpacked
from spark_2pc_sink.sink.tasks.row_digest import row_digest
from spark_2pc_sink.wire.digest import combine_digests

ROW = pa.struct([("id", pa.int64()), ("name", pa.string())])
_FIELDS = {"id": st.none() | st.integers(0, 9), "name": st.none() | st.text()}
_ROWS = st.lists(st.none() | st.fixed_dictionaries(_FIELDS))


@given(rows=_ROWS, cut=st.integers(0, 3))
def test_rows_that_a_lane_does_not_get_are_null(rows: list[dict[str, Any] | None], cut: int) -> None:
    column = pa.array(rows, ROW).slice(cut)
    assert unpacked(column).to_pylist() == [row for row in rows[cut:] if row is not None]


@given(lists=st.lists(st.none() | _ROWS), cut=st.integers(0, 3))
def test_rows_that_an_array_became_stand_one_behind_the_other(lists: list[Any], cut: int) -> None:
    column = pa.array(lists, pa.list_(ROW)).slice(cut)
    flat = [row for rows in lists[cut:] for row in rows or [] if row is not None]
    assert unpacked(column).to_pylist() == flat


VALUES = [
    ([1, None], pa.int32()),
    ([0, None], pa.int64()),
    ([True, None], pa.bool_()),
    ([0.0, None, 1.5, float("nan")], pa.float64()),
    (["", None, "a"], pa.string()),
    ([b"", None, b"a"], pa.binary()),
    ([date(1970, 1, 1), None, date(2026, 11, 24)], pa.date32()),
    ([datetime(1970, 1, 1, tzinfo=timezone.utc), None], pa.timestamp("us", "UTC")),
    ([Decimal("0.00"), None, Decimal("1.50")], pa.decimal128(9, 2)),
    ([[], None, [None], ["a"]], pa.list_(pa.string())),
]


@pytest.mark.parametrize(("values", "kind"), VALUES, ids=[str(kind) for _, kind in VALUES])
def test_each_value_has_a_digest_of_its_own(values: list[Any], kind: Any) -> None:
    """Null is no value, also beside one that is nothing."""
    found = {row_digest("t", pa.record_batch({"a": pa.array([value], kind)})) for value in values}
    assert len(found) == len(values)


def test_a_digest_is_that_of_the_rows_in_any_order_and_in_their_columns() -> None:
    rows = pa.record_batch({"a": pa.array([1, 2, None]), "b": pa.array([None, 2, 1])})
    apart = [row_digest("t", rows.slice(number, 1)) for number in (2, 0, 1)]
    assert row_digest("t", rows) == combine_digests(*apart)
    assert len(set(apart)) == 3
    assert row_digest("t", rows) != row_digest("u", rows)
    twice = pa.Table.from_batches([rows, rows]).combine_chunks().to_batches()[0]
    assert row_digest("t", twice) != row_digest("t", rows)
