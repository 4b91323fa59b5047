"""Rows in COPY bytes: any range of them can be taken."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_2pc_sink.errors import LocalProtocolError
from spark_2pc_sink.sink.bad_rows.bad_row import IDENTITY, NUMBER, WINS, RowNames, fingerprint_bytes, fingerprint_of
from spark_2pc_sink.sink.bad_rows.table_sift import CopyRows, SiftedPart

FIELDS = st.lists(st.one_of(st.none(), st.binary(max_size=20)), min_size=1, max_size=4)


def encoded(row: list[bytes | None]) -> bytes:
    """A tuple of PostgreSQL's documentation of COPY BINARY."""
    fields = (struct.pack("!i", -1) if field is None else struct.pack("!i", len(field)) + field for field in row)
    return struct.pack("!h", len(row)) + b"".join(fields)


@given(st.lists(FIELDS, min_size=1, max_size=12), st.data())
def test_every_range_of_rows_can_be_taken(rows: list[list[bytes | None]], data: st.DataObject) -> None:
    """Nulls and empty values too."""
    tuples = [encoded(row) for row in rows]
    copy_rows = CopyRows(b"".join(tuples), len(rows))
    start = data.draw(st.integers(0, len(rows)))
    stop = data.draw(st.integers(start, len(rows)))
    assert b"".join(copy_rows.between(start, stop)) == b"".join(tuples[start:stop])


def test_other_rows_than_were_promised_are_refused() -> None:
    """Names would be those of other rows."""
    with pytest.raises(LocalProtocolError, match="COPY bytes of 1 rows"):
        CopyRows(encoded([b"x"]), 3).between(0, 1)


def test_a_part_keeps_the_names_of_its_rows() -> None:
    """And so does one of its rows by itself."""
    identity = pa.array([bytes([number]) * 16 for number in range(3)], pa.binary())
    columns = [identity, pa.array([-1, 0, 1], pa.int64()), pa.array([True, True, False])]
    names = RowNames.of(pa.RecordBatch.from_arrays(columns, [IDENTITY, NUMBER, WINS]))
    stream = b"".join(encoded([bytes([number])]) for number in range(3))
    part, again = SiftedPart.all_of(memoryview(names.packed(stream) * 2))
    assert again.names == names
    assert part.names == names
    assert [names[row] for row in range(3)] == [(bytes([number]) * 16, number - 1) for number in range(3)]
    assert (names.all_win, names.winners, names.between(0, 2).all_win) == (False, [0, 1], True)
    assert b"".join(part.rows.between(0, 3)) == stream
    some = part.only([0, 2])
    assert [some.names[row] for row in range(2)] == [names[0], names[2]]
    assert some.names.winners == [0]
    assert len(part.only([]).names) == 0
    assert b"".join(some.rows.between(1, 2)) == encoded([b"\x02"])


def test_fingerprints_are_names_too() -> None:
    """Of the smallest number and the largest; and an Arrow batch may begin anywhere in its columns."""
    fingerprints = [-(2**63), -1, 0, 2**63 - 1]
    columns = [pa.array(fingerprints, pa.int64()), pa.array(range(4), pa.int64()), pa.array([True] * 4)]
    names = RowNames.of(pa.RecordBatch.from_arrays(columns, [IDENTITY, NUMBER, WINS]).slice(1))
    [(unpacked, rest)] = RowNames.unpack(memoryview(names.packed(b"rest")))
    assert (unpacked, rest) == (names, b"rest")
    found = [unpacked[row] for row in range(3)]
    assert [(fingerprint_of(name), number) for name, number in found] == list(
        zip(fingerprints[1:], range(1, 4), strict=True)
    )
    assert [name for name, _ in found] == [fingerprint_bytes(number) for number in fingerprints[1:]]
