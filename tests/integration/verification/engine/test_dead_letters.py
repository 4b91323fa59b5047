"""The dead letters of a topic against those of the dead-letter table, both written without the sink."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from spark_2pc_sink import Records, Rows, VerifyReport
from tests.integration.verification.written_sides import Sides, WrittenOutputs

TABLE = '"public"."letters"'
DDL = (
    "CREATE TABLE letters (transactional_id text, query_id text, batch_id bigint, identity text, occurrences bigint, "
    "output text, reason text, sqlstate text, row jsonb, "
    "PRIMARY KEY (transactional_id, query_id, batch_id, identity))"
)


@pytest.fixture
def letters(sides: Sides, topic: Callable[..., str]) -> WrittenOutputs:
    """A topic and a table, and a topic of dead letters."""
    sides.sql(DDL)
    records, rows = Records(sides.topic, key="id"), Rows("target", columns={"id": "id", "name": "name"})
    return WrittenOutputs(sides, [records, rows], dead_letters=(topic(), TABLE))


def letter(sides: Sides, identity: str, **changed: Any) -> dict[str, Any]:
    told = {"transactional_id": sides.transactional_id, "query_id": "query", "batch_id": sides.batches}
    told |= {"identity": identity, "occurrences": 1, "output": "table target", "reason": "why", "sqlstate": "23514"}
    return {**told, "row": {"id": -1, "name": "bad"}, **changed}


def write(written: WrittenOutputs, *identities: str, committed: bool = True) -> None:
    """A batch of one good row, and of bad ones."""
    sides = written.sides
    assert written.dead_letters is not None
    number, told = sides.batches, [letter(sides, identity) for identity in identities]
    sent = {
        sides.topic: [(str(number), {"id": number, "name": "n"})],
        written.dead_letters[0]: [(each["identity"], each) for each in told],
    }
    written.write(
        sent,
        f"INSERT INTO target (id, name) VALUES ({number}, 'n')",
        *map(_insert, told),
        rows={"target": 1},
        committed=committed,
    )


def found(report: VerifyReport) -> list[tuple[str, str | None, str | None]]:
    return [(each.kind, each.table, each.key) for each in report.differences]


def test_letters_of_both_sides_are_compared(letters: WrittenOutputs) -> None:
    """And their topic is no topic of a table's rows."""
    sql = letters.sides.sql
    write(letters, "aa", "bb", "cc")
    write(letters)
    write(letters, "aa")
    report = letters.verify()
    assert (report.verdict, report.rows, found(report)) == ("same", 3, []), str(report)
    [told] = report.letters
    assert (told.letters, told.table) == (4, TABLE)
    assert json.loads(json.dumps(report.as_json()))["letters"][0]["letters"] == 4
    assert [each.letters for each in letters.verify(batch=0).letters] == [3]
    sql("UPDATE letters SET sqlstate = '23505' WHERE identity = 'aa' AND batch_id = 0")
    sql("UPDATE letters SET identity = 'dd' WHERE identity = 'bb'")
    report = letters.verify()
    assert report.verdict == "different"
    assert sorted(found(report)) == [
        ("differing", TABLE, "identity=aa"),
        ("missing_in_kafka", TABLE, "identity=dd"),
        ("missing_in_table", TABLE, "identity=bb"),
    ]
    # A person may delete letters, but not those of the newest batch, which the sink needs.
    sql("DELETE FROM letters WHERE batch_id = 0")
    report = letters.verify()
    assert (report.verdict, found(report)) == ("same", [])
    assert "the dead letters of batch 0" in {part.what for part in report.not_checked}
    sql("DELETE FROM letters")
    assert found(letters.verify()) == [("missing_in_table", TABLE, "identity=aa")]
    sql("DROP TABLE letters")
    report = letters.verify()
    assert (report.differences, report.letters) == ((), ())
    assert any("does not exist, or this role cannot read it" in part.why for part in report.not_checked)


def test_the_letters_of_an_open_transaction_are_looked_for_in_the_table(letters: WrittenOutputs) -> None:
    """A26: who commits it by hand is told whether the database has decided it, also where it has letters alone."""
    letters.writes = [Rows("target", columns={"id": "id", "name": "name"})]
    letters.start([*letters.writes])
    sides, (topic, _) = letters.sides, letters.dead_letters or ("", "")
    told = letter(sides, "aa")
    letters.write({topic: [("aa", told)]}, committed=False)
    for statement, share in (("SELECT 1", "none"), (_insert(told), "all")):
        sides.sql(statement)
        report = letters.verify(open_transaction=True, wait_ms=100)
        assert report.open_transaction is not None
        assert (report.open_transaction.share, report.open_transaction.records) == (share, 1), str(report)


def _insert(told: dict[str, Any]) -> str:
    return f"INSERT INTO letters SELECT * FROM jsonb_populate_record(NULL::letters, '{json.dumps(told)}')"
