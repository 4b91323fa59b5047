"""Both sides for the tests of `verify`, written by the batch driver or, to the record, by the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.conftest import MakeTopic
from tests.harness.providers import Broker
from tests.harness.written_pair import PARTITIONS, WrittenPair, rows_of
from tests.integration.verification.written_sides import Sides

#: The tests below know these batches. The third and the fourth change rows of the first: only an upsert finds them.
BATCHES = (rows_of(0), rows_of(1), [*rows_of(2), *rows_of(0, 5, note="changed")], rows_of(3))


#: The type of the fixture make_pair.
MakePair = Callable[..., WrittenPair]


@pytest.fixture
def make_pair(
    request: pytest.FixtureRequest, database: str, topic: MakeTopic, transactional_id: str
) -> Iterator[MakePair]:
    """Makes pairs without batches, on the shared broker unless another is given; they are closed with the test."""
    with ExitStack() as opened:

        def make(*, upsert: bool, broker: Broker | None = None) -> WrittenPair:
            on: Broker = request.getfixturevalue("kafka") if broker is None else broker
            name = topic(partitions=PARTITIONS, broker=on)
            return opened.enter_context(WrittenPair(on, database, name, transactional_id, upsert=upsert))

        yield make


@pytest.fixture
def appended(make_pair: MakePair) -> WrittenPair:
    """A pair with `BATCHES`, appended."""
    pair = make_pair(upsert=False)
    pair.write(*BATCHES)
    return pair


@pytest.fixture
def sides(kafka: Broker, database: str, topic: Callable[..., str], transactional_id: str) -> Sides:
    """A sink with a topic of two partitions and an empty table of three columns."""
    made = Sides(kafka, database, topic(partitions=2), transactional_id)
    made.sql("CREATE TABLE target (id bigint PRIMARY KEY, name text, amount numeric(12, 2))")
    return made
