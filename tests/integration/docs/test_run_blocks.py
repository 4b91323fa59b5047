"""Blocks of the manual that a server runs: PostgreSQL its SQL, and both sides the programs of a service."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import Connection, make_url
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from spark_2pc_sink.options import SinkOptions
from spark_2pc_sink.sink.bad_rows.dead_letters import DeadLetters
from spark_2pc_sink.testing import ReferenceCoordinator, read_topic
from tests.harness.page_blocks import Block, blocks

#: Executed by a test of its own, with the roles and tables that it names.
SQL_ELSEWHERE = {"docs/permissions.md": "tests/integration/sink/test_permissions.py"}


class Base(DeclarativeBase):
    """The tables of the page."""


class Order(Base):
    """A row of docs/service.md."""

    __tablename__ = "orders"

    id: Mapped[str] = mapped_column(primary_key=True)
    total: Mapped[int]


def block(page: str, marker: str) -> Block:
    """The one Python block of a page that has this in it."""
    [found] = [each for each in blocks("python") if each.page == page and marker in each.text]
    return found


@pytest.fixture(scope="module")
def broker() -> Iterator[ReferenceCoordinator]:
    with ReferenceCoordinator() as running:
        running.create_topic("orders")
        yield running


@pytest.fixture
def connection(database: str) -> Iterator[Connection]:
    """A connection to a database that has the state tables and the dead-letter table."""
    engine = create_engine(database)
    options = SinkOptions.parse(
        transactional_id="orders", kafka={"bootstrap.servers": "h:1"}, database=database, table="t", topic="t"
    )
    with engine.begin() as made:
        made.execute(text(DeadLetters(options, None, "").ddl))  # type: ignore[arg-type]  # its DDL needs no database
        yield made
    engine.dispose()


@pytest.mark.parametrize("block", [each for each in blocks("sql") if each.page not in SQL_ELSEWHERE], ids=str)
def test_postgresql_takes_the_sql_of_a_page(block: Block, connection: Connection) -> None:
    for statement in filter(str.strip, block.text.split(";")):
        connection.execute(text(statement))


def test_the_service_of_the_page_writes_both_sides(database: str, broker: ReferenceCoordinator) -> None:
    """Both programs of docs/service.md, one after the other."""
    url = make_url(database).set(drivername="postgresql+psycopg2")
    engine = create_engine(url)
    Base.metadata.create_all(engine)

    def filled(page: str, marker: str) -> str:
        code = block(page, marker).text.replace("broker:9092", broker.bootstrap)
        for driver in ("postgresql+psycopg2", "postgresql+asyncpg"):
            own = url.set(drivername=driver).render_as_string(hide_password=False)
            code = code.replace(f"{driver}://shop:secret@db:5432/shop", own)
        return code

    names: dict[str, Any] = {"Order": Order, "kafka": {"bootstrap.servers": broker.bootstrap}}
    exec(filled("docs/service.md", "import Session"), names)  # noqa: S102 - our own page
    names["engine"].dispose()
    lines = [*filled("docs/service.md", "AsyncSession").splitlines(), "await engine.dispose()"]
    exec("async def page():\n" + "\n".join(f"    {line}" for line in lines), names)  # noqa: S102 - our own page
    asyncio.run(names["page"]())
    with engine.connect() as reading:
        rows = {row.id: row.total for row in reading.execute(text("SELECT id, total FROM orders"))}
    engine.dispose()
    records = {(record.key or b"").decode(): record.value for record in read_topic(broker.bootstrap, "orders")}
    assert rows == {"order-1": 12, "order-2": 7}
    assert records == {"order-1": b'{"total": 12}', "order-2": b'{"total": 7}'}


@pytest.mark.slow
def test_the_servers_of_the_page_start() -> None:
    """Those of docs/reference-coordinator.md."""
    exec(block("docs/reference-coordinator.md", "PostgresServer").text, {})  # noqa: S102 - our own page
