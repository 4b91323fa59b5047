"""docs/reading.md: each reader sees committed batches only, with the setting that the page names and not without it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer
from pyspark.sql import DataFrame, SparkSession

from jdbc_state import SqlStateStore
from spark_2pc_sink.testing import PostgresServer, assert_same_multiset, read_topic, wait_until
from tests.conftest import MakeTopic, or_skip
from tests.harness.page_blocks import ROOT, block_of, run_block
from tests.harness.postgres_standby import PostgresStandby
from tests.harness.providers import Broker
from tests.harness.sql import run_sql
from tests.harness.streams import FileStream, start_query
from tests.integration.reference.clients.copying_apps import find_streams
from tests.integration.reference.clients.java_client import JavaClients, JavaProcess
from tests.integration.sink.targets import SCHEMA, Target, rows_of
from tests.integration.writer.writers import table_of, writer_on

PAGE = "docs/reading.md"
ADDRESS = "broker:9092"
DEADLINE_S = 60.0
COMMITTED = [f"first-{number}" for number in range(5)] + [f"last-{number}" for number in range(5)]
ABORTED = [f"aborted-{number}" for number in range(5)]


def names_of(marker: str, places: dict[str, str] | None = None, *, without: str = "", **names: Any) -> dict[str, Any]:
    """What the block that has this in it names, when it has run; ``without`` a part of it."""
    page = block_of(PAGE, marker)
    assert without in page.text
    run_block(replace(page, text=page.text.replace(without, "")), names, places)
    return names


def values_of(messages: Any) -> list[str]:
    return [each.value().decode() for each in messages]


@pytest.fixture
def written(kafka: Broker, topic: MakeTopic, transactional_id: str) -> str:
    """A topic with two committed transactions and an aborted one between them."""
    name = topic(partitions=1)
    with writer_on(kafka.bootstrap, transactional_id, name) as writer:
        for prefix in ("first", "aborted", "last"):
            writer.begin_transaction()
            writer.append(table_of(5, prefix=prefix))
            writer.flush()
            writer.abort_transaction() if prefix == "aborted" else writer.commit_transaction()
    wait_until(lambda: len(read_topic(kafka.bootstrap, name)) == 10, what="the markers")
    return name


def taken(poll: Callable[[], list[str]], count: int) -> list[str]:
    """What comes until so many values have come."""
    found: list[str] = []

    def enough() -> bool:
        found.extend(poll())
        return len(found) >= count

    wait_until(enough, what=f"{count} records")
    return sorted(found)


@pytest.mark.parametrize("with_setting", [True, False])
def test_a_consumer(kafka: Broker, written: str, with_setting: bool) -> None:
    """The setting is librdkafka's default."""
    setting = '        "isolation.level": "read_committed",\n'
    places = {ADDRESS: kafka.bootstrap, "billing": f"billing-{written}", '"orders"': f'"{written}"'}
    names = names_of('"group.id": "billing"', places, without="" if with_setting else setting)
    with closing(names["consumer"]) as consumer:
        assert taken(lambda: values_of(consumer.consume(100, 0.5)), 10) == sorted(COMMITTED)


@pytest.fixture
def java(request: pytest.FixtureRequest, kafka: Broker, tmp_path: Path) -> Iterator[JavaClients]:
    process = or_skip(request.config, lambda: JavaProcess(tmp_path))
    clients = JavaClients(process, kafka.bootstrap)
    yield clients
    clients.close()
    process.close()


@pytest.mark.parametrize(("isolation", "seen"), [("read_committed", COMMITTED), (None, COMMITTED + ABORTED)])
def test_a_consumer_of_the_java_client(java: JavaClients, written: str, isolation: str | None, seen: list[str]) -> None:
    consumer = java.consumer(isolation_level=isolation)
    consumer.assign([java.partition(written, 0)])
    found = taken(lambda: [each.value or "" for each in java.poll(consumer)], len(seen))
    assert found == sorted(seen)


@pytest.mark.parametrize(
    ("settings", "seen"), [({"isolation_level": "read_committed"}, COMMITTED), ({}, COMMITTED + ABORTED)]
)
def test_a_consumer_of_kafka_python(kafka: Broker, written: str, settings: dict[str, str], seen: list[str]) -> None:
    consumer = KafkaConsumer(written, bootstrap_servers=kafka.bootstrap, auto_offset_reset="earliest", **settings)
    with closing(consumer):

        def poll() -> list[str]:
            return [each.value.decode() for found in consumer.poll(500).values() for each in found]

        assert taken(poll, len(seen)) == sorted(seen)


@pytest.mark.parametrize("set_on_group", [True, False])
def test_a_share_group(kafka: Broker, written: str, set_on_group: bool) -> None:
    """KIP-932: the level is the group's, and read_uncommitted unless set."""
    setting = '"share.isolation.level": "read_committed", '
    places = {ADDRESS: kafka.bootstrap, "billing-workers": f"workers-{written}", '"orders"': f'"{written}"'}
    names = names_of("import ShareConsumer", places, without="" if set_on_group else setting)
    seen = COMMITTED if set_on_group else COMMITTED + ABORTED
    with closing(names["worker"]) as worker:
        assert taken(lambda: values_of(worker.poll(0.5)), len(seen)) == sorted(seen)


@pytest.mark.parametrize(
    "setting", ["processing.guarantee=exactly_once_v2", "consumer.isolation.level=read_committed", ""]
)
@pytest.mark.thorough
@pytest.mark.java
def test_kafka_streams(pytestconfig: pytest.Config, kafka: Broker, written: str, setting: str, tmp_path: Path) -> None:
    assert f"`{setting}`" in (ROOT / PAGE).read_text() or not setting
    out = kafka.create_topic(f"{written}-out")
    with closing(or_skip(pytestconfig, lambda: JavaProcess(tmp_path, libs=find_streams()))) as process:
        java, streams = process.root, process.kafka.streams
        string = process.kafka.common.serialization.Serdes.String()
        consumed: Any = getattr(streams.kstream.Consumed, "with")
        produced: Any = getattr(streams.kstream.Produced, "with")
        builder = streams.StreamsBuilder()
        builder.stream(written, consumed(string, string)).to(out, produced(string, string))
        settings = java.java.util.Properties()
        own = {
            "bootstrap.servers": kafka.bootstrap,
            "application.id": out,
            "state.dir": str(tmp_path / "state"),
            "replication.factor": "1",
            "auto.offset.reset": "earliest",
        }
        for name, value in {**own, **dict([setting.split("=")] if setting else [])}.items():
            settings.put(name, value)
        application = streams.KafkaStreams(builder.build(), settings)
        application.start()
        seen = COMMITTED if setting else COMMITTED + ABORTED

        def copied() -> list[str]:
            return [(each.value or b"").decode() for each in read_topic(kafka.bootstrap, out)]

        wait_until(lambda: len(copied()) >= len(seen), what="the copy", interval_s=0.5)
        assert sorted(copied()) == sorted(seen)


@pytest.mark.parametrize("with_setting", [True, False])
def test_spark(spark: SparkSession, kafka: Broker, written: str, with_setting: bool, tmp_path: Path) -> None:
    setting = '    .option("kafka.isolation.level", "read_committed")\n'
    places = {ADDRESS: kafka.bootstrap, '"orders"': f'"{written}"'}
    names = names_of("spark.readStream", places, without="" if with_setting else setting, spark=spark)
    found: list[str] = []

    def collect(batch: DataFrame, _: int) -> None:
        found.extend(row.value for row in batch.selectExpr("CAST(value AS STRING) AS value").collect())

    assert start_query(names["stream"], collect, tmp_path / "checkpoint").awaitTermination(int(DEADLINE_S))
    assert sorted(found) == sorted(COMMITTED if with_setting else COMMITTED + ABORTED)


def test_both_sides_under_a_running_job(
    spark: SparkSession, kafka: Broker, database: str, topic: MakeTopic, transactional_id: str, tmp_path: Path
) -> None:
    """Each answer is a prefix of the batches, the same on both sides, whenever it is asked for."""
    read_both = names_of("def read_both")["read_both"]
    target = Target(kafka, database, transactional_id, topic())
    stream = FileStream(spark, tmp_path, SCHEMA)
    for batch in range(8):
        stream.add(rows_of(batch, 50))
    asked: list[int] = []
    with closing(target.sink(key="id", table="orders")) as sink:
        query = start_query(stream.frame(), sink, stream.checkpoint)
        table = "SELECT to_regclass('orders') IS NOT NULL"
        wait_until(lambda: run_sql(database, table) == [(True,)], what="the first batch")
        while query.isActive or not asked or asked[-1] < 7:
            number, rows, records = read_both(database, kafka.bootstrap, transactional_id)
            expected = [row for batch in range(number + 1) for row in rows_of(batch, 50)]
            assert_same_multiset([tuple(row) for row in rows], expected, what="rows")
            found = [tuple(map(json.loads(each.value()).get, ("id", "name", "amount"))) for each in records]
            assert_same_multiset(found, expected, what="records")
            asked.append(number)
        assert query.awaitTermination(int(DEADLINE_S))
    up_to = "AND batch.batch_id <= 2"
    page = block_of(PAGE, "def read_both").text
    assert f"`{up_to}`" in (ROOT / PAGE).read_text()
    earlier: dict[str, Any] = {}
    exec(page.replace("AND batch.status = 'done'", f"AND batch.status = 'done' {up_to}"), earlier)  # noqa: S102 - ours
    *_, records = earlier["read_both"](database, kafka.bootstrap, transactional_id)
    assert {json.loads(record.value())["id"] // 10_000 for record in records} == {0, 1, 2}
    assert len(records) == 150
    assert asked == sorted(asked)
    assert len(set(asked)) > 1, "the job ran too fast to be read in between"


DDL = "CREATE TABLE orders (id bigint PRIMARY KEY, name text, amount int)"
COUNTS = "SELECT (SELECT max(batch_id) FROM kafka_transaction_state_history), (SELECT count(*) FROM orders)"


def test_a_standby(
    pytestconfig: pytest.Config, spark: SparkSession, kafka: Broker, topic: MakeTopic, transactional_id: str
) -> None:
    """It shows a batch that a reader of the primary does not see yet, and the primary another commit without it."""
    read_both = names_of("def read_both")["read_both"]
    with or_skip(pytestconfig, PostgresServer) as primary, PostgresStandby(primary) as standby:
        database, copy = primary.url, standby.url
        run_sql(database, DDL)
        run_sql(database, "CREATE TABLE other (n int)")
        target = Target(kafka, database, transactional_id, topic())
        with closing(target.sink(key="id", table="orders")) as sink, ThreadPoolExecutor(1) as job:
            frames = [spark.createDataFrame(rows_of(batch, 50), SCHEMA) for batch in range(2)]
            sink.write(frames[0], batch_id=0)
            standby.make_synchronous(and_another=True)
            second = job.submit(sink.write, frames[1], batch_id=1)
            wait_until(lambda: run_sql(copy, COUNTS) == [(1, 100)], what="batch 1")
            assert run_sql(copy, "SELECT n FROM other") == []
            run_sql(database, "SET synchronous_commit = local; INSERT INTO other VALUES (1)")
            assert run_sql(database, "SELECT n FROM other") == [(1,)]
            assert run_sql(database, COUNTS) == [(0, 50)]
            standby.make_synchronous()
            second.result(DEADLINE_S)
        standby.wait_until_caught_up()
        number, rows, records = read_both(copy, kafka.bootstrap, transactional_id)
        assert (number, len(rows), len(records)) == (1, 100, 100)


def test_logical_replication(
    pytestconfig: pytest.Config, spark: SparkSession, kafka: Broker, topic: MakeTopic, transactional_id: str
) -> None:
    """Whole batches, with their line in the history, in each snapshot; and both sides from there."""
    read_both = names_of("def read_both")["read_both"]
    publish, subscribe = (block_of(PAGE, f"CREATE {kind}", "sql").text for kind in ("PUBLICATION", "SUBSCRIPTION"))
    logical = or_skip(pytestconfig, lambda: PostgresServer(settings={"wal_level": "logical"}))
    with logical as publisher, PostgresServer() as subscriber:
        for server in (publisher, subscriber):
            run_sql(server.url, DDL)
            with closing(SqlStateStore(server.url)) as store:
                store.prepare_schema()
        run_sql(publisher.url, publish)
        shown = "host=db dbname=shop"
        assert shown in subscribe
        run_sql(subscriber.url, subscribe.replace(shown, publisher.connection_string("postgres")))
        ready = "SELECT bool_and(srsubstate = 'r') FROM pg_subscription_rel"
        wait_until(lambda: run_sql(subscriber.url, ready) == [(True,)], what="the first copy")
        target = Target(kafka, publisher.url, transactional_id, topic())
        seen: list[tuple[Any, ...]] = []

        def write() -> None:
            for batch in range(5):
                target.write(spark.createDataFrame(rows_of(batch, 50), SCHEMA), batch, key="id", table="orders")

        with ThreadPoolExecutor(1) as job:
            running = job.submit(write)

            def replicated() -> bool:
                seen.extend(run_sql(subscriber.url, COUNTS))
                return seen[-1] == (4, 250)

            wait_until(replicated, what="five batches")
            running.result(DEADLINE_S)
        assert set(seen) <= {(None, 0), *((batch, 50 * batch + 50) for batch in range(5))}
        assert len(set(seen)) > 2
        number, rows, records = read_both(subscriber.url, kafka.bootstrap, transactional_id)
        assert (number, len(rows), len(records)) == (4, 250, 250)
