"""Bad rows: counted by their identity, however often and for how many reasons one was refused."""

from __future__ import annotations

from spark_2pc_sink.errors import ConstraintError, RecordRefusedError, RecordTooLargeError, UnstorableValueError
from spark_2pc_sink.sink.bad_rows.bad_row import BadRow, BadRows, LookedUpRow, RefusedRow

ONE, TWO = b"1" * 16, b"2" * 16


def refused(identity: bytes, number: int, reason: str = "why") -> RefusedRow:
    return RefusedRow(identity, number, "table t", reason, "23514")


def test_a_row_that_was_refused_for_several_reasons_counts_once() -> None:
    """The first reason is kept."""
    found = BadRows().with_refused([[refused(ONE, 1, "first"), refused(ONE, 1, "second"), refused(ONE, 2)]])
    assert (found.occurrences, found[ONE].reason) == (2, "first")


def test_what_a_later_sift_finds_comes_beside_what_is_left_out_already() -> None:
    """It has not seen those that were left out."""
    found = BadRows().with_refused([[refused(ONE, 1)]]).with_refused([[refused(ONE, 5), refused(TWO, 6)]])
    assert {identity: row.occurrences for identity, row in found.items()} == {ONE: 2, TWO: 1}
    assert found.occurrences == 3


def test_a_row_that_several_lanes_refuse_counts_once() -> None:
    """Their jobs number it in ways of their own."""
    found = BadRows().with_refused([[refused(ONE, 1)], [refused(ONE, 7), refused(ONE, 8), refused(TWO, 9)], []])
    assert {identity: row.occurrences for identity, row in found.items()} == {ONE: 2, TWO: 1}


def test_whether_equal_rows_stay_in_the_batch() -> None:
    """Only then they have to be counted."""
    found = BadRows().with_refused([[refused(ONE, 1), refused(TWO, 2)]])
    assert not found[ONE].all_of_them
    described = found.described([LookedUpRow(7, ONE, 2, '{"id":1}'), LookedUpRow(-8, TWO, 1, '{"id":2}')])
    assert (described[ONE].all_of_them, described[TWO].all_of_them) == (False, True)
    assert str(described[TWO]) == '{"id":2}, refused by table t: why [23514]'
    assert str(BadRow(ONE, 3, "topic t", "why")) == "3 times {}, refused by topic t: why"


def test_a_reason_is_what_is_wrong_with_the_row() -> None:
    """Not what its batch would need to hear."""
    check = ConstraintError(table="t", constraint="c", column="", sqlstate="23514", detail="violates check")
    value = UnstorableValueError(column="name", row_key="key=1", value="'a'", rule="it is too long")
    large = RecordTooLargeError(topic="t", partition=0, row_key="1", record_bytes=9, limit="at most 8")
    keyless = RecordRefusedError(topic="t", partition=0, record="value 1", reason="it needs a key")
    reasons = [RefusedRow.of(ONE, 0, "table t", error) for error in (check, value, large, keyless)]
    assert [(row.reason, row.sqlstate) for row in reasons] == [
        ("violates check", "23514"),
        ("column 'name': 'a' cannot be stored: it is too long", ""),
        ("its record has 9 bytes: at most 8", ""),
        ("it needs a key", ""),
    ]
