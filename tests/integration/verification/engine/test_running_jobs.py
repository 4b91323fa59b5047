"""verify after a job that has died in the middle of a batch."""

from __future__ import annotations

import json

from tests.integration.verification.written_sides import Sides, rows


def test_a_batch_that_kafka_has_and_the_row_not_yet_is_compared(sides: Sides) -> None:
    sides.write(rows(0, 20))
    sides.write(rows(100, 20), end="committed")
    report = sides.verify()
    assert (report.verdict, report.up_to, report.rows) == ("same", 1, 40), str(report)


def test_a_batch_that_kafka_has_aborted_is_excluded_and_its_rows_are_not_foreign(sides: Sides) -> None:
    sides.write(rows(0, 20))
    sides.write(rows(100, 20), end="aborted")
    report = sides.verify()
    assert (report.verdict, report.up_to) == ("same", 0), str(report)
    assert [part.what for part in report.not_checked] == ["batch 1 against the history"]
    sides.sql("DELETE FROM target WHERE id IN (3, 105)")
    report = sides.verify()
    assert {(each.key, each.batch) for each in report.differences} == {("id=3", 0), ("id=105", 1)}


def test_the_records_of_an_open_transaction_are_looked_for_in_the_table(sides: Sides) -> None:
    sides.write(rows(0, 20))
    sides.write(rows(100, 10), end="open")
    assert sides.verify(wait_ms=100).verdict == "same"
    for deleted, share, verdict in (
        ("false", "all", "same"),
        ("id = 100", "some", "different"),
        ("true", "none", "different"),
    ):
        sides.sql(f"DELETE FROM target WHERE {deleted}")
        report = sides.verify(open_transaction=True, wait_ms=100)
        found = report.open_transaction
        assert found is not None
        assert (found.share, found.records, report.verdict) == (share, 10, verdict), str(report)
        assert json.loads(json.dumps(report.as_json()))["open_transaction"]["share"] == share
    sides.open_producers.pop().abort_transaction(30)
    report = sides.verify(open_transaction=True, wait_ms=100)
    assert (report.verdict, report.open_transaction) == ("inconclusive", None)


def test_a_batch_in_doubt_whose_log_is_gone_has_lost_records(sides: Sides) -> None:
    sides.write(rows(0, 20))
    sides.write(rows(100, 20), end="committed")
    sides.delete_records()
    for scope in ({}, {"batch": 1}):
        report = sides.verify(**scope)
        assert report.verdict == "different", str(report)
        assert {each.kind for each in report.differences if each.batch == 1} == {"truncated"}
