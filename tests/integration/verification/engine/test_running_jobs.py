"""verify after a job that has died in the middle of a batch."""

from __future__ import annotations

from confluent_kafka import OFFSET_END

from tests.harness.damage import delete_records
from tests.integration.verification.written_sides import Sides, rows


def test_a_batch_that_kafka_has_aborted_is_excluded_and_its_rows_are_not_foreign(sides: Sides) -> None:
    sides.write(rows(0, 20))
    sides.write(rows(100, 20), end="aborted")
    report = sides.verify()
    assert (report.verdict, report.up_to) == ("same", 0), str(report)
    assert [part.what for part in report.not_checked] == ["batch 1 against the history"]
    sides.sql("DELETE FROM target WHERE id IN (3, 105)")
    report = sides.verify()
    assert {(each.key, each.batch) for each in report.differences} == {("id=3", 0), ("id=105", 1)}


def test_a_batch_that_kafka_has_and_the_row_not_yet_is_compared(sides: Sides) -> None:
    sides.write(rows(0, 20))
    sides.write(rows(100, 20), end="committed")
    report = sides.verify()
    assert (report.verdict, report.up_to, report.rows) == ("same", 1, 40), str(report)
    # In doubt, and its log is gone: it has lost records.
    delete_records(sides.broker, sides.topic, {0: OFFSET_END, 1: OFFSET_END})
    for scope in ({}, {"batch": 1}):
        report = sides.verify(**scope)
        assert report.verdict == "different", str(report)
        assert {each.kind for each in report.differences if each.batch == 1} == {"truncated"}
