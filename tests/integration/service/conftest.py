"""Brokers and the table of the service's tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy.engine import Engine

from spark_2pc_sink.testing import ReferenceCoordinator
from tests.integration.service.services import engine_for


@pytest.fixture(scope="session")
def keeping() -> Iterator[ReferenceCoordinator]:
    """A broker that keeps prepared transactions."""
    with ReferenceCoordinator() as running:
        yield running


@pytest.fixture(params=["stock", "keeping"])
def broker(request: pytest.FixtureRequest) -> Any:
    """Kafka as it is shipped, and one that keeps prepared transactions."""
    return request.getfixturevalue("kafka_without_2pc" if request.param == "stock" else "keeping")


@pytest.fixture
def table(database: str) -> Iterator[Engine]:
    """The database, with the table."""
    with engine_for(database) as made:
        yield made
