"""Both sides of a sink, for the tests of the engine of verify."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.harness.providers import Broker
from tests.integration.verification.written_sides import Sides


@pytest.fixture
def sides(kafka: Broker, database: str, topic: Callable[..., str], transactional_id: str) -> Sides:
    """A sink with a topic of two partitions and an empty table of three columns."""
    made = Sides(kafka, database, topic(partitions=2), transactional_id)
    made.sql("CREATE TABLE target (id bigint PRIMARY KEY, name text, amount numeric(12, 2))")
    return made
