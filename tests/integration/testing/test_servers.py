"""Servers under test: what they have, how they break; given ones; and examples/testing_project of docs/testing.md."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool

from spark_2pc_sink import DualWriteSink
from spark_2pc_sink.recipe.steps import Step
from spark_2pc_sink.testing import (
    CapabilityError,
    DeadlineError,
    KafkaBroker,
    PostgresServer,
    ReferenceCoordinator,
    ServerError,
    kafka_request,
    read_topic,
    topics,
)
from spark_2pc_sink.testing.job import DualWriteStack
from spark_2pc_sink.testing.postgres import BINARIES_VARIABLE, find_binaries
from tests.conftest import MakeTopic, StartKafka
from tests.harness import ROOT, run_program
from tests.harness.providers import Broker, BrokerRequest, Database, GivenBroker, GivenDatabase, GivenProvider

PRODUCE_API = 0


def delivered(bootstrap: str, topic: str, value: str, *, timeout_ms: int = 20_000) -> str | None:
    """Produce one record and return the error's text, None if it was acknowledged."""
    errors: list[str | None] = []
    producer = Producer({"bootstrap.servers": bootstrap, "message.timeout.ms": timeout_ms, "log_level": 0})
    producer.produce(topic, value, on_delivery=lambda error, _: errors.append(str(error) if error else None))
    producer.flush(timeout_ms / 1000 + 5)
    return errors[0]


def values(bootstrap: str, topic: str, **how: Any) -> list[bytes | None]:
    return sorted((record.value for record in read_topic(bootstrap, topic, **how)), key=str)


def broker_config(broker: Broker) -> dict[str, str]:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    resource = ConfigResource(ResourceType.BROKER, "1")
    return {name: entry.value for name, entry in admin.describe_configs([resource])[resource].result(10).items()}


@pytest.mark.slow
def test_survives_kill_and_pause_on_the_same_address(start_kafka: StartKafka, topic: MakeTopic) -> None:
    broker = start_kafka()
    name = topic(broker=broker)
    assert delivered(broker.bootstrap, name, "before") is None
    broker.pause()
    assert delivered(broker.bootstrap, name, "perhaps", timeout_ms=1_000) is not None
    broker.resume()
    broker.kill()
    broker.start()
    assert delivered(broker.bootstrap, name, "after") is None
    broker.restart()
    assert {b"before", b"after"} <= set(values(broker.bootstrap, name))


def test_grants_two_phase_commit_only_where_asked_for(kafka: Broker, kafka_without_2pc: Broker) -> None:
    name = "transaction.two.phase.commit.enable"
    assert (broker_config(kafka)[name], broker_config(kafka_without_2pc)[name]) == ("true", "false")


def test_proxy_stands_between_client_and_broker(kafka: Broker, topic: MakeTopic) -> None:
    """librdkafka without idempotence sends again when the answer is lost, and so shows that the request arrived."""
    name = topic(partitions=1)
    with kafka.proxy() as proxy:
        assert delivered(proxy.address, name, "through the proxy") is None
        proxy.lose_answer(kafka_request(PRODUCE_API))
        assert delivered(proxy.address, name, "twice") is None
        assert proxy.answers_lost == 1
    assert values(kafka.bootstrap, name) == [b"through the proxy", b"twice", b"twice"]


def test_reading_back_stops_at_open_transactions_and_skips_aborted_ones(
    kafka: Broker, topic: MakeTopic, transactional_id: str
) -> None:
    name = topic(partitions=1)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": transactional_id})
    producer.init_transactions(20)
    for value, commit in (("committed", True), ("aborted", False), ("open", None)):
        producer.begin_transaction()
        producer.produce(name, value, key="k", headers=[("h", b"1"), ("h", None)])
        producer.flush(20)
        if commit is not None:
            (producer.commit_transaction if commit else producer.abort_transaction)(20)
    (record,) = read_topic(kafka.bootstrap, name)
    assert (record.key, record.value, record.headers) == (b"k", b"committed", (("h", b"1"), ("h", None)))
    assert values(kafka.bootstrap, name, isolation="read_uncommitted") == [b"aborted", b"committed", b"open"]
    producer.abort_transaction(20)


@pytest.mark.parametrize(
    ("server", "setting"),
    [
        (lambda: KafkaBroker(properties={"num.io.threads": "many"}), r"num\.io\.threads"),
        (lambda: PostgresServer(settings={"max_connections": "many"}), "max_connections"),
    ],
    ids=["kafka", "postgres"],
)
def test_says_what_is_wrong_when_it_does_not_start(
    server: Callable[[], KafkaBroker | PostgresServer], setting: str
) -> None:
    with closing(server()) as started, pytest.raises(ServerError, match=setting):
        started.start()


def test_says_what_to_do_without_jars(tmp_path: Path) -> None:
    with pytest.raises(CapabilityError, match="make setup"):
        KafkaBroker(libs=tmp_path)


@pytest.fixture
def wrong_answers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Codes with which the next questions for offsets fail, as they do where a node is behind the others."""
    codes: list[int] = []

    class BehindOthers(Consumer):
        def get_watermark_offsets(self, partition: TopicPartition, *args: Any, **named: Any) -> Any:
            if codes:
                raise KafkaException(KafkaError(codes.pop()))
            return super().get_watermark_offsets(partition, *args, **named)

    monkeypatch.setattr(topics, "Consumer", BehindOthers)
    return codes


@pytest.mark.parametrize("code", [KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE])
def test_a_leader_that_has_moved_is_asked_again(
    kafka: Broker, topic: MakeTopic, wrong_answers: list[int], code: int
) -> None:
    name = topic()
    assert delivered(kafka.bootstrap, name, "1") is None
    wrong_answers += [code, code]
    assert [record.value for record in read_topic(kafka.bootstrap, name)] == [b"1"]
    assert wrong_answers == []


def test_not_without_end(kafka: Broker, topic: MakeTopic, wrong_answers: list[int]) -> None:
    name = topic()
    wrong_answers += [KafkaError.NOT_LEADER_FOR_PARTITION] * 1000
    with pytest.raises(DeadlineError, match=f"no leader of {name} gave offsets within 0.5 s: .*NOT_LEADER"):
        read_topic(kafka.bootstrap, name, deadline_s=0.5)


StartPostgres = Callable[..., Database]


@contextmanager
def connected(url: str) -> Iterator[Connection]:
    """A connection that commits at the end and gives up connecting after ten seconds."""
    engine = create_engine(url, poolclass=NullPool, connect_args={"connect_timeout": 10})
    with engine.begin() as connection:
        yield connection


def scalar(url: str, query: str) -> object:
    with connected(url) as connection:
        return connection.execute(text(query)).scalar()


def test_committed_rows_survive_kill_and_open_transactions_do_not(start_postgres: StartPostgres) -> None:
    server = start_postgres()
    url = server.create_database("d")
    with connected(url) as connection:
        connection.execute(text("CREATE TABLE t AS SELECT 1 AS a"))
    with pytest.raises(OperationalError), connected(url) as connection:  # noqa: PT012 - the kill is in the middle
        connection.execute(text("INSERT INTO t VALUES (2)"))
        server.kill()
        connection.execute(text("INSERT INTO t VALUES (3)"))
    with pytest.raises(OperationalError):
        scalar(url, "SELECT 1")
    server.start()
    assert scalar(url, "SELECT array_agg(a) FROM t") == [1]
    server.restart()
    assert scalar(url, "SELECT array_agg(a) FROM t") == [1]


def test_paused_answers_nobody(start_postgres: StartPostgres) -> None:
    server = start_postgres()
    server.pause()
    with pytest.raises(OperationalError, match="timeout"):
        scalar(server.url, "SELECT 1")
    server.resume()
    assert scalar(server.url, "SELECT 1") == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a server as another user")
def test_binaries_below_a_private_folder_are_copied(tmp_path: Path) -> None:
    """A virtual environment in root's home cannot be read by the user as whom the server has to run."""
    installation = find_binaries().parent
    package = installation.parent
    private = tmp_path / "private"
    shutil.copytree(installation, private / package.name / installation.name, symlinks=True)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.exists():
        shutil.copytree(libraries, private / libraries.name)
    private.chmod(0o700)
    with PostgresServer(binaries=private / package.name / installation.name / "bin") as server:
        executable = psutil.Process(server.pid).exe()
        assert scalar(server.url, "SELECT 1") == 1
    assert not executable.startswith(str(tmp_path))


def test_says_what_to_do_without_binaries(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And copies nothing: the folder above the one that is wrong may hold anything, and any amount of it."""
    wrong = tmp_path / "wrong"
    wrong.mkdir()
    os.mkfifo(tmp_path / "a named pipe cannot be copied")
    monkeypatch.setenv(BINARIES_VARIABLE, str(wrong))
    with pytest.raises(CapabilityError, match=rf"no PostgreSQL runs from {wrong}: .*; set {BINARIES_VARIABLE} to"):
        PostgresServer()


@pytest.mark.kafka
@pytest.mark.postgres
def test_a_stack_is_the_test_s_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keywords and variables make the same sink, with which nothing is wrong. Nothing is left behind."""
    with ReferenceCoordinator() as kafka, PostgresServer() as postgres:
        stacks = [DualWriteStack(kafka, postgres, tmp_path) for _ in range(2)]
        assert stacks[0].topic != stacks[1].topic
        stack = stacks[0]
        stack.execute("CREATE TABLE orders (order_id bigint)", "INSERT INTO orders VALUES (1), (2)")
        assert stack.rows("SELECT count(*) FROM orders") == [(2,)]
        assert stack.records() == []
        for name, text in stack.environment.items():
            monkeypatch.setenv(name, text)
        sink = DualWriteSink.from_env(table="orders")
        assert sink._options == DualWriteSink(**stack.options, table="orders")._options
        assert sink.check().problems == ()
        with pytest.raises(AssertionError, match=stack.transactional_id):
            stack.assert_same()
        for each in stacks:
            each.close()
        assert postgres.query("SELECT count(*) FROM pg_database WHERE datname LIKE 'test-%'") == [(0,)]


PROJECT = ROOT / "examples" / "testing_project"


#: A test of somebody who has the wheel; it also sees that nothing of this repository is imported.
FIRST_TEST = """
from pathlib import Path

import spark_2pc_sink


def test_the_server_takes_a_topic(dual_write_kafka):
    assert Path(spark_2pc_sink.__file__).is_relative_to({wheel!r})
    assert dual_write_kafka.create_topic("orders") == "orders"
"""


def install(folder: Path, target: Path) -> None:
    """Install the wheel of a copy of the sources, into which a build writes; pip sees no other source."""
    folder.mkdir()
    for name in ("LICENSE", "README.md", "pyproject.toml", "setup.py"):
        shutil.copy(ROOT / name, folder)
    for name in ("jdbc_state", "spark_2pc_sink"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--no-compile", "--target", str(target))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = (sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "install", *options, str(folder))
    run_program(*command, cwd="/", env=environment)


@pytest.mark.kafka
@pytest.mark.postgres
@pytest.mark.spark
@pytest.mark.slow
def test_the_project_and_the_plugin_work_from_the_wheel(tmp_path: Path) -> None:
    """Pytest finds it by its entry point, and the servers have all of their files. Killed at one step of all."""
    wheel = tmp_path / "wheel"
    install(tmp_path / "source", wheel)
    project = Path(shutil.copytree(PROJECT, tmp_path / "project"))
    (project / "test_first.py").write_text(FIRST_TEST.format(wheel=str(wheel)))
    said = run_program(
        sys.executable,
        "-m",
        "pytest",
        "-W",
        "error",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "spark-2pc-sink",
        "-k",
        f"test_first or [{Step.DECIDE.name}]",
        cwd=project,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(wheel)},
    )
    assert "2 passed" in said.stdout


def test_a_given_broker_serves_requests_that_it_fulfils(kafka: Broker) -> None:
    given = GivenBroker(bootstrap=kafka.bootstrap, transaction_version=2, two_phase_commit=True)
    provider = GivenProvider(broker=given, database=None)
    assert provider.start_broker(BrokerRequest(two_phase_commit=True)).create_topic("given_topic") == "given_topic"
    with pytest.raises(CapabilityError, match="the test asks for"):
        provider.start_broker(BrokerRequest(transaction_version=0))
    with pytest.raises(CapabilityError, match="given by address"):
        given.kill()
    given.close()


def test_a_given_database_makes_databases(postgres: Database) -> None:
    given = GivenDatabase(url=postgres.url)
    provider = GivenProvider(broker=None, database=given)
    assert provider.start_postgres({}).create_database("given_database").endswith("/given_database")
    assert given.database_url("a", port=1).endswith(":1/a")
    given.drop_database("given_database")
    with pytest.raises(CapabilityError, match="fsync"):
        provider.start_postgres({"fsync": "on"})
