"""What the tests of services share: a table, both kinds of sessions, and both sides as readers see them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import create_engine, text
from sqlalchemy.engine import Engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from spark_2pc_sink.testing import read_topic


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
    """What a reader of the table sees."""
    with engine.connect() as connection:
        return Counter(connection.scalars(text("SELECT id FROM orders")))


def records_of(bootstrap: str, topic: str) -> Counter[str]:
    """What a reader of committed records sees."""
    return Counter((record.value or b"").decode() for record in read_topic(bootstrap, topic))


def statuses_of(engine: Engine) -> Counter[str]:
    """How many state rows have which status."""
    with engine.connect() as connection:
        return Counter(connection.scalars(text("SELECT status FROM kafka_transaction_state")))
