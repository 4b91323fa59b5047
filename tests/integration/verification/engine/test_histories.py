"""The history against the topics: what of a batch is gone, and what is there that no batch wrote."""

from __future__ import annotations

from confluent_kafka.admin import AdminClient, NewTopic

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
