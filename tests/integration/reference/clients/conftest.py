"""Fixtures of the clients' tests: both kinds of broker, Java's clients, names that no other test uses."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import confluent_kafka
import kafka
import py4j.java_gateway
import py4j.protocol
import pytest

from spark_2pc_sink.testing import KafkaBroker, ReferenceCoordinator
from tests.conftest import or_skip
from tests.harness.providers import Broker
from tests.integration.reference.clients.java_client import JavaClients, JavaProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class ClientBrokers:
    """A broker of each kind, started when it is first asked for, as Kafka is shipped: transaction.version 2, no 2PC."""

    def __init__(self) -> None:
        self._brokers: dict[str, Broker] = {}
        self._running = ExitStack()

    def get(self, kind: str) -> Broker:
        if kind not in self._brokers:
            server = KafkaBroker() if kind == "kafka" else ReferenceCoordinator(two_phase_commit=False)
            self._brokers[kind] = self._running.enter_context(server)
        return self._brokers[kind]

    def close(self) -> None:
        self._running.close()


# Not the parametrised fixture itself: pytest would end and start brokers whenever the order of tests changes the kind.
@pytest.fixture(scope="session")
def client_brokers() -> Iterator[ClientBrokers]:
    brokers = ClientBrokers()
    yield brokers
    brokers.close()


@pytest.fixture(
    scope="session",
    params=[
        # That the tests are right; the other, that the reference coordinator is.
        pytest.param("kafka", marks=[pytest.mark.kafka, pytest.mark.java, pytest.mark.thorough]),
        pytest.param("reference", marks=pytest.mark.kafka),
    ],
)
def client_broker(request: pytest.FixtureRequest, client_brokers: ClientBrokers) -> Broker:
    """The test runs with each: Apache Kafka 4.4.0 and the reference coordinator. Shared: leave it running."""
    kind: str = request.param
    return or_skip(request.config, lambda: client_brokers.get(kind))


@pytest.fixture(scope="session")
def java_process(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaProcess]:
    process = or_skip(pytestconfig, lambda: JavaProcess(tmp_path_factory.mktemp("java")))
    yield process
    process.close()


def state_client(request: pytest.FixtureRequest, client: str) -> None:
    """Note a client and its version as ``client`` among the test's properties, which ``--junitxml`` writes."""
    request.node.user_properties.append(("client", client))


@pytest.fixture(autouse=True)
def own_java_exceptions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let exceptions of the clients' JVM be what they are.

    A Spark session of this process has put its own handler into py4j, which asks Spark's JVM about them.
    """
    if "java_process" in request.fixturenames:
        monkeypatch.setattr(py4j.java_gateway, "get_return_value", py4j.protocol.get_return_value)


# The params of the fixtures below put client and version into the names of the tests.


@pytest.fixture(params=["kafka-clients-4.4.0"])
def java(request: pytest.FixtureRequest, java_process: JavaProcess, client_broker: Broker) -> Iterator[JavaClients]:
    """Makes Java clients of the broker; they are closed with the test."""
    state_client(request, request.param)
    assert f"kafka-clients-{java_process.kafka_version}" == request.param
    clients = JavaClients(java_process, client_broker.bootstrap)
    yield clients
    clients.close()


@pytest.fixture(params=[f"confluent-kafka-{version('confluent-kafka')}"])
def confluent_kafka_client(request: pytest.FixtureRequest) -> None:
    state_client(request, f"{request.param}, librdkafka-{confluent_kafka.libversion()[0]}")
    assert f"confluent-kafka-{confluent_kafka.version()}" == request.param


@pytest.fixture(params=[f"kafka-python-{version('kafka-python')}"])
def kafka_python_client(request: pytest.FixtureRequest) -> None:
    state_client(request, request.param)
    assert f"kafka-python-{kafka.__version__}" == request.param


@pytest.fixture(params=["spark-sql-kafka-4.2.0-kafka-clients-3.9.2"])
def spark_client(request: pytest.FixtureRequest, spark: SparkSession) -> None:
    """States the versions of Spark's connector and of the Kafka client in it."""
    state_client(request, f"{request.param}, Spark {spark.version}")
    java: Any = spark._jvm
    client = java.org.apache.kafka.common.utils.AppInfoParser.getVersion()
    jars = [Path(jar).name for jar in str(spark.conf.get("spark.jars")).split(",")]
    (connector,) = [jar for jar in jars if jar.startswith("spark-sql-kafka-0-10_2.13-")]
    version_of_connector = connector.removeprefix("spark-sql-kafka-0-10_2.13-").removesuffix(".jar")
    assert f"spark-sql-kafka-{version_of_connector}-kafka-clients-{client}" == request.param


@pytest.fixture
def group_id() -> str:
    """A consumer group that no other test uses."""
    return f"group_{secrets.token_hex(4)}"
