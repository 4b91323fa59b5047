"""What the tests of services share: brokers, a table, both kinds of sessions, and both sides as readers see them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import Engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from spark_2pc_sink.testing import ReferenceCoordinator, read_topic


class Base(DeclarativeBase):
    """The tables of the service."""


class Order(Base):
    """A row, and a record with the same id."""

    __tablename__ = "orders"

    id: Mapped[str] = mapped_column(primary_key=True)


@contextmanager
def engine_for(url: str, **options: Any) -> Iterator[Engine]:
    """An engine with the table."""
    engine = create_engine(url, **options)
    try:
        Base.metadata.create_all(engine)
        yield engine
    finally:
        engine.dispose()


def rows_of(engine: Engine) -> Counter[str]:
    with engine.connect() as connection:
        return Counter(connection.scalars(text("SELECT id FROM orders")))


def records_of(bootstrap: str, topic: str) -> Counter[str]:
    return Counter((record.value or b"").decode() for record in read_topic(bootstrap, topic))


def statuses_of(engine: Engine) -> Counter[str]:
    with engine.connect() as connection:
        return Counter(connection.scalars(text("SELECT status FROM kafka_transaction_state")))


@pytest.fixture(scope="session")
def keeping() -> Iterator[ReferenceCoordinator]:
    """A broker that keeps prepared transactions."""
    with ReferenceCoordinator() as running:
        yield running


@pytest.fixture(params=["stock", "keeping"])
def broker(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue("kafka_without_2pc" if request.param == "stock" else "keeping")


@pytest.fixture
def table(database: str) -> Iterator[Engine]:
    with engine_for(database) as made:
        yield made
