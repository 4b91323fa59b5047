"""The table against the records: upserts, parts of the batches, types as to_json spells them, values of other forms."""

from __future__ import annotations

import json

import pytest
import sqlalchemy as sa
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.verification import staging
from tests.integration.verification.written_sides import Sides, rows

UPSERT = (
    "INSERT INTO target SELECT * FROM json_populate_record(NULL::target, %s) "
    "ON CONFLICT (id) DO UPDATE SET name = excluded.name, amount = excluded.amount"
)


def test_the_last_record_of_a_key_is_its_row(sides: Sides, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where several sessions have staged the records of a key."""
    monkeypatch.setattr(staging, "CHUNK_RECORDS_MAX", 7)
    for turn in range(3):
        changed = [{**row, "name": f"turn {turn}"} for row in rows(turn * 10, 20)]
        sides.write(changed, statement=UPSERT)
    upsert = {"mode": "upsert", "keys": ["id"]}
    report = sides.verify(**upsert)
    assert (report.verdict, report.records, report.rows) == ("same", 60, 40), str(report)
    sides.sql("UPDATE target SET name = 'turn 0' WHERE id = 15")
    sides.sql("DELETE FROM target WHERE id = 3")
    report = sides.verify(**upsert)
    assert {(each.kind, each.key, each.batch) for each in report.differences} == {
        ("differing", "id=15", 1),
        ("missing_in_table", "id=3", 0),
    }
    # Of batch 0, ten records have been replaced, and those that have not are still to be found.
    report = sides.verify(**upsert, batch=0)
    assert report.counts == {"missing_in_table": 1}, str(report)
    assert any("10 of its records have been replaced" in part.why for part in report.not_checked)
    assert sides.verify(**upsert, since=2).verdict == "same"
    assert sides.verify(**upsert, last=2).counts == {"differing": 1}
    with pytest.raises(ConfigurationError, match="has batches 0 to 2"):
        sides.verify(**upsert, batch=9)


@pytest.mark.parametrize(
    ("column", "order", "values"),
    [
        ("timestamptz", "<=", [f"2024-01-01T00:00:0{second}.123Z" for second in (9, 3, 5)]),
        ("text", 'COLLATE "C" <=', ["c", "B", "c"]),
    ],
    ids=["timestamptz", "text"],
)
def test_a_late_record_is_not_held_against_the_newer_row(
    sides: Sides, column: str, order: str, values: list[str]
) -> None:
    """The row is that of an earlier batch, which a part of the batches does not have."""
    sides.sql(f"ALTER TABLE target DROP amount, ADD amount {column}")
    first, late, next_one = values
    newer = f"{UPSERT} WHERE target.amount {order} excluded.amount"
    sides.write([{"id": 1, "name": "new", "amount": first}, {"id": 2, "name": "old", "amount": late}], statement=newer)
    sides.write(
        [{"id": 1, "name": "late", "amount": late}, {"id": 2, "name": "next", "amount": next_one}], statement=newer
    )
    # What a record does not tell of a time does not make its row a newer one.
    if column == "timestamptz":
        sides.sql("UPDATE target SET amount = amount + interval '456 microseconds'")
    given = {"mode": "upsert", "keys": ["id"], "order_by": "amount"}
    assert [each.key for each in sides.verify(**given).differences] == ["id=1"]
    options = {**given, "late_rows": "keep_newer"}
    assert sides.verify(**options).verdict == "same"
    report = sides.verify(**options, last=1)
    assert (report.verdict, report.rows) == ("same", 1), str(report)
    assert any("1 of its records arrived late" in part.why for part in report.not_checked), str(report)
    sides.sql("UPDATE target SET name = 'other' WHERE id = 2")
    assert [each.key for each in sides.verify(**options, last=1).differences] == ["id=2"]


def test_rows_are_not_held_against_a_compacted_topic(sides: Sides) -> None:
    """Compaction leaves the last record of a key; the table keeps every row, or the first one."""
    admin = AdminClient({"bootstrap.servers": sides.broker.bootstrap})
    sides.write(rows(0, 10))
    entry = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, sides.topic, incremental_configs=[entry])
    for answer in admin.incremental_alter_configs([resource]).values():
        answer.result()
    # As a cleaner leaves it, which nobody can hurry: the row stands for one whose record is gone.
    sides.sql("INSERT INTO target VALUES (99, 'n', 1)")
    for mode, verdict in (("append", "same"), ("insert_ignore", "inconclusive")):
        report = sides.verify(mode=mode, keys=["id"])
        assert (report.verdict, report.differences) == (verdict, ()), str(report)
        assert any("log compaction" in part.why for part in report.not_checked)


def test_expressions_make_rows_of_records_in_another_form(sides: Sides) -> None:
    values = [json.dumps({"order": {"no": row["id"], "sum": row["amount"]}}).encode() for row in rows(0, 10)]
    sides.write(rows(0, 10), values=values)
    assert sides.verify().verdict == "inconclusive"
    columns = "id = (value->'order'->>'no')::bigint, amount = (value->'order'->>'sum')::numeric"
    report = sides.verify(record_columns=columns)
    assert (report.verdict, report.columns) == ("same", ("id", "amount")), str(report)
    with pytest.raises(ConfigurationError, match='column "name" does not exist'):
        sides.verify(record_columns="id = key::bigint, name = topic || name")
    assert sides.verify(record_columns="id = key::bigint, amount = round(key::bigint / 4.0, 2)").verdict == "same"
    sides.sql("UPDATE target SET amount = 77 WHERE id = 4")
    assert [each.kind for each in sides.verify(record_columns=columns).differences] == ["differing"]


def test_a_field_that_turns_up_late_is_compared_too(sides: Sides) -> None:
    # Only the middle of the topic has it: the sample of both ends does not show it.
    many = [{"id": number, **({"name": "late"} if number == 1_500 else {})} for number in range(3_000)]
    sides.write(many)
    assert sides.verify().columns == ("id", "name")
    sides.sql("UPDATE target SET name = 'other' WHERE id BETWEEN 1500 AND 1599")
    report = sides.verify(differences_max=3)
    assert (report.counts, len(report.differences)) == ({"differing": 100}, 3), str(report)
    assert report.differences[0].text.startswith("name is "), str(report)


# The server of the wheel was built without ICU, that of the containers' image has it.
@pytest.mark.containers
def test_texts_that_a_collation_takes_for_equal(sides: Sides) -> None:
    """A key is one row in each of its spellings; in any other column, another spelling is a difference."""
    sides.sql("CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
    sides.sql("DROP TABLE target")
    sides.sql("CREATE TABLE target (id text COLLATE loose PRIMARY KEY, name text COLLATE loose, amount numeric(12, 2))")
    sides.write([{"id": "A", "name": "one", "amount": 1}, {"id": "b", "name": "Two", "amount": 2}], statement=UPSERT)
    assert sides.verify().verdict == "same"
    sides.write([{"id": "a", "name": "three", "amount": 3}], statement=UPSERT)
    report = sides.verify(mode="upsert", keys=["id"])
    assert (report.verdict, report.rows) == ("same", 2), str(report)
    sides.sql("UPDATE target SET name = 'two' WHERE id = 'b'")
    assert [each.key for each in sides.verify(mode="upsert", keys=["id"]).differences] == ["id=b"]


def test_numbers_have_all_their_digits(sides: Sides) -> None:
    """Whatever the database, or the role, has set: where they are compared, and in the files of what is missing."""
    name = sa.make_url(sides.database).database
    sides.sql(f'ALTER DATABASE "{name}" SET extra_float_digits = -15')
    sides.sql("ALTER TABLE target ALTER amount TYPE double precision")
    sides.write([{"id": number, "name": "n", "amount": 1.25} for number in range(2)])
    assert sides.verify().verdict == "same"
    sides.sql("UPDATE target SET amount = 1.125 WHERE id = 1")
    assert [each.key for each in sides.verify().differences] == ["id=1"]
