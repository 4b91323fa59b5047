"""Bad rows: each kind goes to the dead letters, and the other rows of its batch to both sides."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from spark_2pc_sink import BatchReport, DualWriteSink
from spark_2pc_sink.errors import TooManyBadRowsError
from spark_2pc_sink.recipe.placement import Placement
from spark_2pc_sink.testing import TopicRecord, read_topic
from tests.harness.streams import FileStream, sink_options
from tests.integration.postgres import database_tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.conftest import MakeTopic
    from tests.harness.providers import Broker

SCHEMA = StructType(
    [
        StructField("id", LongType()),
        StructField("name", StringType()),
        StructField("amount", IntegerType()),
        StructField("parent", LongType()),
    ]
)
#: Each constraint of which a row can be a victim; the last is checked at the end of a transaction.
TABLE = """
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
    """Both sides, and a stream."""

    def __init__(self, stream: FileStream, options: dict[str, Any]) -> None:
        self.stream, self.options = stream, options
        self.reports: list[BatchReport] = []

    def execute(self, statements: str) -> None:
        engine = sqlalchemy.create_engine(self.options["database"], poolclass=sqlalchemy.NullPool)
        with engine.begin() as connection:
            connection.exec_driver_sql(statements)

    def run(self, frame: DataFrame | None = None, **options: Any) -> None:
        """To the end of what is there, as a start of the job."""
        sink = DualWriteSink(**{**self.options, "on_batch": self.reports.append, **options})
        self.stream.run(sink, frame)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        return database_tables.rows(self.options["database"], query)

    def letters(self) -> dict[int, tuple[int, str]]:
        """How often, and the SQLSTATE, by id."""
        query = "SELECT row->>'id', occurrences, sqlstate FROM kafka_transaction_state_dead_letters"
        return {int(number): (occurrences, code) for number, occurrences, code in self.rows(query)}

    def records(self) -> list[TopicRecord]:
        return read_topic(self.options["kafka"]["bootstrap.servers"], self.options["topic"])

    def ids(self) -> list[int]:
        """Those in the topic, which are those in the table."""
        in_topic = sorted(json.loads(record.value or b"")["id"] for record in self.records())
        assert [(number,) for number in in_topic] == self.rows("SELECT id FROM target ORDER BY id")
        return in_topic


@pytest.fixture
def sides(
    spark: SparkSession, tmp_path: Path, kafka: Broker, database: str, transactional_id: str, topic: MakeTopic
) -> Sides:
    """A topic that takes records of one kilobyte."""
    name = topic(partitions=3, config={"max.message.bytes": "1000"})
    options = sink_options(broker=kafka, database=database, transactional_id=transactional_id, topic=name, key="id")
    # What is too large for the topic must not be compressed until it fits.
    options["kafka"]["compression.type"] = "none"
    return Sides(FileStream(spark, tmp_path, SCHEMA), {**options, "create_table": False, "bad_rows": "dead_letter"})


def test_each_kind_of_bad_row_has_its_dead_letter(sides: Sides, caplog: pytest.LogCaptureFixture) -> None:
    """A26: and no other place; all other rows are on both sides, also those that refer to one behind them."""
    sides.execute(TABLE)
    sides.stream.add([*GOOD, *((number, *row) for number, (row, _) in BAD.items()), GOOD[-1], GOOD[-1]])
    with caplog.at_level("INFO", "spark_2pc_sink"):
        sides.run(columns=COLUMNS)
    assert sides.letters() == {number: (1, code) for number, (_, code) in BAD.items()} | {299: (2, "23505")}
    assert sides.ids() == [row[0] for row in GOOD]
    [report] = sides.reports
    assert (report.bad_rows, report.row_count, report.record_count) == (len(BAD) + 2, len(GOOD), len(GOOD))
    told = dict(
        sides.rows("SELECT (row->>'id')::int, output || ': ' || reason FROM kafka_transaction_state_dead_letters")
    )
    assert told[10].startswith(
        r"table public.target: column 'name': 'a\x00b' cannot be stored: PostgreSQL's text has no"
    )
    assert "max.message.bytes of the topic is 1000" in told[12]
    assert "not this one" in told[16]
    said = "null cannot be stored: the table's column is integer NOT NULL, or an upsert key"
    assert told[19] == f"table public.target: column 'needed': {said}"
    assert told[20].startswith("table public.target: column 'narrow': 32768 cannot be stored: ")
    assert sides.rows("SELECT figures->>'bad_rows' FROM kafka_transaction_state_history WHERE batch_id = 0") == [
        (str(len(BAD) + 2),)
    ]
    # A search is no crash: there is one claim, that of the start.
    assert sides.rows("SELECT generation FROM kafka_transaction_state") == [(1,)]
    assert [action for (action,) in sides.rows("SELECT action FROM kafka_transaction_state_actions")] == ["claim"]
    searches = [record for record in caplog.records if "retrying" in record.getMessage()]
    assert [(record.levelname, record.getMessage().partition("batch ")[2]) for record in searches] == [
        ("INFO", f"0: {count} bad rows, retrying without them") for count in (5, 11)
    ]


def test_a_replay_ends_in_the_same_split(sides: Sides) -> None:
    """A26: though the table takes every row by then. The next batch is split anew."""
    sides.execute(
        "CREATE TABLE target (id bigint PRIMARY KEY, name text CHECK (name <> 'bad'), amount int, parent int)"
    )
    sides.stream.add([(1, "bad", 1, 1), (2, "good", 1, 1), (2, "good", 1, 1)])
    sides.run()
    assert sides.letters() == {1: (1, "23514"), 2: (1, "23505")}
    assert sides.ids() == [2]
    sides.execute("ALTER TABLE target DROP CONSTRAINT target_name_check")
    # As if the job had been killed before Spark recorded the batch.
    sides.stream.forget(0)
    sides.stream.add([(3, "bad", 1, 1)])
    sides.run()
    assert [report.placement for report in sides.reports] == [Placement.RUN, Placement.SKIP, Placement.RUN]
    assert sides.letters() == {1: (1, "23514"), 2: (1, "23505")}
    assert sides.ids() == [2, 3]


def test_more_bad_rows_than_allowed_fail_the_batch(sides: Sides) -> None:
    """With the first of them, and nothing on any side."""
    sides.execute("CREATE TABLE target (id bigint PRIMARY KEY, name text, amount int CHECK (amount > 10), parent int)")
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
    sides.execute("CREATE TABLE target (id bigint PRIMARY KEY, name text, amount int CHECK (amount > 0), doc jsonb)")
    superseded, winner = [(1, "superseded", -1, 1), (1, "wins", 1, 2)], (2, "wins", -2, 2)
    sides.stream.add([*superseded, winner, (2, "next", -3, 1), (2, "last", 5, 0), (3, "{", 1, 1), (3, "wins", 1, 2)])
    columns = {"id": "id", "name": "name", "amount": "amount", "doc": "if(name = '{', name, '{}')"}
    sides.run(mode="upsert", upsert_keys=["id"], upsert_order_by="parent", columns=columns)
    assert sides.rows("SELECT id, name FROM target ORDER BY id") == [(1, "wins"), (2, "last"), (3, "wins")]
    found = sides.rows("SELECT row->>'name', sqlstate FROM kafka_transaction_state_dead_letters ORDER BY 1")
    assert found == [("next", "23514"), ("wins", "23514"), ("{", "22P02")]
    assert len(sides.records()) == 4
