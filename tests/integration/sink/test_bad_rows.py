"""Bad rows: each kind goes to the dead letters, in the table and in their topic, and the other rows to both sides."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from pyspark.sql import DataFrame, SparkSession, functions as F
from pyspark.sql.types import LongType, StructField, StructType

from spark_2pc_sink import BatchReport
from spark_2pc_sink.errors import ConfigurationError, RecordRefusedError, TooManyBadRowsError
from spark_2pc_sink.options import SinkOptions
from spark_2pc_sink.recipe.placement import Placement
from spark_2pc_sink.sink.bad_rows.bad_row import RefusedRow, canonical_json
from spark_2pc_sink.sink.bad_rows.dead_letters import DeadLetters
from spark_2pc_sink.sink.job.filtered_batch import FilteredBatch
from spark_2pc_sink.sink.records.record_json import TIME_PARSER
from spark_2pc_sink.sink.rows.row_sql import fingerprint_sql, identity_sql
from tests.conftest import MakeTopic
from tests.harness.sql import run_sql
from tests.harness.streams import FileStream, session_settings
from tests.integration.sink import targets
from tests.integration.sink.targets import Target
from tests.integration.writer.writers import HOUR_NS, shift_clock

SCHEMA = StructType([*targets.SCHEMA.fields, StructField("parent", LongType())])
#: Each constraint of which a row can be a victim; the last is checked at the end of a transaction.
EVERY_CONSTRAINT = """
CREATE DOMAIN small AS integer CHECK (VALUE < 1000000);
CREATE TABLE parents (id bigint PRIMARY KEY);
INSERT INTO parents VALUES (1), (2);
CREATE TABLE target (
    id bigint PRIMARY KEY,
    name varchar(10),
    amount small CHECK (amount > 0),
    parent bigint REFERENCES parents,
    doc jsonb,
    needed integer NOT NULL,
    narrow smallint,
    twin bigint REFERENCES target DEFERRABLE INITIALLY DEFERRED,
    long text UNIQUE
);
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN IF NEW.name = 'raise' THEN RAISE 'not this one' USING ERRCODE = 'ZZ001'; END IF; RETURN NEW; END $$;
CREATE TRIGGER refuse BEFORE INSERT ON target FOR EACH ROW EXECUTE FUNCTION refuse();
"""
COLUMNS = {
    "id": "id",
    "name": "if(name LIKE 'large%', 'large', name)",
    "amount": "amount",
    "parent": "parent",
    "doc": "CASE name WHEN 'no json' THEN '{' WHEN 'deep' THEN repeat('[', 99999) || repeat(']', 99999) ELSE '{}' END",
    "needed": "if(name = 'null', NULL, 1)",
    "narrow": "if(name = 'range', 32768, 1)",
    "twin": "CASE WHEN name = 'alone' THEN 99 WHEN name = 'twin' THEN id + 1 END",
    # An entry of an index has a third of a page at most, and digests cannot be compressed to that.
    "long": "CASE WHEN name = 'long' THEN array_join(transform(sequence(1, 99), n -> sha2(string(n), 256)), '') END",
}
POSITIVE = (
    "CREATE TABLE target (id bigint PRIMARY KEY, name text, amount int CHECK (amount > {}), parent int, doc json)"
)
NOT_BAD = "CREATE TABLE target (id bigint PRIMARY KEY, name text CHECK (name <> 'bad'), amount int, parent int)"
#: By id: the row, and the SQLSTATE with which its dead letter says why.
BAD = {
    10: (("a\x00b", 1, 1), ""),
    11: (("longer than ten", 1, 1), ""),
    12: (("large" + "x" * 2_000, 1, 1), ""),
    13: (("check", -1, 1), "23514"),
    14: (("domain", 2_000_000, 1), "23514"),
    15: (("parent", 1, 3), "23503"),
    16: (("raise", 1, 1), "ZZ001"),
    17: (("no json", 1, 1), "22P02"),
    18: (("alone", 1, 1), "23503"),
    19: (("null", 1, 1), ""),
    20: (("range", 1, 1), ""),
    21: (("long", 1, 1), "54000"),
    22: (("deep", 1, 1), "54001"),
    1: (("again", 1, 1), "23505"),
}
GOOD = [(1, "first", 1, 1), (2, "twin", 2, 2), (3, "its twin", 3, None), *((n, "good", n, 1) for n in range(100, 300))]


class Sides:
    """Both sides, a stream, and options of each start."""

    def __init__(self, stream: FileStream, target: Target, options: dict[str, Any]) -> None:
        self.stream, self.target, self.options = stream, target, options
        self.reports: list[BatchReport] = []

    def run(self, **options: Any) -> None:
        """To the end of what is there, as a start of the job."""
        self.stream.run(self.target.sink(**{**self.options, "on_batch": self.reports.append, **options}))

    def letters(self) -> dict[int, tuple[int, str]]:
        """How often, and the SQLSTATE, by id."""
        found = self.target.letters("row->>'id', occurrences, sqlstate")
        return {int(number): (occurrences, code) for number, occurrences, code in found}

    def ids(self) -> list[int]:
        """Those in the topic, which are those in the table."""
        in_topic = sorted(value["id"] for value in self.target.values())
        assert [(number,) for number in in_topic] == self.target.rows("id", "target ORDER BY id")
        return in_topic

    def claims(self) -> int:
        """How often the row was claimed, which nothing else was done to."""
        actions = [action for (action,) in self.target.rows("action", "kafka_transaction_state_actions")]
        assert {*actions} == {"claim"}
        return len(actions)


@pytest.fixture
def sides(spark: SparkSession, tmp_path: Path, target: Target, topic: MakeTopic) -> Sides:
    """A topic that takes records of one kilobyte."""
    target = replace(target, topic=topic(partitions=3, config={"max.message.bytes": "1000"}))
    # What is too large for the topic must not be compressed until it fits.
    kafka = {"bootstrap.servers": target.broker.bootstrap, "compression.type": "none"}
    options = {"key": "id", "kafka": kafka, "create_table": False, "bad_rows": "dead_letter"}
    return Sides(FileStream(spark, tmp_path, SCHEMA), target, options)


def test_each_kind_of_bad_row_has_its_dead_letter(sides: Sides, caplog: pytest.LogCaptureFixture) -> None:
    """A26: and no other place; all other rows are on both sides, also those that refer to one behind them."""
    sides.target.execute(EVERY_CONSTRAINT)
    sides.stream.add([*GOOD, *((number, *row) for number, (row, _) in BAD.items()), GOOD[-1], GOOD[-1]])
    with caplog.at_level("INFO", "spark_2pc_sink"):
        sides.run(columns=COLUMNS)
    assert sides.letters() == {number: (1, code) for number, (_, code) in BAD.items()} | {299: (2, "23505")}
    assert sides.ids() == [row[0] for row in GOOD]
    [report] = sides.reports
    assert (report.bad_rows, report.row_count, report.record_count) == (len(BAD) + 2, len(GOOD), len(GOOD))
    told = dict(sides.target.letters("(row->>'id')::int, output || ': ' || reason"))
    no_nul = r"table public.target: column 'name': 'a\x00b' cannot be stored: PostgreSQL's text has no"
    assert told[10].startswith(no_nul)
    assert "max.message.bytes of the topic is 1000" in told[12]
    assert "not this one" in told[16]
    said = "null cannot be stored: the table's column is integer NOT NULL, or an upsert key"
    assert told[19] == f"table public.target: column 'needed': {said}"
    assert told[20].startswith("table public.target: column 'narrow': 32768 cannot be stored: ")
    noted = sides.target.rows("figures->>'bad_rows'", "kafka_transaction_state_history WHERE batch_id = 0")
    assert noted == [(str(len(BAD) + 2),)]
    # A search is no crash: there is one claim, that of the start.
    assert (sides.target.state("generation"), sides.claims()) == ([(1,)], 1)
    searches = [record for record in caplog.records if "retrying" in record.getMessage()]
    assert [(record.levelname, record.getMessage().partition("batch ")[2]) for record in searches] == [
        ("INFO", f"0: {count} bad rows, retrying without them") for count in (5, 11)
    ]


def test_a_replay_ends_in_the_same_split(sides: Sides) -> None:
    """A26: though the table takes every row by then. The next batch is split anew."""
    sides.target.execute(NOT_BAD)
    sides.stream.add([(1, "bad", 1, 1), (2, "good", 1, 1), (2, "good", 1, 1)])
    sides.run()
    assert sides.letters() == {1: (1, "23514"), 2: (1, "23505")}
    assert sides.ids() == [2]
    sides.target.execute("ALTER TABLE target DROP CONSTRAINT target_name_check")
    # As if the job had been killed before Spark recorded the batch.
    sides.stream.forget(0)
    sides.stream.add([(3, "bad", 1, 1)])
    sides.run()
    assert [report.placement for report in sides.reports] == [Placement.RUN, Placement.SKIP, Placement.RUN]
    assert sides.letters() == {1: (1, "23514"), 2: (1, "23505")}
    assert sides.ids() == [2, 3]


def test_more_bad_rows_than_allowed_fail_the_batch(sides: Sides) -> None:
    """With the first of them, and nothing on any side."""
    sides.target.execute(POSITIVE.format(10))
    sides.stream.add([(number, "n", number, 1) for number in range(100)])
    with pytest.raises(TooManyBadRowsError) as refused:
        sides.run(max_bad_rows="5%")
    assert "of the 100 rows of the batch are bad, and max_bad_rows is 5%" in str(refused.value)
    assert '{"id":0,"name":"n","amount":0,"parent":1}, refused by table public.target' in str(refused.value)
    assert (sides.ids(), sides.letters()) == ([], {})
    sides.run(max_bad_rows=11)
    assert len(sides.letters()) == 11


@pytest.mark.thorough
def test_superseded_rows_of_an_upsert_are_not_bad(sides: Sides) -> None:
    """Unless the database cannot even read them. Where the winner is bad, the row that it had superseded wins."""
    sides.target.execute(POSITIVE.format(0))
    superseded, winner = [(1, "superseded", -1, 1), (1, "wins", 1, 2)], (2, "wins", -2, 2)
    sides.stream.add([*superseded, winner, (2, "next", -3, 1), (2, "last", 5, 0), (3, "{", 1, 1), (3, "wins", 1, 2)])
    columns = {"id": "id", "name": "name", "amount": "amount", "doc": "if(name = '{', name, '{}')"}
    sides.run(mode="upsert", upsert_keys=["id"], upsert_order_by="parent", columns=columns)
    assert sides.target.rows("id, name", "target ORDER BY id") == [(1, "wins"), (2, "last"), (3, "wins")]
    found = sides.target.letters("row->>'name', sqlstate")
    assert found == [("next", "23514"), ("wins", "23514"), ("{", "22P02")]
    assert len(sides.target.records()) == 4


# --- the topic of the dead letters ------------------------------------------------------------------------------------

_COLUMNS = "transactional_id, query_id, batch_id, identity, occurrences, output, reason, sqlstate"


@pytest.fixture
def letters(sides: Sides, topic: MakeTopic) -> str:
    """A topic for the letters of the sink."""
    name = topic(partitions=2)
    sides.options["dead_letter_topic"] = name
    return name


def compare(sides: Sides, letters: str) -> list[dict[str, Any]]:
    """The letters of the topic, which are those of the table."""
    records = replace(sides.target, topic=letters).records()
    told = [json.loads(record.value or b"") for record in records]
    in_topic = [[*(letter[name] for name in _COLUMNS.split(", ")), letter["row"]] for letter in told]
    in_table = sides.target.letters(f'{_COLUMNS}, "row"')
    assert sorted(in_topic, key=str) == sorted(map(list, in_table), key=str)
    assert [record.key for record in records] == [letter["identity"].encode() for letter in told]
    return told


def test_the_topic_has_what_the_table_has(sides: Sides, letters: str) -> None:
    """A26: in the decision of their batch, counted in it, and a replay ends in the same split."""
    sides.target.execute(NOT_BAD)
    sides.stream.add([(1, "bad", 1, 1), (2, "good", 1, 1), (2, "good", 1, 1), (3, "a\x00b", 1, 1)])
    sides.run()
    assert {letter["row"]["id"] for letter in compare(sides, letters)} == {1, 2, 3}
    assert [each.letters for each in sides.target.assert_same().letters] == [3]
    [report] = sides.reports
    assert (report.row_count, report.record_count, report.bad_rows) == (1, 1 + 3, 3)
    assert report.outputs[f"DeadLetters({letters!r})"] == 3
    noted = "record_count, (SELECT count(*) FROM jsonb_object_keys(topic_ids::jsonb))"
    assert sides.target.rows(noted, "kafka_transaction_state_history WHERE batch_id = 0") == [(4, 2)]
    # As if the job had been killed before Spark recorded the batch.
    sides.stream.forget(0)
    sides.target.execute("ALTER TABLE target DROP CONSTRAINT target_name_check")
    sides.run()
    assert sides.reports[1].placement is Placement.SKIP
    assert len(compare(sides, letters)) == 3


def test_the_json_of_a_row_is_in_the_form_of_jsonb(database: str) -> None:
    """What PostgreSQL does to a JSON text changes nothing of a letter."""
    texts = ['{"bb":1,"a":[1.0E10,-0.0,0E5,0E-5,-1.50E1,1.7E300,1E-300,5e-324]}', '{"a":{"Ä":"\\u00e4\\n","":null}}']
    for text in texts:
        [(kept,)] = run_sql(database, "SELECT CAST(CAST(%s AS jsonb) AS text)", text)
        assert canonical_json(kept) == canonical_json(text)


# --- records that a topic does not take one by one: each is a bad row with its row -----------------------------------

TABLE = "CREATE TABLE target (id bigint PRIMARY KEY, name text, amount int, parent int)"
ROWS = [(1, "good", 1, 1), (2, None, 1, 1), (3, "good" * 500, 1, 1), (4, None, 2, 2), (5, "good", 1, 1)]
NO_KEY = "the topic is compacted (cleanup.policy) and refuses records without a key"


def change(sides: Sides, config: Mapping[str, str]) -> None:
    """The topic's settings, while the job runs: it has read them already."""
    entries = [ConfigEntry(*each, incremental_operation=AlterConfigOpType.SET) for each in config.items()]
    resource = ConfigResource(ResourceType.TOPIC, sides.target.topic, incremental_configs=entries)
    client = AdminClient({"bootstrap.servers": sides.target.broker.bootstrap})
    [answered] = client.incremental_alter_configs([resource]).values()
    answered.result()


def test_a_record_without_a_key_is_a_bad_row_of_a_compacted_topic(sides: Sides, topic: MakeTopic) -> None:
    """A26: without dead letters the batch fails at once, with what it is and what to do."""
    sides.target.execute(TABLE)
    sides.target = replace(sides.target, topic=topic(partitions=3, config={"cleanup.policy": "compact"}))
    sides.options["key"] = "name"
    sides.stream.add(ROWS)
    with pytest.raises(RecordRefusedError, match=r'with value {"id":[24],.*Set the option key'):
        sides.run(bad_rows="fail")
    assert sides.claims() == 1
    sides.run()
    assert sides.letters() == {2: (1, ""), 4: (1, "")}
    assert sides.ids() == [1, 3, 5]
    assert sides.target.letters("DISTINCT output, reason") == [(f"topic {sides.target.topic}", NO_KEY)]
    assert sides.claims() == 2


@pytest.mark.parametrize(
    ("config", "bad", "reason"),
    [
        ({"cleanup.policy": "compact"}, [2, 4], NO_KEY),
        ({"max.message.bytes": "1000"}, [3], "bytes: the broker answered MESSAGE_TOO_LARGE (10)"),
    ],
)
def test_a_record_that_only_the_broker_refuses_is_a_bad_row(
    sides: Sides, topic: MakeTopic, config: dict[str, str], bad: list[int], reason: str
) -> None:
    """A26: as where the topic was changed since, or its settings may not be read."""
    sides.target.execute(TABLE)
    sides.target = replace(sides.target, topic=topic(partitions=1, config={"max.message.bytes": "4000000"}))
    sides.options["key"] = "left(name, 9)"
    sides.options["kafka"] |= {"batch.size": "100", "max.request.size": "4000000"}
    sides.stream.add([(100, "first", 1, 1)])
    sides.stream.add(ROWS)

    def then(report: BatchReport) -> None:
        if report.batch_id == 0:
            change(sides, config)

    sides.run(on_batch=then)
    assert sides.letters() == dict.fromkeys(bad, (1, ""))
    assert sides.ids() == sorted({1, 2, 3, 4, 5, 100} - {*bad})
    assert all(reason in told for (told,) in sides.target.letters("reason"))
    assert sides.claims() == 1


def test_a_time_that_the_topic_does_not_take_fails_the_batch_at_once(
    sides: Sides, topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is that of all its records: none of its rows is the bad one."""
    sides.target.execute(TABLE)
    sides.target = replace(sides.target, topic=topic(partitions=1))
    sides.stream.add(ROWS)
    shift_clock(monkeypatch, 2 * HOUR_NS)
    with pytest.raises(ConfigurationError, match=r"must accept records with this time: Timestamp .* correct the clock"):
        sides.run()
    assert (sides.letters(), sides.ids()) == ({}, [])


# --- the search for bad rows: it goes by fingerprints, and no row is left out for having the one of a bad row ---------

OPTIONS = SinkOptions.parse(
    transactional_id="orders",
    kafka={"bootstrap.servers": "none:1"},
    database="postgresql://none/none",
    topic="orders",
    table="orders",
    bad_rows="dead_letter",
    max_bad_rows=2,
)


class NoLetters(DeadLetters):
    """Nothing is asked of the table before the decision."""

    def __init__(self) -> None:
        """It has no database."""


def split_of(batch: DataFrame) -> FilteredBatch:
    return FilteredBatch(batch, 0, OPTIONS, NoLetters())


def refused(batch: DataFrame, where: str, *, exact: bool = False) -> list[RefusedRow]:
    """The rows as a search names them."""
    schema = batch.schema
    name = identity_sql(schema) if exact else fingerprint_sql(schema)
    found = [name for (name,) in batch.where(where).select(F.expr(name)).collect()]
    return [RefusedRow(name, number, "table orders", "why", "23514") for number, name in enumerate(found)]


def test_a_bad_row_is_found_by_its_fingerprint(spark: SparkSession) -> None:
    """And left out by its identity; a second search finds others beside it."""
    batch = spark.range(100).selectExpr("id", "if(id % 2 = 0, 'even', 'odd') AS kind", "array(id) AS list")
    split = split_of(batch)
    assert split.leave_out([refused(batch, "id = 7"), []])
    assert sorted(row.id for row in split.frame.collect()) == [number for number in range(100) if number != 7]
    [row] = split.bad_rows.values()
    assert (row.row, row.occurrences, row.all_of_them) == ('{"id":7,"kind":"odd","list":[7]}', 1, True)
    assert split.leave_out([refused(batch, "id = 98")])
    assert split.frame.count() == 98
    with pytest.raises(TooManyBadRowsError, match="3 of the 100 rows") as error:
        split.leave_out([refused(batch, "id = 50")])
    assert [shown.partition(",")[0] for shown in error.value.first] == ['{"id":7', '{"id":98', '{"id":50']
    assert not split.leave_out([[]])


@pytest.mark.parametrize("policy", [pytest.param("CORRECTED", marks=pytest.mark.thorough), "LEGACY"])
def test_a_letter_has_each_value_in_full(spark: SparkSession, policy: str) -> None:
    """In each session, and wherever in a row a value is."""
    values = {
        "TIMESTAMP'2024-05-01 08:01:00.123456+02:00'": "2024-05-01T06:01:00.123456Z",
        "TIMESTAMP'-0043-03-15 12:00:00.000001 UTC'": "-0043-03-15T12:00:00.000001Z",
        "timestamp_micros(9223372036854775807)": "+294247-01-10T04:00:54.775807Z",
        "timestamp_micros(-9223372036854775807)": "-290308-12-21T19:59:05.224193Z",
        "TIMESTAMP_NTZ'2024-05-01 08:01:00.123456'": "2024-05-01T08:01:00.123456",
        "TIMESTAMP_NTZ'-0043-03-15 12:00:00.000001'": "-0043-03-15T12:00:00.000001",
        "DATE'-0043-03-15'": "-0043-03-15",
        "DATE'+12345-03-15'": "+12345-03-15",
        "INTERVAL '1 02:03:04.000005' DAY TO SECOND": "INTERVAL '1 02:03:04.000005' DAY TO SECOND",
        "INTERVAL '-1-2' YEAR TO MONTH": "INTERVAL '-1-2' YEAR TO MONTH",
        "make_interval(1, 2, 0, 3, 4, 5, 6.000007)": "1 years 2 months 3 days 4 hours 5 minutes 6.000007 seconds",
        "X'00FF80'": "AP+A",
        "concat('a', char(0), 'b')": r"\x610062",
        "CAST(X'61FF' AS STRING)": r"\x61ff",
        r"'\\x61 \uFFFD'": "\\x61 \ufffd",
        "12345678901234567890.123456789012345678BD": Decimal("12345678901234567890.123456789012345678"),
        "0.1D + 0.2D": Decimal("0.30000000000000004"),
        "9223372036854775807": Decimal(9223372036854775807),
        "double('NaN')": "NaN",
        "float('-Infinity')": "-Infinity",
        "CAST(NULL AS TIMESTAMP)": None,
    }
    nested = [f"named_struct('a.b', {each}, 'list', array({each}, NULL), 'map', map('k', {each})) AS n{number}"
              for number, each in enumerate(values)]  # fmt: skip
    keys = [f"map({each}, 1) AS k{number}" for number, (each, shown) in enumerate(values.items()) if shown is not None
            and "make_interval" not in each]  # fmt: skip
    structs = "map(struct(X'FF' AS b, DATE'-0043-03-15' AS d), 1) AS s, map(X'00FF80', 1) AS b"
    plain = [f"{each} AS v{number}" for number, each in enumerate(values)]
    with session_settings(spark, {TIME_PARSER: policy}):
        batch = spark.sql(
            f"SELECT {', '.join([*plain, *nested, *keys, structs])}, CAST(NULL AS struct<t: date>) AS none"
        )
        split = split_of(batch)
        assert split.leave_out([refused(batch, "true")])
    [letter] = split.bad_rows.values()
    row = json.loads(letter.row, parse_float=Decimal, parse_int=Decimal)
    for number, shown in enumerate(values.values()):
        assert row[f"v{number}"] == shown
        assert row[f"n{number}"] == {"a.b": shown, "list": [shown, None], "map": {"k": shown}}
        assert f"k{number}" not in row or row[f"k{number}"] == {str(shown): 1}
    assert row["s"] == {'{"b":"/w==","d":"-0043-03-15"}': 1}
    assert (row["b"], row["none"]) == ({"AP+A": 1}, None)


def test_rows_that_differ_each_time_they_are_read_are_named(spark: SparkSession) -> None:
    """Spark takes the function for one that returns the same result each time."""
    batch = spark.range(3).select("id", F.udf(lambda _: str(uuid4()))("id").alias("made"))
    with pytest.raises(ConfigurationError, match=r"different rows each time .* refused \(why\)"):
        split_of(batch).leave_out([refused(batch, "id = 1")])


def test_a_row_with_the_fingerprint_of_a_bad_one_stays(spark: SparkSession) -> None:
    """A26: Spark makes none of maps, so two rows that differ in nothing else have one: the next sift is exact."""
    batch = spark.sql("SELECT 1 AS id, map('a', n) AS tags FROM VALUES (1), (2) AS t(n)")
    split = split_of(batch)
    assert split.leave_out([refused(batch, "tags['a'] = 2")])
    assert (split.exact, len(split.bad_rows), split.frame.count()) == (True, 0, 2)
    assert split.leave_out([refused(batch, "tags['a'] = 2", exact=True)])
    assert [row.tags for row in split.frame.collect()] == [{"a": 1}]


def test_only_some_of_equal_rows_are_left_out(spark: SparkSession) -> None:
    """As with a primary key: the first of them is kept."""
    batch = spark.sql("SELECT id, 'text' AS text FROM VALUES (1), (2), (2), (2) AS t(id)")
    split = split_of(batch)
    assert split.leave_out([refused(batch, "id = 2")[:2]])
    assert sorted(row.id for row in split.frame.collect()) == [1, 2]
