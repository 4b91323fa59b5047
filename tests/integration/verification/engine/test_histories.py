"""The history against the topics: what of a batch is gone, what no batch wrote, and what a dead job left undone."""

from __future__ import annotations

from confluent_kafka import OFFSET_END
from confluent_kafka.admin import AdminClient, NewTopic

from tests.harness.damage import delete_records
from tests.integration.verification.written_sides import Sides, rows


def test_records_of_another_producer_inside_the_range_of_a_batch(sides: Sides) -> None:
    def interfere() -> None:
        sides.send(("0", {"id": 900}), transactional_id=f"{sides.transactional_id}-other")

    # Both have the key 0, so they are in one partition, one behind the other.
    row = {"id": 0, "name": "mine"}
    sides.sql("ALTER TABLE target DROP CONSTRAINT target_pkey")
    sides.write([row, row, row], between=interfere)
    report = sides.verify()
    assert report.counts == {"missing_in_table": 1, "batch_count": 1, "stranger": 1}, str(report)
    stranger = report.differences[-1]
    ((name, (first, _)),) = sides.batch_offsets[0].items()
    assert (f"{stranger.topic}-{stranger.partition}", stranger.batch) == (name, 0)
    assert first < (stranger.offset or 0) == stranger.last_offset
    assert [(each.records, each.found, each.same) for each in report.batches] == [(3, 4, False)]


def test_a_history_that_is_not_what_the_topics_hold(sides: Sides) -> None:
    sides.write(rows(0, 10))
    sides.write(rows(100, 10), count=9)
    sides.write(rows(200, 10))
    sides.sql("UPDATE kafka_transaction_state_history SET digest = repeat('0', 32) WHERE batch_id = 0")
    sides.sql("DELETE FROM kafka_transaction_state_history WHERE batch_id = 1")
    report = sides.verify()
    assert {kind: count for kind, count in report.counts.items() if kind != "gap"} == {"digest": 1}, str(report)
    # The batch that the history skips, and its records in each of two partitions.
    assert report.counts["gap"] == 3
    assert (report.rows, report.records) == (30, 30)


def test_a_topic_that_was_deleted_and_made_anew(sides: Sides) -> None:
    sides.write(rows(0, 10))
    client = AdminClient({"bootstrap.servers": sides.broker.bootstrap})
    client.delete_topics([sides.topic])[sides.topic].result()
    report = sides.verify()
    assert report.counts == {"topic_deleted": 1}, str(report)
    client.create_topics([NewTopic(sides.topic, 2, 1)])[sides.topic].result()
    sides.write(rows(100, 10))
    report = sides.verify()
    assert report.counts == {"topic_remade": 1, "missing_in_kafka": 10}, str(report)
    assert [each.same for each in report.batches] == [False, True]


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
