"""Python of the manual that needs servers, and no Spark: the programs of a service, and the servers for tests."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from spark_2pc_sink.testing import ReferenceCoordinator, read_topic
from tests.harness import ROOT
from tests.harness.page_blocks import block_of, in_sentences, run_block
from tests.integration.postgres.database_tables import rows, run


class Base(DeclarativeBase):
    """The tables of the page."""


class Order(Base):
    """A row of docs/service.md."""

    __tablename__ = "orders"

    id: Mapped[str] = mapped_column(primary_key=True)
    total: Mapped[int]


@pytest.fixture
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
        code = block_of(page, marker).text.replace("broker:9092", broker.bootstrap)
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
        found = {row.id: row.total for row in reading.execute(text("SELECT id, total FROM orders"))}
    engine.dispose()
    records = {(record.key or b"").decode(): record.value for record in read_topic(broker.bootstrap, "orders")}
    assert found == {"order-1": 12, "order-2": 7}
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
    run_block(block_of("docs/reference-coordinator.md", "PostgresServer"), {})


class CrashError(Exception):
    """The program ends here."""


class Database:
    """What the reader of the page brings: one text, and perhaps a crash before or after its COMMIT."""

    def __init__(self) -> None:
        self.saved = ""
        self.crash = ""

    def load(self) -> str:
        return self.saved

    def save(self, text: str) -> None:
        crash, self.crash = self.crash, ""
        if crash != "before":
            self.saved = text
        if crash:
            raise CrashError


def test_the_example_of_the_page(broker: ReferenceCoordinator) -> None:
    """KIP-939, 'Recovery recipe': what the database names is committed by the next start, and nothing else is."""
    example = block_of("docs/writer.md").text.replace("broker:9092", broker.bootstrap)
    database = Database()
    committed = 0
    for crash, more in (("", 1), ("before", 0), ("", 1), ("after", 0), ("", 2)):
        database.crash = crash
        names = {"load": database.load, "save": database.save}
        with pytest.raises(CrashError) if crash else nullcontext():
            exec(example, names)  # noqa: S102 - our own page
        committed += more
        assert [record.value for record in read_topic(broker.bootstrap, "orders")] == [b"1"] * committed


# --- the walks of ARCHITECTURE.md name rooms and modules that there are -----------------------------------------------

ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text()
#: By its name, the lanes of each walk.
WALKS = dict(re.findall(r"<!-- walk: ([\w-]+) -->\n(.*?)\n<!-- end of walk", ARCHITECTURE, re.DOTALL))


def is_there(module: str) -> bool:
    """Whether this is a module of the package, or of the room of the state row."""
    return any((ROOT / folder / f"{module}.py").exists() for folder in ("spark_2pc_sink", "."))


@pytest.mark.parametrize("name", WALKS)
def test_each_module_of_a_walk_is_there(name: str) -> None:
    text = " ".join(WALKS[name].split())
    named = [
        f"{room}/{module}"
        for room, modules in re.findall(r"`([^`]+)` \(([^)]+)\)", text)
        for module in modules.split(", ")
    ]
    named += [module for pair in re.findall("`([^`]+)` calls `([^`]+)`", text) for module in pair]
    assert len(named) > len(("room", "module"))
    assert [module for module in named if not is_there(module)] == []


def test_there_are_four() -> None:
    assert WALKS.keys() == {"micro-batch", "recovery", "status", "produce"}
