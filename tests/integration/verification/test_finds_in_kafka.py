"""Differences that somebody made in Kafka: verify names each with its batch, topic, partition and offset."""

from __future__ import annotations

import json

import pytest

from spark_2pc_sink.testing.local_broker import LocalBroker
from spark_2pc_sink.verification.report import Difference, VerifyReport
from tests.conftest import StartKafka
from tests.harness.damage import delete_records, lose_tail, produce
from tests.harness.written_pair import WrittenPair
from tests.integration.verification.conftest import BATCHES, MakePair

FOREIGN = (b"900000", json.dumps({"id": 900_000, "payload": "of another application"}).encode())


def of_kind(report: VerifyReport, kind: str) -> list[Difference]:
    return [difference for difference in report.differences if difference.kind == kind]


def end_of(pair: WrittenPair, batch: int, partition: int = 0) -> int:
    """The offset after the batch's last record; a commit marker is there."""
    return pair.offsets(batch)[partition][1] + 1


def test_records_of_another_producer(make_pair: MakePair) -> None:
    """Between two batches, and after the last one; in a transaction, and in none."""
    pair = make_pair(upsert=False)
    pair.write(*BATCHES[:2])
    produce(pair.broker, pair.topic, [FOREIGN, FOREIGN], partition=2)
    between = end_of(pair, 1, 2) + 1
    pair.write(*BATCHES[2:])
    end = end_of(pair, 3)
    produce(pair.broker, pair.topic, [(b"key", b"no JSON")], transactional_id=f"{pair.transactional_id}-another")
    report = pair.verify()
    assert report.verdict == "different"
    # The commit marker follows the batch's last record.
    expected = [(pair.topic, 0, end + 1, end + 1), (pair.topic, 2, between, between + 1)]
    gaps = of_kind(report, "gap")
    assert sorted((gap.topic, gap.partition, gap.offset, gap.last_offset) for gap in gaps) == expected, str(report)
    assert set(report.counts) <= {"gap", "missing_in_table"}
    assert {each.batch for each in of_kind(report, "missing_in_table")} == {None}


def test_a_log_that_lost_its_beginning(pair: WrittenPair) -> None:
    """As by retention: the first batch is gone, and of the second what one partition had."""
    before = {partition: first for partition, (first, _) in pair.offsets(1).items()}
    delete_records(pair.broker, pair.topic, before | {1: pair.offsets(1)[1][1] + 1})
    report = pair.verify()
    assert set(report.counts) == {"truncated", "missing_in_kafka"}, str(report)
    lost = {(0, partition): at for partition, at in pair.offsets(0).items()} | {(1, 1): pair.offsets(1)[1]}
    found = {
        (difference.batch, difference.partition): (difference.offset, difference.last_offset)
        for difference in of_kind(report, "truncated")
    }
    assert found == lost, str(report)
    if not pair.upsert:
        assert report.counts["missing_in_kafka"] == sum(last - first + 1 for first, last in lost.values())


def test_a_log_that_lost_its_end(start_kafka: StartKafka, make_pair: MakePair) -> None:
    """As where a leader fails that was ahead of its followers and its disk: two partitions lose the last batch."""
    broker = start_kafka()
    if not isinstance(broker, LocalBroker):
        pytest.skip("the files of a log can be cut where the broker is a local process")
    pair = make_pair(upsert=False, broker=broker)
    pair.write(*BATCHES)
    lost = {partition: first for partition, (first, _) in pair.offsets(3).items() if partition}
    rows = sum(last - first + 1 for partition, (first, last) in pair.offsets(3).items() if partition)
    lose_tail(broker, pair.topic, lost)
    report = pair.verify()
    assert report.verdict == "different"
    assert {(found.batch, found.partition) for found in of_kind(report, "truncated")} == {(3, 1), (3, 2)}, str(report)
    assert report.counts["missing_in_kafka"] == rows, str(report)
    assert {found.batch for found in report.differences if found.batch is not None} == {3}
