"""What a reader of the manual has: a stream of orders, a topic and a table for them, and a file of the sink."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_2pc_sink.testing import ReferenceCoordinator, TopicRecord, read_topic
from tests.harness.sql import run_sql
from tests.harness.streams import FileStream

NOON = datetime(2026, 11, 24, 12, 0, 0, 123456, tzinfo=timezone.utc)
#: The orders of most pages; a later row of an id has a later time.
ROWS = [(1, "tea", NOON, 3.5), (2, None, NOON, 4.5), (3, "jam", NOON, 5.5)]
SCHEMA = "order_id BIGINT, name STRING, event_time TIMESTAMP, total DOUBLE"
DDL = """
CREATE TABLE orders (
    order_id bigint PRIMARY KEY, name text, event_time timestamptz, total float8 CHECK (total > 0)
)
"""


@dataclass
class Reader:
    """What the reader of a page has: a stream of orders, a topic and a table for them, a place for checkpoints.

    Attributes:
        stream: of the orders.
        broker: of its own, so that topics have the names of the page.
        database: its URL.
        folder: where files are.
    """

    stream: FileStream
    broker: ReferenceCoordinator
    database: str
    folder: Path

    def names(self, **more: Any) -> dict[str, Any]:
        orders = self.stream.frame()
        return {"spark": self.stream.spark, "orders": orders, "path": str(self.folder / "checkpoint"), **more}

    def options(self, **more: Any) -> dict[str, Any]:
        """What a page has in place of dots."""
        kafka = {"bootstrap.servers": self.broker.bootstrap}
        places = {"kafka": kafka, "database": self.database, "topic": "orders", "key": "order_id", "table": "orders"}
        return {"transactional_id": "orders", **places, **more}

    def file(self) -> str:
        path = self.folder / "orders.toml"
        lines = [f"{name} = {json.dumps(value)}\n" for name, value in self.options().items() if name != "kafka"]
        path.write_text("".join(lines) + f'[kafka]\nbootstrap.servers = "{self.broker.bootstrap}"\n')
        return str(path)

    def records(self, topic: str = "orders") -> list[TopicRecord]:
        return read_topic(self.broker.bootstrap, topic)

    def rows(self) -> list[tuple[Any, ...]]:
        return run_sql(self.database, "SELECT order_id, name, event_time, total FROM orders ORDER BY order_id")


@pytest.fixture
def reader(spark: SparkSession, tmp_path: Path, database: str) -> Iterator[Reader]:
    from pyspark.sql.types import _parse_datatype_string  # noqa: PLC0415 - needs a session

    stream = FileStream(spark, tmp_path, _parse_datatype_string(SCHEMA))  # type: ignore[arg-type]
    stream.add(list(ROWS))
    run_sql(database, DDL)
    with ReferenceCoordinator() as broker:
        broker.create_topic("orders", partitions=2)
        yield Reader(stream, broker, database, tmp_path)
