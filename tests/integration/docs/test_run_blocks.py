"""Python of the manual that needs servers: a service's programs, servers for tests, and blocks on Spark.

On Spark a page's blocks run one below the other. `tests/harness/page_commands.py` has who runs which block.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from contextlib import closing, nullcontext
from datetime import date
from functools import partial
from typing import Any

import prometheus_client
import pytest
from pyspark.sql.streaming import StreamingQuery
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from spark_2pc_sink import BatchReport, DualWriteSink
from spark_2pc_sink.testing import ReferenceCoordinator, read_topic, wait_until
from tests.harness import ROOT
from tests.harness.page_blocks import block_of, blocks_of, in_sentences, run_block
from tests.harness.sql import run_sql
from tests.integration.docs.conftest import NOON, ROWS, Reader
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


def values_are(broker: ReferenceCoordinator, expected: list[bytes]) -> bool:
    return [record.value for record in read_topic(broker.bootstrap, "orders")] == expected


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
        expected = [b"1"] * committed
        # The end of a transaction is answered before its markers are written.
        wait_until(partial(values_are, broker, expected), what=f"{committed} records")


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


#: How the pages name the reader's brokers.
ADDRESS = "broker:9092"


def finish(query: StreamingQuery, sink: DualWriteSink | None = None) -> None:
    """A query of a page runs until somebody stops it: here when it has taken what is there."""
    with closing(sink) if sink else nullcontext():
        try:
            query.processAllAvailable()
        finally:
            query.stop()


def test_a_job_of_ones_own(reader: Reader, capsys: pytest.CaptureFixture[str]) -> None:
    """docs/using.md: the job, its value, a backfill; docs/check.md, docs/history.md and docs/verify.md look at it."""
    job, value, backfill = blocks_of("docs/using.md")
    names = reader.names(url=reader.database, kafka=reader.broker)
    run_block(job, names, {ADDRESS: reader.broker.bootstrap, "postgresql+psycopg2://job@db/shop": reader.database})
    finish(names["query"], names["sink"])
    assert reader.rows() == ROWS
    look_at_it(reader, names)
    printed = capsys.readouterr().out
    assert "ok           brokers" in printed
    assert f"{names['entry'].at} 0\n" in printed
    names["sink"].close()

    run_block(value, names)
    batch = reader.stream.spark.read.parquet(str(reader.folder / "input"))
    texts = [json.loads(row.value) for row in batch.selectExpr(f"{names['value']} AS value").collect()]
    assert {"order_id": 2, "name": None, "event_time": "2026-11-24T12:00:00.123456Z", "total": 4.5} in texts

    names["days"] = [date(2026, 11, 24), date(2026, 11, 25)]
    for number, day in enumerate(names["days"]):
        batch.selectExpr(f"order_id + {10 * (number + 1)} AS order_id", "name", "event_time", "total").write.parquet(
            str(reader.folder / f"{day:%Y-%m-%d}")
        )
    names["sink"] = DualWriteSink(**reader.options(transactional_id="backfill"))
    run_block(backfill, names, {"/archive": str(reader.folder)})
    assert [row[0] for row in reader.rows()] == [1, 2, 3, 11, 12, 13, 21, 22, 23]
    assert len(reader.records()) == 9


def look_at_it(reader: Reader, names: dict[str, Any]) -> None:
    """The pages that look at a sink, on one that has written a batch."""
    operator = "postgresql://ops@db/shop"
    places = {
        "docs/check.md": [{"orders.toml": reader.file()}],
        "docs/history.md": [{operator: reader.database}],
        "docs/verify.md": [{ADDRESS: reader.broker.bootstrap, operator: reader.database}, {}],
    }
    for page, of_blocks in places.items():
        for block, here in zip(blocks_of(page), of_blocks, strict=True):
            run_block(block, names, here)
    assert (names["entry"].batch_id, names["report"].verdict) == (0, "same")


def test_the_options_of_a_file(reader: Reader, capsys: pytest.CaptureFixture[str]) -> None:
    """docs/configuration.md."""
    names = reader.names()
    run_block(block_of("docs/configuration.md"), names, {"orders.toml": reader.file()})
    with closing(names["sink"]) as sink:
        reader.stream.run(sink)
    assert reader.rows() == ROWS
    assert "orders: batch 0, run: 3 rows, 3 records" in capsys.readouterr().out


def test_before_and_after(reader: Reader) -> None:
    """docs/from-spark-sinks.md: Spark's Kafka sink, ours in its place, and the function with both of Spark's sinks."""
    kafka_alone, ours, both = blocks_of("docs/from-spark-sinks.md")
    url = make_url(reader.database)
    # With the class of the driver, as its jar came with the session.
    login = {"user": url.username, "password": url.password, "driver": "org.postgresql.Driver"}
    names = reader.names(properties=login)
    broker = {ADDRESS: reader.broker.bootstrap}
    jdbc = {"jdbc:postgresql://db/shop": f"jdbc:postgresql://{url.host}:{url.port}/{url.database}"}
    for number, (block, places) in enumerate(
        [(kafka_alone, broker), (ours, broker | {"postgresql://job@db/shop": reader.database}), (both, broker | jdbc)]
    ):
        run_sql(reader.database, "TRUNCATE orders")
        names |= {"path": str(reader.folder / f"checkpoint-{number}"), "sink": None}
        run_block(block, names, places)
        finish(names["query"], names["sink"])
        assert len(reader.records()) == len(ROWS) * (number + 1)
        assert reader.rows() == (ROWS if number else [])


def test_counted_batches(reader: Reader) -> None:
    """docs/metrics.md."""
    names = reader.names(_given=reader.options())
    run_block(block_of("docs/metrics.md"), names)
    try:
        with closing(names["sink"]) as sink:
            reader.stream.run(sink)
        sample = prometheus_client.REGISTRY.get_sample_value("sink_rows_total", {"sink": "orders"})
        assert sample == len(ROWS)
    finally:
        prometheus_client.REGISTRY.unregister(names["rows"])


def test_bad_rows(reader: Reader) -> None:
    """docs/bad-rows.md: its options, its question to the table, and the form of a letter in the topic."""
    reader.broker.create_topic("bad-orders", partitions=1)
    reports: list[BatchReport] = []
    names = reader.names(DualWriteSink=DualWriteSink, _given=reader.options(on_batch=reports.append))
    names["messages"] = names["orders"].selectExpr("'no JSON' AS value")
    for number, block in enumerate(blocks_of("docs/bad-rows.md")):
        reader.stream.add([(4711 + number // 2, "minus", NOON, -1.0)])
        with closing(run_block(block, names)) as sink:
            reader.stream.run(sink, names["orders"])
        names["orders"] = reader.stream.frame()
    assert [report.bad_rows for report in reports] == [0, 1, 1, 1]
    assert reader.rows() == ROWS
    found = run_sql(reader.database, blocks_of("docs/bad-rows.md", "sql")[0].text)
    assert [(batch_id, output, order_id) for batch_id, output, _, _, order_id in found] == [
        (3, "table orders", "4712"),
        (2, "table orders", None),
        (1, "table orders", "4711"),
    ]
    [(row,)] = run_sql(reader.database, 'SELECT "row" FROM kafka_transaction_state_dead_letters WHERE batch_id = 2')
    assert row == {"raw": "no JSON", "order_id": None, "total": None}
    assert all("raw" not in json.loads(record.value or b"") for record in reader.records())
    [letter] = [json.loads(record.value or b"") for record in reader.records("bad-orders")]
    shown = json.loads(blocks_of("docs/bad-rows.md", "json")[0].text)
    assert letter.keys() == shown.keys()
    assert letter["sqlstate"] == shown["sqlstate"]
    assert letter["row"]["order_id"] == 4712
    assert all(part in letter["reason"] for part in shown["reason"].split("…"))
