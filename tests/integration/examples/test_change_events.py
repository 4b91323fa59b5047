"""The example of change events: a topic of Debezium's envelopes becomes a table and a compacted topic, exactly once."""

from __future__ import annotations

import argparse
import base64
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from change_events import COLUMNS, parse, read_changes, start_query
from spark_2pc_sink import verify
from spark_2pc_sink.testing import read_topic, wait_until
from tests.conftest import MakeTopic
from tests.harness.providers import Broker
from tests.harness.sql import run_sql

Row = tuple[int, str | None, Decimal | None, str | None, date | None, datetime | None]
UNAVAILABLE = "__debezium_unavailable_value"
LONG = "long and hot " * 300
DAY, TIME = date(2024, 2, 29), datetime.fromisoformat("1969-12-31T23:59:58.123456")
A = (1, "kettle", Decimal("19.90"), LONG, DAY, TIME)
B = (2, "tea", Decimal("-4.50"), None, None, None)
C = (3, None, None, "mug", DAY, None)
CHEAPER, UNTOUCHED = ((1, "kettle", Decimal("0.01"), text, DAY, TIME) for text in (LONG, UNAVAILABLE))
DEAREST = (4, "gold", Decimal("-99999999.99"), "heavy", None, None)
EPOCH = datetime.fromisoformat("1970-01-01")


@dataclass(frozen=True)
class Form:
    """How a connector and its converter write events.

    Attributes:
        schemas: schemas.enable=true, with these types and names of price, listed and changed.
        price, listed, changed: the JSON of a value.
    """

    price: Callable[[Decimal], Any]
    listed: Callable[[date], Any]
    changed: Callable[[datetime], Any]
    schemas: tuple[dict[str, Any], ...] = ()

    def row(self, of: Row | None) -> Any:
        writers: tuple[Callable[[Any], Any] | None, ...] = (None, None, self.price, None, self.listed, self.changed)
        told = zip(COLUMNS, of or (), writers, strict=of is not None)
        values = {name: writer(value) if writer and value is not None else value for name, value, writer in told}
        return values if of is not None else None

    def message(self, payload: Any) -> bytes:
        if not self.schemas:
            return json.dumps(payload).encode()
        fields = [{"field": "id", "type": "int64", "optional": False}, {"field": "name", "type": "string"}]
        named = zip(("price", "listed", "changed"), self.schemas, strict=True)
        fields += [{"field": name, "optional": True, **schema} for name, schema in named]
        sides = [{"type": "struct", "fields": fields, "field": side} for side in ("before", "after")]
        schema = {"type": "struct", "fields": [*sides, {"type": "string", "field": "op"}], "name": "shop.Envelope"}
        return json.dumps({"schema": schema, "payload": payload}).encode()

    def event(self, op: str, before: Row | None, after: Row | None, lsn: int) -> bytes:
        source = {"connector": "postgresql", "lsn": lsn, "table": "products", "txId": lsn // 10}
        envelope = {"before": self.row(before), "after": self.row(after), "op": op, "ts_ms": 1, "source": source}
        return self.message({**envelope, "transaction": None})


def encoded(price: Decimal, scale: int = 2) -> str:
    unscaled = int(price.scaleb(scale))
    return base64.b64encode(unscaled.to_bytes(unscaled.bit_length() // 8 + 1, "big", signed=True)).decode()


def days(day: date) -> int:
    return (day - EPOCH.date()).days


def micros(time: datetime) -> int:
    return (time - EPOCH) // (datetime.resolution)


def named(kind: str, name: str, **parameters: str) -> dict[str, Any]:
    return {"type": kind, "name": name, "version": 1, **({"parameters": parameters} if parameters else {})}


TIMES = named("int32", "io.debezium.time.Date"), named("int64", "io.debezium.time.MicroTimestamp")
FORMS = {
    "defaults": Form(
        encoded, days, micros, (named("bytes", "org.apache.kafka.connect.data.Decimal", scale="2"), *TIMES)
    ),
    "no_schemas": Form(encoded, days, micros),
    "texts": Form(str, str, datetime.isoformat),
    "texts_with_schemas": Form(str, days, micros, ({"type": "string"}, *TIMES)),
    "doubles": Form(float, days, micros),
    "other_names": Form(
        lambda price: {"scale": 4, "value": encoded(price, 4)},
        days,
        lambda time: micros(time) * 1000,
        (
            named("struct", "io.debezium.data.VariableScaleDecimal"),
            named("int32", "org.apache.kafka.connect.data.Date"),
            named("int64", "io.debezium.time.NanoTimestamp"),
        ),
    ),
}


class Job:
    """The example, and what its source topic gets."""

    def __init__(self, spark: SparkSession, kafka: Broker, source: str, **options: str) -> None:
        self._spark, self._kafka, self._source = spark, kafka, source
        self._options = {"kafka": kafka.bootstrap, "source": source, **options}

    def send(self, *events: tuple[Any, bytes | None]) -> None:
        producer = Producer({"bootstrap.servers": self._kafka.bootstrap})
        for key, value in events:
            producer.produce(self._source, key=key if isinstance(key, bytes) else json.dumps({"id": key}), value=value)
        assert producer.flush(30) == 0

    def run(self) -> None:
        query = start_query(self._spark, self._parsed("--available-now"))
        assert query.awaitTermination(100), "the query has not ended"

    def changes(self, *more: str) -> list[tuple[Any, ...]]:
        """What the example makes of the events that are there, without a query, in their order."""
        reading: Any = SimpleNamespace(readStream=self._spark.read)
        found = read_changes(reading, self._parsed(*more)).collect()
        return sorted((tuple(row) for row in found), key=lambda row: row[1])

    def _parsed(self, *more: str) -> argparse.Namespace:
        return parse([*(f"--{name}={value}" for name, value in self._options.items()), *more])


@pytest.fixture
def target(topic: MakeTopic) -> str:
    return topic(partitions=3)


@pytest.fixture
def job(
    spark: SparkSession,
    kafka: Broker,
    topic: MakeTopic,
    target: str,
    database: str,
    transactional_id: str,
    tmp_path: Path,
) -> Job:
    return Job(
        spark,
        kafka,
        topic(partitions=1),
        topic=target,
        checkpoint=str(tmp_path / "checkpoint"),
        database=database,
        **{"transactional-id": transactional_id},
    )


def test_changes_become_a_table_and_a_compacted_topic(
    job: Job, kafka: Broker, target: str, database: str, transactional_id: str, tmp_path: Path
) -> None:
    """A snapshot, updates, rows that are deleted or come again, what was not sent; and the last batch is replayed."""
    made = FORMS["defaults"]
    event = made.event
    job.send((1, event("r", None, A, 10)), (2, event("r", None, B, 10)), (3, event("c", None, C, 11)))
    job.run()
    gone = made.message({"before": None, "after": None, "op": "d", "source": {"lsn": 22}})
    job.send(
        (1, event("u", A, UNTOUCHED, 20)),
        (2, event("d", (2, None, None, None, None, None), None, 21)),
        (2, None),
        # Without a row before it (REPLICA IDENTITY NOTHING), and a tombstone in an envelope.
        (made.message({"id": 3}), gone),
        (3, made.message(None)),
        (3, event("c", None, C, 23)),
        (4, event("c", None, DEAREST, 24)),
        (4, event("u", DEAREST, (*DEAREST[:3], UNAVAILABLE, None, None), 25)),
        (b"prefix", made.message({"op": "m", "source": {"lsn": 26}, "message": {"prefix": "p", "content": "YQ=="}})),
    )
    job.run()
    shutil.rmtree(tmp_path / "checkpoint" / "commits")
    job.run()
    assert run_sql(database, "SELECT * FROM products ORDER BY id") == [CHEAPER, C, DEAREST]
    wait_until(lambda: len(read_topic(kafka.bootstrap, target)) == 9, what="nine records")
    last = {record.key: record.value for record in read_topic(kafka.bootstrap, target)}
    values = [json.loads(value, parse_float=str) for _, value in sorted(last.items()) if value is not None]
    assert last[b"2"] is None
    assert values == [
        {
            "id": 1,
            "name": "kettle",
            "price": "0.01",
            "listed": "2024-02-29",
            "changed": "1969-12-31T23:59:58.123456",
            "unchanged": ["description"],
        },
        {"id": 3, "description": "mug", "listed": "2024-02-29"},
        {"id": 4, "name": "gold", "price": "-99999999.99", "unchanged": ["description"]},
    ]
    report = verify(transactional_id=transactional_id, kafka={"bootstrap.servers": kafka.bootstrap}, database=database)
    assert report.verdict == "same", report.differences


def test_each_form_of_an_event_says_the_same(job: Job) -> None:
    """However the connector writes decimals and times, with a schema and without one."""
    for number, form in enumerate(FORMS.values()):
        sent = (("c", None, A), ("r", None, B), ("c", None, C), ("u", A, UNTOUCHED), ("d", DEAREST, None))
        job.send(*((1, form.event(*each, lsn)) for lsn, each in enumerate(sent, number * 10)))
    told = job.changes()
    unchanged = (*UNTOUCHED[:3], None, *UNTOUCHED[4:])
    expected = [("c", [], A), ("r", [], B), ("c", [], C), ("u", ["description"], unchanged), ("d", [], DEAREST)]
    for number, name in enumerate(FORMS):
        of_form = [(op, lacking, tuple(row)) for op, lsn, lacking, *row in told if lsn // 10 == number]
        assert of_form == expected, name


@pytest.mark.parametrize(
    ("value", "said", "way_on"),
    [
        (
            {"op": "t", "before": None, "after": None, "source": {"lsn": 9}},
            "truncated.*--ignore-truncate",
            "--ignore-truncate",
        ),
        ({"id": 1, "name": "flat"}, "op is missing; with ExtractNewRecordState there is none", None),
        (
            {"op": "c", "after": {"id": 1, "price": "1234"}, "source": {"lsn": 9}},
            "price is 1234, either a decimal or base64 of one.*--decimals",
            "--decimals=string",
        ),
    ],
)
def test_what_stops_the_job_says_how_to_go_on(job: Job, value: dict[str, Any], said: str, way_on: str | None) -> None:
    job.send((1, json.dumps(value).encode()))
    with pytest.raises(PySparkException, match=said):
        job.changes()
    if way_on is not None:
        expected = [(1, None, Decimal(1234))] if value.get("after") else []
        assert [row[3:6] for row in job.changes(way_on)] == expected


def test_the_connector_may_have_another_placeholder(job: Job) -> None:
    event = FORMS["no_schemas"].event
    job.send((1, event("u", None, (*A[:3], "it's \\ not here", DAY, TIME), 2)))
    [change] = job.changes("--placeholder=it's \\ not here")
    assert (change[2], change[6]) == (["description"], None)
