"""The table against the records: upserts, parts of the batches, types as to_json spells them, values of other forms."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator

import pytest
import sqlalchemy as sa
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options.layout import SinkLayout
from spark_2pc_sink.verification import staging
from tests.harness.providers import Broker, Database
from tests.integration.verification.written_sides import Sides, rows

UPSERT = (
    "INSERT INTO target SELECT * FROM json_populate_record(NULL::target, %s) "
    "ON CONFLICT (id) DO UPDATE SET name = excluded.name, amount = excluded.amount"
)


@pytest.mark.parametrize("chunk", [staging.CHUNK_RECORDS_MAX, 1])
def test_the_last_record_of_a_key_is_its_row(sides: Sides, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    """Also where several sessions have staged the records of a key."""
    monkeypatch.setattr(staging, "CHUNK_RECORDS_MAX", chunk)
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


def test_the_greatest_of_all_wins_where_late_rows_are_passed_over(sides: Sides) -> None:
    newer = f"{UPSERT} WHERE target.amount <= excluded.amount"
    sides.write([{"id": 1, "name": "new", "amount": 9}, {"id": 2, "name": "old", "amount": 1}], statement=newer)
    sides.write([{"id": 1, "name": "late", "amount": 3}, {"id": 2, "name": "newer", "amount": 5}], statement=newer)
    options = {"mode": "upsert", "keys": ["id"], "order_by": "amount"}
    assert sides.verify(**options, late_rows="keep_newer").verdict == "same"
    assert [each.key for each in sides.verify(**options).differences] == ["id=1"]


@pytest.mark.parametrize("column", ["numeric", "timestamptz", "text"])
def test_of_some_batches_a_late_record_is_not_held_against_the_newer_row(sides: Sides, column: str) -> None:
    """The row is that of an earlier batch, which a part of the batches does not have."""
    sides.sql(f"ALTER TABLE target DROP amount, ADD amount {column}")
    made = {
        "numeric": lambda n: n,
        "timestamptz": lambda n: f"2024-01-01T00:00:0{n}.123Z",
        "text": lambda n: f"{'aBc'[n % 3]}",
    }[column]
    newer = f"{UPSERT} WHERE target.amount <= excluded.amount"
    orders = {"numeric": (9, 3, 5), "timestamptz": (9, 3, 5), "text": (2, 1, 2)}[column]
    first, late, tie = map(made, orders)
    sides.write([{"id": 1, "name": "new", "amount": first}, {"id": 2, "name": "old", "amount": late}], statement=newer)
    if column == "text":
        newer = newer.replace("target.amount <=", 'target.amount COLLATE "C" <=')
    sides.write([{"id": 1, "name": "late", "amount": late}, {"id": 2, "name": "next", "amount": tie}], statement=newer)
    # What a record does not tell of a time does not make its row a newer one.
    if column == "timestamptz":
        sides.sql("UPDATE target SET amount = amount + interval '456 microseconds'")
    options = {"mode": "upsert", "keys": ["id"], "order_by": "amount", "late_rows": "keep_newer"}
    assert sides.verify(**options).verdict == "same"
    for scope in ({"last": 1}, {"since": 1}, {"batch": 1}):
        report = sides.verify(**options, **scope)
        assert (report.verdict, report.rows) == ("same", 1), str(report)
        assert any("1 of its records arrived late" in part.why for part in report.not_checked), str(report)
    sides.sql("UPDATE target SET name = 'other' WHERE id = 2")
    assert [each.key for each in sides.verify(**options, last=1).differences] == ["id=2"]


@pytest.mark.parametrize("renamed", [False, True])
def test_a_sink_that_writes_another_table_now(sides: Sides, renamed: bool) -> None:
    """docs/planned-work.md: it needs nothing. Rows of before are in the old table, or here, if that was renamed."""
    sides.write(rows(0, 10), layout=SinkLayout(table="target", topic=sides.topic).as_json())
    sides.sql("ALTER TABLE target RENAME TO other" if renamed else "CREATE TABLE other (LIKE target INCLUDING ALL)")
    insert = "INSERT INTO other SELECT * FROM json_populate_record(NULL::other, %s)"
    sides.write(rows(10, 5), statement=insert, layout=SinkLayout(table="other", topic=sides.topic).as_json())
    report = sides.verify(table=None)
    assert (report.verdict, report.rows) == ("same", 15 if renamed else 5), str(report)
    assert any("or tables of other names" in part.why for part in report.not_checked) is not renamed
    sides.sql("DELETE FROM other WHERE id = 12")
    assert [(each.kind, each.batch) for each in sides.verify(table=None).differences] == [("missing_in_table", 1)]


@pytest.mark.parametrize("mode", ["append", "insert_ignore"])
def test_rows_are_not_held_against_a_compacted_topic(sides: Sides, mode: str) -> None:
    """Compaction leaves the last record of a key; the table keeps every row, or the first one."""
    admin = AdminClient({"bootstrap.servers": sides.broker.bootstrap})
    sides.write(rows(0, 10))
    options = {"mode": mode, "keys": ["id"]}
    assert sides.verify(**options).verdict == "same"
    entry = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, sides.topic, incremental_configs=[entry])
    for answer in admin.incremental_alter_configs([resource]).values():
        answer.result()
    # As a cleaner leaves it, which nobody can hurry: the row stands for one whose record is gone.
    sides.sql("INSERT INTO target VALUES (99, 'n', 1)")
    report = sides.verify(**options)
    assert not report.differences, str(report)
    assert report.verdict == {"append": "same", "insert_ignore": "inconclusive"}[mode], str(report)
    assert any("log compaction" in part.why for part in report.not_checked)


def test_of_some_batches_each_record_is_looked_for(sides: Sides) -> None:
    for batch in range(4):
        sides.write(rows(batch * 100, 10))
    sides.sql("DELETE FROM target WHERE id = 104")
    assert sides.verify(since=2).verdict == "same"
    assert sides.verify(last=1).verdict == "same"
    report = sides.verify(batch=1)
    assert (report.counts, report.records, len(report.batches)) == ({"missing_in_table": 1}, 10, 1), str(report)
    assert report.scope == "batch 1"
    with pytest.raises(ConfigurationError, match="has batches 0 to 3"):
        sides.verify(batch=9)


def test_values_are_compared_as_exactly_as_a_record_tells_them(sides: Sides) -> None:
    sides.sql("DROP TABLE target")
    sides.sql(
        "CREATE TABLE target (id bigint, at timestamptz, ntz timestamp, raw bytea, f float8, r real, fixed char(5), "
        "d numeric(10, 3), day date, ok boolean, doc jsonb, plain json, list int[], whole int, uid uuid, "
        "serial bigserial, twice bigint GENERATED ALWAYS AS (id * 2) STORED)"
    )
    value = {
        "id": 1,
        "at": "2023-11-14T22:13:20.123Z",
        "ntz": "2023-11-14T22:13:20.123",
        "raw": "AAEC/w==",
        "f": 0.1,
        "r": 0.1,
        "fixed": "ab",
        "d": 1.5,
        "day": "2023-11-14",
        "ok": True,
        "doc": {"at": "2023-11-14T22:13:20.123Z", "n": 1.0},
        "plain": '{"a": [1, null]}',
        "list": [1, 2],
        "whole": 12.0,
        "uid": "5B6D0BE2-D47F-11E8-9F9D-CCAF789D94A0",
    }
    statement = (
        "INSERT INTO target SELECT (%s::json->>'id')::bigint, '2023-11-14 22:13:20.123456Z', "
        "'2023-11-14 22:13:20.123999', '\\x000102ff', 0.1::real, 0.1::real, 'ab', 1.500, '2023-11-14', true, "
        """'{"at": "2023-11-14T22:13:20.123456Z", "n": 1, "left": null}', '{"a": [1, null]}', '{1,2}', 12, """
        "'5b6d0be2-d47f-11e8-9f9d-ccaf789d94a0'"
    )
    changed = {
        "at": "'2023-11-14 22:13:20.124Z'",
        "raw": "'\\x00'",
        "f": "0.10001",
        "d": "1.501",
        "doc": """'{"n": 2}'""",
        "plain": "'{}'",
        "list": "'{2,1}'",
        "uid": "NULL",
    }
    numbers = range(len(changed))
    values = [json.dumps({**value, "id": number}).encode() for number in numbers]
    sides.write([{"id": number} for number in numbers], statement=statement, values=values)
    report = sides.verify()
    assert report.verdict == "same", str(report)
    assert set(report.columns) == set(value)
    assert {"column serial", "column twice", "finer parts of column at"} <= {part.what for part in report.not_checked}
    for number, (column, other) in enumerate(changed.items()):
        sides.sql(f"UPDATE target SET {column} = {other} WHERE id = {number}")
    report = sides.verify(keys=["id"])
    assert report.counts == {"differing": len(changed)}, str(report)
    # Each names the one column that differs, and none that is only spelt in another way.
    assert {each.key: each.text.split(" is ")[0] for each in report.differences} == {
        f"id={number}": column for number, column in enumerate(changed)
    }
    assert all(each.text.count(" in Kafka and ") == 1 for each in report.differences)


def test_expressions_make_rows_of_records_in_another_form(sides: Sides) -> None:
    values = [json.dumps({"order": {"no": row["id"], "sum": row["amount"]}}).encode() for row in rows(0, 10)]
    sides.write(rows(0, 10), values=values)
    columns = "id = (value->'order'->>'no')::bigint, amount = (value->'order'->>'sum')::numeric"
    report = sides.verify(record_columns=columns)
    assert (report.verdict, report.columns) == ("same", ("id", "amount")), str(report)
    with pytest.raises(ConfigurationError, match='column "name" does not exist'):
        sides.verify(record_columns="id = key::bigint, name = topic || name")
    assert sides.verify(record_columns="id = key::bigint, amount = round(key::bigint / 4.0, 2)").verdict == "same"
    sides.sql("UPDATE target SET amount = 77 WHERE id = 4")
    assert [each.kind for each in sides.verify(record_columns=columns).differences] == ["differing"]


def test_records_that_are_no_rows(sides: Sides) -> None:
    plain = [b"%d|n" % row["id"] for row in rows(0, 10)]
    sides.write(rows(0, 10), values=plain)
    report = sides.verify()
    assert (report.verdict, report.rows, report.batches[0].same) == ("inconclusive", None, True), str(report)
    assert report.reason is not None
    assert "--record-columns" in report.reason.remedy


def test_a_field_that_turns_up_late_is_compared_too(sides: Sides) -> None:
    # Only the middle of the topic has it: the sample of both ends does not show it.
    many = [{"id": number, **({"name": "late"} if number == 1_500 else {})} for number in range(3_000)]
    sides.write(many)
    assert sides.verify().columns == ("id", "name")
    sides.sql("UPDATE target SET name = 'other' WHERE id = 1500")
    report = sides.verify()
    assert [(each.kind, each.key) for each in report.differences] == [("differing", "id=1500")], str(report)


def test_many_differences_are_counted_and_a_few_are_named(sides: Sides) -> None:
    sides.write(rows(0, 300))
    sides.sql("UPDATE target SET amount = amount + 1 WHERE id < 100")
    sides.sql("DELETE FROM target WHERE id >= 200")
    report = sides.verify(differences_max=3)
    assert report.counts == {"missing_in_table": 100, "differing": 100}
    assert len(report.differences) == 6


@pytest.fixture
def latin1(
    postgres: Database, kafka: Broker, topic: Callable[..., str], transactional_id: str
) -> Iterator[Callable[[str], Sides]]:
    """Makes a sink whose database has LATIN1, with what its URL ends with."""
    name = f"latin1_{secrets.token_hex(4)}"
    engine = sa.create_engine(postgres.url, poolclass=sa.NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING LATIN1 LOCALE 'C'")
    yield lambda end: Sides(kafka, postgres.database_url(name) + end, topic(partitions=2), transactional_id)
    postgres.drop_database(name)


@pytest.mark.parametrize("end", ["", "?client_encoding=utf8"], ids=["as the server says", "UTF-8"])
def test_records_may_have_what_the_encoding_of_the_database_lacks(latin1: Callable[[str], Sides], end: str) -> None:
    """In a field that is no column of the table."""
    sides = latin1(end)
    sides.sql("CREATE TABLE target (id bigint PRIMARY KEY, name text)")
    sent = [{"id": number, "name": "Müller", "note": "10 € 🚲"} for number in range(3)]
    statement = "INSERT INTO target SELECT (%s::jsonb->>'id')::bigint, 'M' || chr(252) || 'ller'"
    values = [json.dumps(row, ensure_ascii=False).encode() for row in sent]
    sides.write([{"id": row["id"]} for row in sent], statement=statement, values=values)
    report = sides.verify()
    assert (report.verdict, report.rows) == ("same", 3), str(report)
    sides.sql("UPDATE target SET name = '?' WHERE id = 1")
    assert [each.key for each in sides.verify().differences] == ["id=1"]


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
