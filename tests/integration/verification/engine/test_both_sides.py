"""What verify says of both sides of a sink: the same, or what differs, by name."""

from __future__ import annotations

from tests.integration.verification.written_sides import Sides, rows


def test_equal_sides_are_the_same(sides: Sides) -> None:
    for batch in range(3):
        sides.write(rows(batch * 100, 50))
    report = sides.verify()
    assert (report.verdict, report.records, report.rows, report.up_to) == ("same", 150, 150, 2), str(report)
    assert [(each.batch, each.found, each.digest_same, each.same) for each in report.batches] == [
        (number, 50, True, True) for number in range(3)
    ]
    assert report.columns == ("id", "name", "amount")
    assert report.not_checked == ()


def test_a_row_is_deleted_another_changed_and_one_added(sides: Sides) -> None:
    sides.write(rows(0, 50))
    sides.write(rows(100, 50))
    sides.sql("DELETE FROM target WHERE id = 7")
    sides.sql("UPDATE target SET amount = 99 WHERE id = 103")
    sides.sql("INSERT INTO target VALUES (5000, 'nobody', 1)")
    report = sides.verify()
    assert report.verdict == "different"
    assert report.counts == {"missing_in_table": 1, "differing": 1, "missing_in_kafka": 1}, str(report)
    missing, differing, foreign = report.differences
    assert (missing.key, missing.batch, missing.topic) == ("id=7", 0, sides.topic)
    assert missing.partition is not None
    assert missing.offset is not None
    assert (differing.key, differing.batch) == ("id=103", 1)
    assert differing.row is not None
    assert differing.row["amount"] == 99
    assert differing.text == "amount is 25.75 in Kafka and 99.00 in the table"
    assert foreign.key == "id=5000"


def test_rows_and_records_that_are_there_twice(sides: Sides) -> None:
    sides.sql("ALTER TABLE target DROP CONSTRAINT target_pkey")
    sides.write(rows(0, 20))
    sides.sql("INSERT INTO target SELECT * FROM target WHERE id = 3")
    report = sides.verify(keys=["id"])
    assert report.counts == {"twice": 1}, str(report)
    assert (report.differences[0].side, report.differences[0].key) == ("table", "id=3")


def test_a_record_of_another_producer_in_the_range_of_a_batch_and_behind_it(sides: Sides) -> None:
    sides.write(rows(0, 20))
    sides.send([("x", b'{"id": 900}')], transactional_id="other")
    sides.write(rows(100, 20))
    sides.send([(None, b"no JSON")], transactional_id="other")
    report = sides.verify()
    assert report.counts == {"gap": 2, "missing_in_table": 2}, str(report)
    assert {difference.batch for difference in report.differences if difference.kind == "missing_in_table"} == {None}
