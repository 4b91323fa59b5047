"""The examples that bring their servers run as they are, and say what both sides have in the end."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from many_tables import EVENTS, TABLES, make_sink, start_query
from spark_2pc_sink.testing import read_topic
from tests.integration.postgres import database_tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.conftest import MakeTopic
    from tests.harness.providers import Broker

#: In one batch: the line of such an order has nothing to refer to.
CREATED_AND_DELETED = """
    {"id": 4, "op": "c", "version": 1, "customer": "dan", "lines": [{"sku": "tea", "quantity": 1}]}
    {"id": 4, "op": "d", "version": 2}"""
EXAMPLES = Path(__file__).parents[3] / "examples"


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
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")} | {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "JAVA_TOOL_OPTIONS": f"-Duser.home={tmp_path}",
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    ended = subprocess.run(
        [sys.executable, example], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert ended.stdout.splitlines()[-1:] == ["Kafka has 100 records, PostgreSQL 100 rows"], ended.stderr[-2000:]
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
