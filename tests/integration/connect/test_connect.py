"""The sink on a real Spark Connect server: the client is another process, and so is the one that writes batches."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from spark_2pc_sink.testing import assert_same_multiset, read_topic
from tests.harness import ROOT
from tests.harness.connect_server import ConnectServer
from tests.integration.postgres.database_tables import rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import MakeTopic
    from tests.harness.providers import Broker

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

EXAMPLE: Final = ROOT / "examples" / "connect_orders.py"
JOB_DEADLINE_S: Final = 120


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    with ConnectServer(tmp_path_factory.mktemp("connect")) as started:
        yield started


class Orders:
    """A job of the example, and what it is to write."""

    def __init__(self, remote: str, directory: Path, kafka: Broker, database: str, topic: str, name: str) -> None:
        self.directory, self.kafka, self.database, self.topic, self.name = directory, kafka, database, topic, name
        self.remote = remote
        self.expected: list[tuple[str, int]] = []
        (directory / "events").mkdir()

    def add(self, count: int) -> None:
        """Add a file of events."""
        first = len(self.expected)
        events = [{"order_id": f"order-{n}", "sequence": n, "status": "paid"} for n in range(first, first + count)]
        path = self.directory / "events" / f"{first:08}.json"
        path.write_text("\n".join(json.dumps(event) for event in events), encoding="utf-8")
        self.expected += [(f"order-{n}", n) for n in range(first, first + count)]

    def command(self, python: str = sys.executable) -> list[str]:
        """The client."""
        return [
            *(python, str(EXAMPLE), "--remote", self.remote, "--events", str(self.directory / "events")),
            *("--checkpoint", str(self.directory / "checkpoint"), "--kafka", self.kafka.bootstrap),
            *("--database", self.database, "--topic", self.topic, "--table", "orders"),
            *("--transactional-id", self.name, "--max-files-per-trigger", "1"),
        ]

    def run(self, python: str = sys.executable) -> None:
        """Run the job to its good end."""
        done = subprocess.run(
            self.command(python),
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=JOB_DEADLINE_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]

    def check(self) -> None:
        """Both sides have every event once."""
        sent: list[Any] = [json.loads(record.value or b"") for record in read_topic(self.kafka.bootstrap, self.topic)]
        assert_same_multiset([(e["order_id"], e["sequence"]) for e in sent], self.expected, what="records")
        assert_same_multiset(rows(self.database, "SELECT order_id, sequence FROM orders"), self.expected, what="rows")


@pytest.fixture
def orders(
    server: ConnectServer, tmp_path: Path, kafka: Broker, database: str, topic: MakeTopic, transactional_id: str
) -> Orders:
    return Orders(server.remote, tmp_path, kafka, database, topic(), transactional_id)


def test_the_example_writes_both_sides_and_goes_on_after_a_restart(orders: Orders, server: ConnectServer) -> None:
    """By tasks that stage their rows, and by the driver where a batch is small; what is not checked is said once."""
    for count in (2_000, 10, 10):
        orders.add(count)
    orders.run()
    orders.check()
    orders.add(10)
    orders.run()
    orders.check()
    log = server.log.read_text(errors="replace")
    assert log.count("Spark Connect shows no plans") == 2
    assert rows(orders.database, "SELECT query_id, batch_id, status FROM kafka_transaction_state") == [
        (f"query {orders.name!r}", 3, "done")
    ]
