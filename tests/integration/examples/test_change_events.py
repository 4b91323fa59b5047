"""The example of change events: a topic of Debezium's envelopes becomes a table and a compacted topic, exactly once."""

from __future__ import annotations

import json
import shutil
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka import Producer

from change_events import parse, start_query
from spark_2pc_sink import verify
from spark_2pc_sink.testing import read_topic, wait_until
from tests.harness.sql import run_sql

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.conftest import MakeTopic
    from tests.harness.providers import Broker

Row = tuple[int, str, str]
A, B, C = (1, "kettle", "19.90"), (2, "tea", "4.50"), (3, "mug", "7.00")
CHEAPER = (1, "kettle", "9.90")


def event(op: str, before: Row | None, after: Row | None, lsn: int) -> bytes:
    """What Debezium's connector for PostgreSQL writes, without its schema; decimals as texts."""

    def row(of: Row | None) -> Any:
        return None if of is None else dict(zip(("id", "name", "price"), of, strict=True))

    source = {"connector": "postgresql", "lsn": lsn, "table": "products", "txId": lsn // 10}
    envelope = {"before": row(before), "after": row(after), "op": op, "ts_ms": 1_700_000_000_000, "source": source}
    return json.dumps(envelope).encode()


def send(kafka: Broker, topic: str, *events: tuple[int, bytes | None]) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for key, value in events:
        producer.produce(topic, key=json.dumps({"id": key}), value=value)
    assert producer.flush(30) == 0


def test_changes_become_a_table_and_a_compacted_topic(
    spark: SparkSession, kafka: Broker, topic: MakeTopic, database: str, transactional_id: str, tmp_path: Path
) -> None:
    """A snapshot, updates, a row that is deleted and one that comes again; and the last batch is replayed."""
    source, target = topic(partitions=1), topic(partitions=3)
    options = {
        "kafka": kafka.bootstrap,
        "source": source,
        "topic": target,
        "checkpoint": str(tmp_path / "checkpoint"),
        "database": database,
        "transactional-id": transactional_id,
    }
    given = parse([*(f"--{name}={value}" for name, value in options.items()), "--available-now"])

    def run() -> None:
        query = start_query(spark, given)
        assert query.awaitTermination(100), "the query has not ended"

    send(kafka, source, (1, event("r", None, A, 10)), (2, event("r", None, B, 10)), (3, event("c", None, C, 11)))
    run()
    send(
        kafka,
        source,
        (1, event("u", A, CHEAPER, 20)),
        *((2, event("d", B, None, 21)), (2, None)),
        *((3, event("d", C, None, 22)), (3, None), (3, event("c", None, C, 23))),
    )
    run()
    shutil.rmtree(tmp_path / "checkpoint" / "commits")
    run()
    expected = [(1, "kettle", Decimal("9.90")), (3, "mug", Decimal("7.00"))]
    assert run_sql(database, "SELECT id, name, price FROM products ORDER BY id") == expected
    wait_until(lambda: len(read_topic(kafka.bootstrap, target)) == 7, deadline_s=30, what="seven records")
    last = {record.key: record.value for record in read_topic(kafka.bootstrap, target)}
    values = [json.loads(value, parse_float=Decimal) for _, value in sorted(last.items()) if value is not None]
    assert [tuple(value.values()) for value in values] == expected
    assert last[b"2"] is None
    report = verify(transactional_id=transactional_id, kafka={"bootstrap.servers": kafka.bootstrap}, database=database)
    assert report.verdict == "same", report.differences
