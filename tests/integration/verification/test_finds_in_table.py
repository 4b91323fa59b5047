"""Differences that somebody made in the table: verify names each with its key, batch and place in the topic."""

from __future__ import annotations

import pytest

from spark_2pc_sink.testing import assert_same_on_both_sides
from spark_2pc_sink.verification.report import Difference
from tests.harness.damage import HISTORY, STATE, back_up, restore
from tests.harness.written_pair import TABLE, WrittenPair
from tests.integration.verification.conftest import BATCHES, MakePair


def found(pair: WrittenPair, **counts: int) -> list[Difference]:
    """The differences, which are these and no others."""
    report = pair.verify()
    assert (report.verdict, dict(report.counts)) == ("different", counts), str(report)
    return list(report.differences)


def place_of(difference: Difference) -> dict[str, object]:
    return {"topic": difference.topic, "partition": difference.partition, "offset": difference.offset}


def test_untouched_sides_are_the_same(pair: WrittenPair) -> None:
    report = assert_same_on_both_sides(**pair.sides())
    rows = len({row[0] for batch in BATCHES for row in batch}) if pair.upsert else sum(map(len, BATCHES))
    assert (report.records, report.rows) == (sum(map(len, BATCHES)), rows)
    assert [(batch.batch, batch.same, batch.digest_same) for batch in report.batches] == [
        (number, True, True) for number in range(len(BATCHES))
    ]
    assert (report.columns, report.up_to, report.not_checked) == (("id", "payload"), len(BATCHES) - 1, ())


def test_a_deleted_row_fails_an_assertion(pair: WrittenPair) -> None:
    pair.sql(f"DELETE FROM {TABLE} WHERE id = 1003")
    with pytest.raises(AssertionError, match="id=1003"):
        assert_same_on_both_sides(**pair.sides())


@pytest.mark.parametrize(
    ("statement", "kind", "number", "batch"),
    [
        (f"DELETE FROM {TABLE} WHERE id = 1003", "missing_in_table", 1003, 1),
        (f"UPDATE {TABLE} SET payload = payload || ' ' WHERE id = 3007", "differing", 3007, 3),
        (f"INSERT INTO {TABLE} SELECT * FROM {TABLE} WHERE id = 2009", "twice", 2009, None),
        (f"INSERT INTO {TABLE} VALUES (77, 'by hand')", "missing_in_kafka", 77, None),
    ],
    ids=["deleted", "changed", "doubled", "by another program"],
)
def test_one_row(pair: WrittenPair, statement: str, kind: str, number: int, batch: int | None) -> None:
    if kind == "twice":
        pair.sql(f"ALTER TABLE {TABLE} DROP CONSTRAINT IF EXISTS {TABLE}_pkey")
    pair.sql(statement)
    (difference,) = found(pair, **{kind: 1})
    assert (difference.key, difference.batch) == (f"id={number}", batch)
    if batch is not None:
        assert place_of(difference) == pair.place(number)
    assert difference.side == ("table" if kind == "twice" else None)
    if kind == "differing":
        assert difference.text.startswith("payload is ")
        assert difference.row is not None
        assert difference.row["id"] == 3007


def test_a_table_that_was_restored_from_a_backup(make_pair: MakePair) -> None:
    """What came after the backup is missing, and everything else is there."""
    pair = make_pair(upsert=False)
    pair.write(*BATCHES[:2])
    back_up(pair)
    pair.write(*BATCHES[2:])
    restore(pair, TABLE)
    differences = found(pair, missing_in_table=len(BATCHES[2]) + len(BATCHES[3]))
    assert {difference.batch for difference in differences} <= {2, 3}


def test_an_upserted_table_that_was_restored_has_rows_of_before(make_pair: MakePair) -> None:
    pair = make_pair(upsert=True)
    pair.write(*BATCHES[:2])
    back_up(pair)
    pair.write(*BATCHES[2:])
    restore(pair, TABLE)
    differences = found(pair, missing_in_table=40, differing=5)
    changed = [difference for difference in differences if difference.kind == "differing"]
    assert {difference.key for difference in changed} == {f"id={number}" for number in range(5)}
    assert {difference.batch for difference in changed} == {2}


def test_a_database_that_was_restored_from_a_backup(pair: WrittenPair) -> None:
    """State row, history and table: no batch claims what Kafka has beyond the backup."""
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
