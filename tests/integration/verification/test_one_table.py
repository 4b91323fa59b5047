"""The table against the records, the history against the topics, and a side that is out of reach."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
import sqlalchemy as sa
from confluent_kafka import OFFSET_END
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType
from sqlalchemy import make_url

from spark_2pc_sink.errors import ConfigurationError, DatabaseUnreachableError, KafkaTimeoutError
from spark_2pc_sink.testing.processes import free_port
from spark_2pc_sink.verification import staging
from tests.conftest import StartKafka
from tests.harness.damage import delete_records
from tests.harness.sql import end_sessions
from tests.integration.state.state_stores import role
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


def test_a_side_that_is_not_there_is_an_error(sides: Sides) -> None:
    sides.write(rows(0, 5))
    nobody = {"bootstrap.servers": f"127.0.0.1:{free_port()}", "max.block.ms": 1_000}
    with pytest.raises(KafkaTimeoutError):
        sides.verify(kafka=nobody)
    with pytest.raises(DatabaseUnreachableError):
        sides.verify(database=f"postgresql://nobody@127.0.0.1:{free_port()}/none")


def test_kafka_goes_away_half_way(
    start_kafka: StartKafka, database: str, topic: Callable[..., str], transactional_id: str
) -> None:
    broker = start_kafka(two_phase_commit=True)
    sides = Sides(broker, database, topic(partitions=2, broker=broker), transactional_id)
    sides.sql("CREATE TABLE target (id bigint, name text, amount numeric(12, 2))")
    sides.write(rows(0, 5))
    sides.sql("DELETE FROM target WHERE id = 3")

    def kill(what: str, done: int, total: int) -> None:
        del what, total
        if done == 0:
            broker.kill()

    kafka = {"bootstrap.servers": broker.bootstrap, "max.block.ms": 2_000}
    report = sides.verify(kafka=kafka, progress=kill)
    assert (report.verdict, report.rows, report.counts) == ("inconclusive", None, {}), str(report)
    assert [part.what for part in report.not_checked] == ["the rest"]
    assert broker.bootstrap in report.not_checked[0].why


def test_the_database_goes_away_half_way(sides: Sides) -> None:
    sides.write(rows(0, 5))

    def cut(what: str, done: int, total: int) -> None:
        del done, total
        if what == "comparing":
            end_sessions(sides.database)

    report = sides.verify(progress=cut)
    assert report.verdict == "inconclusive", str(report)
    assert [part.what for part in report.not_checked] == ["the rest"]


@pytest.fixture
def reader(sides: Sides) -> Iterator[str]:
    """A role that may read the state tables, and nothing else; the URL with which it logs in."""
    sides.write(rows(0, 5))
    with role(sides.database) as (name, url):
        sides.sql(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {name}; REVOKE ALL ON target FROM {name}")
        yield url


def test_a_role_is_told_what_it_lacks(sides: Sides, reader: str) -> None:
    """And not what the next statement finds, nor that the expressions of the caller are wrong."""
    report = sides.verify(database=reader)
    assert report.verdict == "inconclusive", str(report)
    assert "permission denied for table target" in report.not_checked[0].why

    # The role sees a part of the table, whether that looks the same or not.
    user, name = make_url(reader).username, make_url(sides.database).database
    sides.sql(f"GRANT SELECT ON target TO {user}")
    sides.sql("INSERT INTO target VALUES (99, 'a stranger', 1)")
    sides.sql("ALTER TABLE target ENABLE ROW LEVEL SECURITY")
    sides.sql("CREATE POLICY few ON target USING (id < 99)")
    report = sides.verify(database=reader)
    assert [part.what for part in report.not_checked] == ["rows that row-level security hides"], str(report)
    assert f"role {user}" in report.not_checked[0].why
    assert sides.verify().counts == {"missing_in_kafka": 1}

    sides.sql(f'REVOKE TEMPORARY ON DATABASE "{name}" FROM PUBLIC')
    report = sides.verify(database=reader, record_columns="id = key::bigint")
    assert report.verdict == "inconclusive", str(report)
    assert any("grant this role TEMPORARY on it" in part.why for part in report.not_checked), str(report)
