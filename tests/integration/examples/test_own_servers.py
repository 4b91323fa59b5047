"""The examples as a user runs them: the demo that kills its job, those that bring their servers, a backfill."""

from __future__ import annotations

import json
import os
import re
import runpy
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from backfill import write_days
from many_tables import EVENTS, TABLES, make_sink, start_query
from orders_events import write_events
from spark_2pc_sink.recipe.placement import Placement
from spark_2pc_sink.testing import assert_same_multiset, read_topic
from spark_2pc_sink.testing.kafka_broker import find_libs
from spark_2pc_sink.testing.postgres import find_binaries
from spark_2pc_sink.testing.processes import find_java_home
from tests.conftest import MakeTopic, or_skip
from tests.harness import ROOT, run_program
from tests.harness.providers import Broker
from tests.integration.postgres import database_tables
from tests.integration.sink.targets import Target

#: In one batch: the line of such an order has nothing to refer to.
CREATED_AND_DELETED = """
    {"id": 4, "op": "c", "version": 1, "customer": "dan", "lines": [{"sku": "tea", "quantity": 1}]}
    {"id": 4, "op": "d", "version": 2}"""
EXAMPLES = ROOT / "examples"


def printed_by(example: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines that an example prints; its session is that of the test run."""
    runpy.run_path(str(EXAMPLES / example), run_name="__main__")
    return capsys.readouterr().out.splitlines()


@pytest.mark.usefixtures("spark")
def test_the_simplest_job(capsys: pytest.CaptureFixture[str]) -> None:
    """And a newcomer reads it at a glance."""
    assert printed_by("orders_stream.py", capsys) == ["Kafka has 100 records, PostgreSQL 100 rows"]
    assert len((EXAMPLES / "orders_stream.py").read_text().splitlines()) <= 40


@pytest.mark.thorough
@pytest.mark.java
@pytest.mark.timeout(300)
def test_a_kafka_source_with_the_connector_of_its_own_packages(tmp_path: Path) -> None:
    """As a new user has it, in an activated environment: Spark fetches the connector that README and the pages name."""
    example = EXAMPLES / "orders_from_kafka.py"
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")} | {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "JAVA_TOOL_OPTIONS": f"-Duser.home={tmp_path}",
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    ended = run_program(sys.executable, str(example), cwd=tmp_path, env=env)
    assert ended.stdout.splitlines()[-1:] == ["Kafka has 100 records, PostgreSQL 100 rows"]
    [connector] = set(re.findall(r"org\.apache\.spark:spark-sql-kafka[^\s\"]*", example.read_text()))
    for page in ("README.md", "docs/compatibility.md", "examples/change_events.py"):
        assert connector in (EXAMPLES.parent / page).read_text(), page


def fields(kafka: Broker, topic: str, name: str) -> Counter[tuple[bytes | None, str | None]]:
    """The key of each record, and a field of its value; None of a tombstone."""
    records = read_topic(kafka.bootstrap, topic)
    return Counter((record.key, None if record.value is None else json.loads(record.value)[name]) for record in records)


def test_many_tables(
    spark: SparkSession, kafka: Broker, database: str, topic: MakeTopic, transactional_id: str, tmp_path: Path
) -> None:
    """A26, D11: every output has what it should, and a bad order is a dead letter and in none of them."""
    topics = topic(partitions=2), topic(partitions=2)
    database_tables.run(database, *TABLES)
    (tmp_path / "orders").mkdir()
    for number, events in enumerate((EVENTS[0] + CREATED_AND_DELETED, *EVENTS[1:])):
        (tmp_path / "orders" / f"{number}.json").write_text(events)
        sink = make_sink(kafka.bootstrap, database, topics=topics, name=transactional_id)
        assert start_query(spark, sink, str(tmp_path)).awaitTermination(100), "the query has not ended"
    orders, lines = (fields(kafka, *each) for each in zip(topics, ("customer", "sku"), strict=True))
    assert orders == Counter([(b"1", "ann"), (b"2", "bob"), (b"1", None), (b"4", None)])
    assert lines == Counter([(b"1", "tea"), (b"2", "mug")])
    assert database_tables.rows(database, "SELECT * FROM orders") == [(2, "bob")]
    assert database_tables.rows(database, "SELECT * FROM order_lines") == [(2, "mug", 1)]
    letters = "SELECT row->>'id', row->>'op', output, sqlstate FROM kafka_transaction_state_dead_letters ORDER BY 1"
    assert database_tables.rows(database, letters) == [
        ("3", "c", "table order_lines", "23514"),
        ("4", "c", "table order_lines", "23503"),
    ]


DEMO_EVENTS = 4_000


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A directory for everything that the demo makes; open to PostgreSQL's user, which tmp_path is not."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


@pytest.mark.kafka
@pytest.mark.postgres
@pytest.mark.spark
@pytest.mark.java
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_demo_kills_the_job_and_both_sides_are_equal_in_the_end(
    pytestconfig: pytest.Config, temporary: Path
) -> None:
    """A1: a batch whose driver died after the database commit, and before Kafka's, comes again and is written once."""
    for needed in (find_java_home, find_libs, find_binaries):
        or_skip(pytestconfig, needed)
    env = {**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": str(ROOT)}
    demo = (str(EXAMPLES / "orders_demo.py"), f"--events={DEMO_EVENTS}")
    done = run_program(sys.executable, *demo, cwd=ROOT, env=env, deadline_s=840)
    story = done.stdout + done.stderr
    assert story.count(" s killed\n") == 2, story
    for recovered in ("aborted the open transaction", "committed"):
        assert re.search(rf"\| orders: recovered: {recovered}", story), story
    assert story.count("not written again") == 1, story
    assert re.search(rf"\| Kafka {{5}} +{DEMO_EVENTS:,} +{DEMO_EVENTS:,} +{DEMO_EVENTS:,} +0 +0 +0\n", story), story
    assert re.search(rf"\| PostgreSQL +{DEMO_EVENTS:,} +([\d,]+) +\1 +0 +0 +0\n", story), story
    assert list(temporary.iterdir()) == []


def test_days_are_written_once_however_often_it_is_started(
    spark: SparkSession, kafka: Broker, database: str, topic: MakeTopic, transactional_id: str, tmp_path: Path
) -> None:
    target = Target(kafka, database, transactional_id, topic())
    days, events = tmp_path / "days", tmp_path / "events"
    write_events(events, events=60, seed=7, files=3)
    placed = []
    for date, file in zip(("2026-01-30", "2026-01-31", "2026-02-03"), sorted(events.iterdir()), strict=True):
        (days / date).mkdir(parents=True)
        file.rename(days / date / file.name)
        with closing(target.sink(key="order_id", table="orders_archive")) as sink:
            placed.append([report.placement for report in write_days(spark, sink, days)])
    run, skip = Placement.RUN, Placement.SKIP
    assert placed == [[run], [skip, run], [skip, skip, run]]
    lines = [line for file in days.glob("*/*") for line in file.read_text(encoding="utf-8").splitlines()]
    expected = [(event["order_id"], event["sequence"]) for event in map(json.loads, lines)]
    sent = [(event["order_id"], event["sequence"]) for event in target.values()]
    assert_same_multiset(sent, expected, what="records")
    assert_same_multiset(target.rows("order_id, sequence", "orders_archive"), expected, what="rows")
