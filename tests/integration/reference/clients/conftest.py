"""Fixtures of the clients' tests: both kinds of broker, Java's clients, names that no other test uses."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import ExitStack

import py4j.java_gateway
import py4j.protocol
import pytest

from spark_2pc_sink.testing import KafkaBroker, ReferenceCoordinator
from tests.conftest import or_skip
from tests.harness.providers import Broker
from tests.integration.reference.clients.java_client import JavaClients, JavaProcess
from tests.integration.reference.clients.reading import BROKERS


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


@pytest.fixture(scope="session", params=BROKERS)
def client_broker(request: pytest.FixtureRequest, client_brokers: ClientBrokers) -> Broker:
    """The test runs with each: Apache Kafka 4.4.0 and the reference coordinator. Shared: leave it running."""
    kind: str = request.param
    return or_skip(request.config, lambda: client_brokers.get(kind))


@pytest.fixture(scope="session")
def java_process(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaProcess]:
    process = or_skip(pytestconfig, lambda: JavaProcess(tmp_path_factory.mktemp("java")))
    yield process
    process.close()


@pytest.fixture(autouse=True)
def own_java_exceptions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let exceptions of the clients' JVM be what they are.

    A Spark session of this process has put its own handler into py4j, which asks Spark's JVM about them.
    """
    if "java_process" in request.fixturenames:
        monkeypatch.setattr(py4j.java_gateway, "get_return_value", py4j.protocol.get_return_value)


@pytest.fixture
def java(java_process: JavaProcess, client_broker: Broker) -> Iterator[JavaClients]:
    """Makes Java clients of the broker; they are closed with the test."""
    clients = JavaClients(java_process, client_broker.bootstrap)
    yield clients
    clients.close()


@pytest.fixture
def group_id() -> str:
    """A consumer group that no other test uses."""
    return f"group_{secrets.token_hex(4)}"
