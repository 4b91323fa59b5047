"""examples/service.py: killed while it takes orders, and started again."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable

from sqlalchemy import create_engine, text

from spark_2pc_sink.testing import read_topic, wait_until
from tests.harness import ROOT
from tests.harness.providers import Broker

ENOUGH = 20


def test_the_table_and_the_topic_have_the_same_orders(
    kafka_without_2pc: Broker, database: str, topic: Callable[..., str]
) -> None:
    orders = topic(partitions=2, broker=kafka_without_2pc)
    command = [sys.executable, str(ROOT / "examples" / "service.py"), "--topic", orders]
    command += ["--bootstrap", kafka_without_2pc.bootstrap, "--database", database, "--threads", "4"]
    engine = create_engine(database)

    def rows() -> Counter[str]:
        with engine.connect() as connection:
            there = connection.scalar(text("SELECT to_regclass('service_orders') IS NOT NULL"))
            return Counter(connection.scalars(text("SELECT id FROM service_orders")) if there else [])

    killed = subprocess.Popen([*command, "--orders", "1000000"], cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: rows().total() > ENOUGH, deadline_s=60, what="the service takes orders")
    finally:
        killed.kill()
        killed.wait()
    done = subprocess.run([*command, "--orders", "10"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "10 orders are in the table and in the topic\n"), done.stderr
    records = Counter(
        json.loads(record.value or b"")["id"] for record in read_topic(kafka_without_2pc.bootstrap, orders)
    )
    found = rows()
    engine.dispose()
    assert found == records
