"""Fixtures of the clients' tests: both kinds of broker, Java's clients, names that no other test uses."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import closing

import py4j.java_gateway
import py4j.protocol
import pytest

from tests.conftest import or_skip
from tests.harness.providers import Broker, BrokerPool, LocalProvider
from tests.integration.reference.clients.java_client import BROKERS, JavaClients, JavaProcess


# Not the parametrised fixture itself: pytest would end and start brokers whenever the order of tests changes the kind.
@pytest.fixture(scope="session")
def kafka_brokers() -> Iterator[BrokerPool]:
    """Apache Kafka, whoever provides the servers of other tests."""
    with closing(BrokerPool(LocalProvider())) as pool:
        yield pool


@pytest.fixture(scope="session", params=BROKERS)
def client_broker(request: pytest.FixtureRequest, kafka_brokers: BrokerPool, reference_brokers: BrokerPool) -> Broker:
    """The test runs with each: Apache Kafka 4.4.0 and the reference coordinator. Shared: leave it running."""
    pool = {"kafka": kafka_brokers, "reference": reference_brokers}[request.param]
    return or_skip(request.config, lambda: pool.get(transaction_version=2, two_phase_commit=False))


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
    return f"group_{secrets.token_hex(4)}"
