"""Differences that somebody made in the table or in Kafka: verify names each with its key, batch and place."""

from __future__ import annotations

import pytest

from spark_2pc_sink.testing import assert_same_on_both_sides
from spark_2pc_sink.testing.local_broker import LocalBroker
from spark_2pc_sink.verification.report import Difference
from tests.conftest import StartKafka
from tests.harness.damage import HISTORY, STATE, back_up, delete_records, lose_tail, restore
from tests.harness.written_pair import TABLE, WrittenPair
from tests.integration.verification.conftest import BATCHES, MakePair

#: Kind -> key, batch and side of each difference that test_one_row makes.
KINDS = {
    "missing_in_table": ("id=1003", 1, None),
    "differing": ("id=3007", 3, None),
    "twice": ("id=2009", None, "table"),
    "missing_in_kafka": ("id=77", None, None),
}


def found(pair: WrittenPair, **counts: int) -> list[Difference]:
    """The differences, which are these and no others."""
    report = pair.verify()
    assert (report.verdict, dict(report.counts)) == ("different", counts), str(report)
    return list(report.differences)


def place_of(difference: Difference) -> dict[str, object]:
    return {"topic": difference.topic, "partition": difference.partition, "offset": difference.offset}


@pytest.fixture(params=["append", "upsert"])
def pair(request: pytest.FixtureRequest, make_pair: MakePair) -> WrittenPair:
    """A pair with `BATCHES`, appended or upserted."""
    made = make_pair(upsert=request.param == "upsert")
    made.write(*BATCHES)
    return made


def test_one_row(pair: WrittenPair) -> None:
    report = assert_same_on_both_sides(**pair.sides())
    rows = len({row[0] for batch in BATCHES for row in batch}) if pair.upsert else sum(map(len, BATCHES))
    assert (report.records, report.rows) == (sum(map(len, BATCHES)), rows)
    assert [(batch.batch, batch.same, batch.digest_same) for batch in report.batches] == [
        (number, True, True) for number in range(len(BATCHES))
    ]
    assert (report.columns, report.up_to, report.not_checked) == (("id", "payload"), len(BATCHES) - 1, ())
    pair.sql(f"ALTER TABLE {TABLE} DROP CONSTRAINT IF EXISTS {TABLE}_pkey")
    pair.sql(f"DELETE FROM {TABLE} WHERE id = 1003")
    with pytest.raises(AssertionError, match="id=1003"):
        assert_same_on_both_sides(**pair.sides())
    pair.sql(f"UPDATE {TABLE} SET payload = payload || ' ' WHERE id = 3007")
    pair.sql(f"INSERT INTO {TABLE} SELECT * FROM {TABLE} WHERE id = 2009")
    pair.sql(f"INSERT INTO {TABLE} VALUES (77, 'by hand')")
    differences: dict[str, Difference] = {each.kind: each for each in found(pair, **dict.fromkeys(KINDS, 1))}
    assert {kind: (each.key, each.batch, each.side) for kind, each in differences.items()} == KINDS
    for kind, number in (("missing_in_table", 1003), ("differing", 3007)):
        assert place_of(differences[kind]) == pair.place(number)
    assert differences["differing"].text.startswith("payload is ")
    assert (differences["differing"].row or {})["id"] == 3007


@pytest.mark.parametrize(
    ("upsert", "counts"), [(False, {"missing_in_table": 45}), (True, {"missing_in_table": 40, "differing": 5})]
)
def test_a_table_that_was_restored_from_a_backup(make_pair: MakePair, upsert: bool, counts: dict[str, int]) -> None:
    """What came after the backup is missing, or is as it was before; everything else is there."""
    pair = make_pair(upsert=upsert)
    pair.write(*BATCHES[:2])
    back_up(pair)
    pair.write(*BATCHES[2:])
    restore(pair, TABLE)
    differences = found(pair, **counts)
    assert {difference.batch for difference in differences} <= {2, 3}
    changed = {(difference.key, difference.batch) for difference in differences if difference.kind == "differing"}
    assert changed == ({(f"id={number}", 2) for number in range(5)} if upsert else set())


def test_a_database_that_was_restored_from_a_backup(appended: WrittenPair) -> None:
    """State row, history and table: no batch claims what Kafka has beyond the backup."""
    pair = appended
    back_up(pair)
    pair.write([(4_000 + number, "after") for number in range(6)])
    restore(pair, TABLE, STATE, HISTORY)
    differences = found(pair, missing_in_table=6, gap=3)
    missing = [difference for difference in differences if difference.kind == "missing_in_table"]
    assert {difference.key for difference in missing} == {f"id={4_000 + number}" for number in range(6)}
    gaps = [difference for difference in differences if difference.kind == "gap"]
    ends = {partition: last for partition, (_, last) in pair.offsets(3).items()}
    assert {gap.partition for gap in gaps} == set(ends)
    assert all(gap.offset is not None and gap.offset > ends[gap.partition or 0] for gap in gaps)


# --- Kafka ---------------------------------------------------------------------------------------------------------


def test_a_log_that_lost_its_beginning(appended: WrittenPair) -> None:
    """As by retention: the first batch is gone, and of the second what one partition had."""
    pair = appended
    before = {partition: first for partition, (first, _) in pair.offsets(1).items()}
    delete_records(pair.broker, pair.topic, before | {1: pair.offsets(1)[1][1] + 1})
    report = pair.verify()
    assert set(report.counts) == {"truncated", "missing_in_kafka"}, str(report)
    lost = {(0, partition): at for partition, at in pair.offsets(0).items()} | {(1, 1): pair.offsets(1)[1]}
    found = {
        (difference.batch, difference.partition): (difference.offset, difference.last_offset)
        for difference in report.differences
        if difference.kind == "truncated"
    }
    assert found == lost, str(report)
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
    truncated = [each for each in report.differences if each.kind == "truncated"]
    assert {(each.batch, each.partition) for each in truncated} == {(3, 1), (3, 2)}, str(report)
    assert report.counts["missing_in_kafka"] == rows, str(report)
    assert {each.batch for each in report.differences if each.batch is not None} == {3}
