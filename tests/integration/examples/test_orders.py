"""The example as a user runs it: the demo to its end, and the comparison on a real topic and table."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from sqlalchemy import create_engine, text

from orders_compare import EXIT_DIFFERENT, expect, read_events
from orders_events import write_events
from spark_2pc_sink.testing.java import find_java_home
from spark_2pc_sink.testing.kafka_broker import find_libs
from spark_2pc_sink.testing.postgres import find_binaries
from tests.conftest import MakeTopic, or_skip
from tests.harness.providers import Broker

ROOT = Path(__file__).resolve().parents[3]
DEMO = ROOT / "examples" / "orders_demo.py"
EVENTS = 4_000


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
    done = subprocess.run(
        [sys.executable, DEMO, f"--events={EVENTS}"],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=840,
        check=False,
    )
    story = done.stdout + done.stderr
    assert done.returncode == 0, story
    assert story.count(" s killed\n") == 2, story
    for recovered in ("aborted the open transaction", "committed"):
        assert re.search(rf"\| orders: recovered: {recovered}", story), story
    assert story.count("not written again") == 1, story
    assert re.search(rf"\| Kafka {{5}} +{EVENTS:,} +{EVENTS:,} +{EVENTS:,} +0 +0 +0\n", story), story
    assert re.search(rf"\| PostgreSQL +{EVENTS:,} +([\d,]+) +\1 +0 +0 +0\n", story), story
    assert list(temporary.iterdir()) == []


@pytest.fixture
def written(tmp_path: Path, kafka: Broker, topic: MakeTopic, database: str) -> dict[str, str]:
    """A topic and a table that hold what 200 events make: where they are, for `compare`."""
    write_events(tmp_path, events=200, seed=7, files=2)
    expected = expect(read_events(tmp_path))
    there = {"kafka": kafka.bootstrap, "topic": topic(), "database": database, "table": "orders"}
    send(there, expected.records)
    # Decimals of the expected texts are texts; in the table they are numbers again, as the sink writes them.
    insert = text(
        "INSERT INTO orders SELECT * FROM jsonb_populate_record(NULL::orders, CAST(:order AS jsonb)) RETURNING order_id"
    )
    with create_engine(database).begin() as connection:
        connection.execute(
            text(
                "CREATE TABLE orders (order_id text PRIMARY KEY, sequence int, status text, event_time timestamptz, "
                "customer_id int, customer_name text, country text, region text, currency text, total numeric(16, 2), "
                "items jsonb, note text)"
            )
        )
        for row in expected.rows:
            connection.execute(insert, {"order": row})
    return there


def send(there: dict[str, str], records: list[str]) -> None:
    """Send orders to the topic."""
    producer = Producer({"bootstrap.servers": there["kafka"], "enable.idempotence": True})
    for record in records:
        producer.produce(there["topic"], key=json.loads(record)["order_id"], value=record)
    assert producer.flush(30) == 0


def test_the_command_says_so_with_its_exit_code(written: dict[str, str], tmp_path: Path) -> None:
    send(written, expect(read_events(tmp_path)).records[:1])
    given = [f"--{name}={value}" for name, value in {**written, "events": tmp_path}.items()]
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "orders_compare.py", *given],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == EXIT_DIFFERENT, done.stderr
    assert "duplicates" in done.stdout
