"""Fixtures of tests that need containers: servers that can be taken off their network, and jobs on them."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.harness.providers import ContainersProvider
from tests.integration.faults.conftest import make_job, nursery

if TYPE_CHECKING:
    from tests.harness.containers import ContainerBroker, ContainerCluster, ContainerPostgres

__all__ = ["make_job", "nursery"]


# The servers of a module are shared by its tests, each of which finds them healed.


@pytest.fixture(scope="module")
def own_kafka(containers: ContainersProvider) -> Iterator[ContainerBroker]:
    """A broker for the module, which grants enable2Pc."""
    from tests.harness.containers import ContainerBroker  # noqa: PLC0415 - only where containers are provided

    with ContainerBroker(two_phase_commit=True) as broker:
        yield broker


@pytest.fixture
def kafka_apart(own_kafka: ContainerBroker) -> ContainerBroker:
    """A broker that the test may freeze and kill."""
    own_kafka.heal()
    return own_kafka


@pytest.fixture(scope="module")
def own_postgres(containers: ContainersProvider) -> Iterator[ContainerPostgres]:
    from tests.harness.containers import ContainerPostgres  # noqa: PLC0415 - as above

    with ContainerPostgres() as server:
        yield server


@pytest.fixture
def postgres_apart(own_postgres: ContainerPostgres) -> ContainerPostgres:
    """A PostgreSQL server that the test may freeze and take off its network."""
    own_postgres.heal()
    return own_postgres


@pytest.fixture
def database_apart(postgres_apart: ContainerPostgres) -> str:
    """The name of an empty database there."""
    name = f"job_{secrets.token_hex(4)}"
    postgres_apart.create_database(name)
    return name


@pytest.fixture(scope="module")
def three_brokers(containers: ContainersProvider) -> Iterator[ContainerCluster]:
    from tests.harness.containers import container_cluster  # noqa: PLC0415 - as above

    with container_cluster() as cluster:
        yield cluster


@pytest.fixture
def cluster(three_brokers: ContainerCluster) -> ContainerCluster:
    """Three brokers, all of them there and with complete copies."""
    for node in three_brokers.nodes:
        node.heal()
    three_brokers.wait_until_whole()
    return three_brokers
