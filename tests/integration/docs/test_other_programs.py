"""docs/reading.md: each reader sees committed batches only; docs/scheduling.md: the job's exit codes, and pods."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer
from pyspark.sql import DataFrame, SparkSession

from jdbc_state import SqlStateStore
from spark_2pc_sink.testing import PostgresServer, assert_same_multiset, read_topic, run_job, wait_until
from spark_2pc_sink.testing.processes import JobError
from spark_2pc_sink.testing.spark import spark_environment
from tests.conftest import MakeTopic, or_skip
from tests.harness import ROOT, run_program
from tests.harness.page_blocks import block_of, blocks_of, run_block
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


JOB, AIRFLOW = blocks_of("docs/scheduling.md")


@pytest.mark.spark
@pytest.mark.slow
def test_the_exit_codes_of_the_page(
    kafka: Broker, database: str, topic: MakeTopic, transactional_id: str, tmp_path: Path
) -> None:
    """The job is run_until_stopped's: 0 with all on both sides, 2 for a row, 3 for another checkpoint."""
    name = topic()
    run_sql(database, "CREATE TABLE orders (order_id bigint PRIMARY KEY, placed timestamptz)")
    (tmp_path / "orders").mkdir()
    text = JOB.text.replace("/data/", f"{tmp_path}/").replace("orders.toml", str(tmp_path / "orders.toml"))
    (tmp_path / "orders.py").write_text(text)
    (tmp_path / "orders.toml").write_text(
        f'transactional_id = "{transactional_id}"\ndatabase = "{database}"\ntopic = "{name}"\ntable = "orders"\n'
        f'key = "order_id"\n[kafka]\nbootstrap.servers = "{kafka.bootstrap}"\n'
    )
    add(tmp_path, 1)
    run_job(tmp_path / "orders.py")
    assert run_sql(database, "SELECT order_id FROM orders") == [(1,)]
    add(tmp_path, 2, order_id=1)
    assert status_of(tmp_path) == 2
    (tmp_path / "checkpoint").rename(tmp_path / "lost")
    assert status_of(tmp_path) == 3
    assert run_sql(database, "SELECT order_id FROM orders") == [(1,)]


def add(folder: Path, number: int, order_id: int | None = None) -> None:
    line = f'{{"order_id": {order_id or number}, "placed": "2026-11-24T12:00:00Z"}}'
    (folder / "orders" / f"{number}.json").write_text(line)


def status_of(folder: Path) -> int:
    """How the job ends that does not end well."""
    with pytest.raises(JobError, match=r"ended with status \d") as failed:
        run_job(folder / "orders.py")
    return int(str(failed.value).partition("ended with status ")[2].partition(".")[0])


@pytest.mark.parametrize(
    ("code", "ends"), [(0, None), (1, "RuntimeError"), (2, "Fail"), (3, "Fail"), (143, "RuntimeError")]
)
def test_airflow_tries_again_where_that_helps(
    code: int, ends: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AirflowFailException is what Airflow does not try again."""
    (tmp_path / "orders.py").write_text(f"raise SystemExit({code})")
    airflow = types.ModuleType("airflow.exceptions")
    fail: type[Exception] = type("Fail", (Exception,), {})
    vars(airflow)["AirflowFailException"] = fail
    monkeypatch.setitem(sys.modules, "airflow", types.ModuleType("airflow"))
    monkeypatch.setitem(sys.modules, "airflow.exceptions", airflow)
    raised = None
    try:
        run_block(AIRFLOW, {}, {"/opt/job": str(tmp_path), '"python"': repr(sys.executable)})
    except (RuntimeError, fail) as error:
        raised = type(error).__name__
    assert raised == ends


def test_cron_starts_no_second_run(tmp_path: Path) -> None:
    """The line of the page: a run that still has the lock is left alone."""
    [line] = re.findall(r"`\*/5 \* \* \* \* (.+?)`", (ROOT / "docs" / "scheduling.md").read_text())
    places = {"/run/orders.lock": str(tmp_path / "lock"), "/opt/job": str(tmp_path), "python": sys.executable}
    words = [re.sub("|".join(places), lambda found: places[found[0]], word) for word in shlex.split(line)]
    runs = tmp_path / "runs"
    # The first run calls cron's line again, as the next five minutes would, and ends with its exit code.
    job = f"import subprocess\nopen({str(runs)!r}, 'a').write('.')\nraise SystemExit(40 + subprocess.call({words!r}))\n"
    (tmp_path / "orders.py").write_text(job)
    assert subprocess.run(words, check=False).returncode == 41
    assert runs.read_text() == "."


@contextmanager
def api_server() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """An API server of Kubernetes that takes each object as it is; its address, and the objects."""
    made: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            taken = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
            if taken:
                made.append(taken)
            taken.setdefault("metadata", {})["uid"] = "1"
            body = json.dumps(taken).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *values: object) -> None:  # noqa: A002 - its name there
            """Say nothing."""

    for verb in ("POST", "PUT", "PATCH"):
        setattr(Handler, f"do_{verb}", Handler.do_GET)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", made
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.slow
@pytest.mark.java
def test_spark_submit_makes_the_pod_of_the_page(tmp_path: Path) -> None:
    """submit.sh with a real spark-submit: the driver's pod has what driver-pod.yaml adds, and a headless service."""
    (tmp_path / "spark-defaults.conf").write_text("spark.kubernetes.submission.waitAppCompletion false\n")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**os.environ, **spark_environment(tmp_path), "PATH": path, "SPARK_CONF_DIR": str(tmp_path)}
    with api_server() as (address, made):
        run_program("sh", str(ROOT / "examples" / "kubernetes" / "submit.sh"), address, env=env)
    pod = next(each["spec"] for each in made if each["kind"] == "Pod")
    [container] = pod["containers"]
    assert (container["name"], container["image"]) == ("spark-kubernetes-driver", "registry.example/orders:1")
    assert container["args"][-1] == "local:///opt/job/orders.py"
    assert {"name": "sink", "containerPort": 7100}.items() <= container["ports"][0].items()
    assert "pkill -TERM -x python3" in " ".join(container["lifecycle"]["preStop"]["exec"]["command"])
    assert container["envFrom"] == [{"secretRef": {"name": "orders"}}]
    assert "/data" in {each["mountPath"] for each in container["volumeMounts"]}
    assert (pod["terminationGracePeriodSeconds"], pod["serviceAccountName"]) == (60, "spark")
    assert [each["spec"]["clusterIP"] for each in made if each["kind"] == "Service"] == ["None"]
