"""Python of the manual that needs servers, and no Spark: the programs of a service, and the servers for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from spark_2pc_sink.testing import ReferenceCoordinator, read_topic
from tests.harness.page_blocks import Block, blocks, in_sentences, run_block
from tests.integration.postgres.database_tables import rows, run


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


def test_statements_in_sentences(database: str) -> None:
    """SQL of the pages outside of blocks, on tables, schemas and roles with the names of the pages."""
    [role] = rows(database, "SELECT count(*) FROM pg_roles WHERE rolname = 'job'")
    prepared = [
        *(["CREATE ROLE job"] if role == (0,) else []),
        "CREATE SCHEMA sales",
        "CREATE TABLE products (id bigint PRIMARY KEY)",
        "CREATE TABLE kafka_transaction_state (transactional_id text PRIMARY KEY)",
        "INSERT INTO kafka_transaction_state VALUES ('old')",
    ]
    statements = [
        code
        for _, code in in_sentences("ALTER", "CREATE", "DELETE", "DROP", "GRANT", "INSERT", "SELECT", "UPDATE")
        if "…" not in code and len(code.split()) > len(("ALTER", "TABLE"))
    ]
    assert statements
    run(database, *prepared, *statements, *(["DROP OWNED BY job", "DROP ROLE job"] if role == (0,) else []))


@pytest.mark.slow
def test_the_servers_of_the_page_start() -> None:
    """Those of docs/reference-coordinator.md."""
    run_block(block("docs/reference-coordinator.md", "PostgresServer"), {})
