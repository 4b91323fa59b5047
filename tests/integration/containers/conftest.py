"""Fixtures of tests that need containers: servers that can be taken off their network, and jobs on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from tests.conftest import StartKafka
from tests.integration.faults.conftest import make_job, nursery
from tests.support.providers import ContainersProvider, Database

if TYPE_CHECKING:
    from tests.support.containers_kafka import ContainerBroker, ContainerCluster
    from tests.support.containers_postgres import ContainerPostgres

__all__ = ["make_job", "nursery"]


@pytest.fixture
def kafka_apart(containers: ContainersProvider, start_kafka: StartKafka) -> ContainerBroker:
    """A broker of the test's own that grants enable2Pc."""
    from tests.support.containers_kafka import ContainerBroker  # noqa: PLC0415 - only where containers are provided

    broker = start_kafka(two_phase_commit=True)
    assert isinstance(broker, ContainerBroker)
    return broker


@pytest.fixture
def postgres_apart(containers: ContainersProvider, start_postgres: Callable[..., Database]) -> ContainerPostgres:
    """A PostgreSQL server of the test's own."""
    from tests.support.containers_postgres import ContainerPostgres  # noqa: PLC0415 - as above

    server = start_postgres()
    assert isinstance(server, ContainerPostgres)
    return server


@pytest.fixture(scope="module")
def three_brokers(containers: ContainersProvider) -> Iterator[ContainerCluster]:
    """Three brokers that the tests of a module share."""
    from tests.support.containers_kafka import container_cluster  # noqa: PLC0415 - as above

    with container_cluster({}) as cluster:
        yield cluster


@pytest.fixture
def cluster(three_brokers: ContainerCluster) -> Iterator[ContainerCluster]:
    """Three brokers, all of them there and with complete copies; whoever was taken off the network is put back."""
    three_brokers.wait_until_whole()
    yield three_brokers
    for node in three_brokers.nodes:
        node.connect()
