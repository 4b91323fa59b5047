"""Several topics and tables in one decision: what each gets, after crashes and replays too."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession, functions as F

from spark_2pc_sink import BatchReport, DualWriteSink, Records, Rows
from spark_2pc_sink.errors import ConfigurationError, HaltCause
from spark_2pc_sink.recipe.placement import Placement
from spark_2pc_sink.recipe.steps import Step
from spark_2pc_sink.testing import assert_same_multiset
from tests.conftest import MakeTopic
from tests.harness.acts import stopped_at
from tests.harness.halts import halts
from tests.harness.streams import FileStream
from tests.integration.sink.targets import Target

PAGE = (Path(__file__).parents[3] / "docs" / "outputs.md").read_text()
SCHEMA = "id bigint, name string, paid boolean, lines array<struct<sku:string,n:int>>"
DDL = (
    "CREATE TABLE orders (id bigint PRIMARY KEY, name text, paid boolean, lines jsonb)",
    # A table that refers to another is written behind it.
    "CREATE TABLE order_lines (order_id bigint REFERENCES orders, sku text, n int)",
    "CREATE TABLE paid_orders (id bigint, name text)",
)
Order = tuple[int, str | None, bool | None, list[tuple[str, int]] | None]


def orders_of(batch: int, count: int = 60) -> list[Order]:
    """Orders without lines too, and with a name or a payment that nobody knows."""
    return [
        (
            batch * 1_000 + number,
            None if number % 11 == 0 else f"n-{number}-żółw",
            (True, False, None)[number % 3],
            None if number % 13 == 0 else [(f"sku-{line}", number + line) for line in range(number % 4)],
        )
        for number in range(count)
    ]


@dataclass(frozen=True)
class Shop:
    """Three topics and three tables."""

    target: Target
    topics: tuple[str, str, str]

    def writes(self) -> list[Records | Rows]:
        """The example of docs/outputs.md, with topics of this test."""
        (example,) = re.findall("```python\n(.*?)```", PAGE, re.DOTALL)
        names: dict[str, Any] = {}
        exec(example, names)  # noqa: S102 - our own page
        topics = dict(zip(("orders", "order-lines", "paid-orders"), self.topics, strict=True))
        return [
            replace(output, topic=topics[str(output.topic)]) if isinstance(output, Records) else output
            for output in names["writes"]
        ]

    def sink(self, writes: list[Records | Rows] | None = None, **options: Any) -> DualWriteSink:
        return self.target.sink(writes=self.writes() if writes is None else writes, **options)

    def values(self, topic: int) -> list[Any]:
        return [record.value for record in replace(self.target, topic=self.topics[topic]).records()]

    def check(self, orders: list[Order]) -> None:
        """Each output has what it should, each once."""
        lines = [(order, *line) for order, _, _, of_order in orders for line in of_order or []]
        paid = [(order, name) for order, name, is_paid, _ in orders if is_paid]
        found = [json.loads(value or "null")["id"] for value in self.values(0)]
        assert_same_multiset(found, [order for order, *_ in orders], what="orders in the topic")
        parsed = [json.loads(value or "null") for value in self.values(1)]
        found_lines = [(each["id"], each["sku"], each["n"]) for each in parsed]
        assert_same_multiset(found_lines, lines, what="lines in the topic")
        names = [None if value is None else value.decode() for value in self.values(2)]
        assert_same_multiset(names, [name for _, name in paid], what="paid orders in the topic")
        kept = [
            (order, name, is_paid, None if of_order is None else [{"sku": sku, "n": n} for sku, n in of_order])
            for order, name, is_paid, of_order in orders
        ]
        assert sorted(self.target.rows("id, name, paid, lines", "orders"), key=lambda row: row[0]) == kept
        assert_same_multiset(self.target.rows("*", "order_lines"), lines, what="lines in the table")
        assert_same_multiset(self.target.rows("*", "paid_orders"), paid, what="paid orders in the table")


@pytest.fixture
def shop(target: Target, topic: MakeTopic) -> Shop:
    target.execute(*DDL)
    return Shop(target, (target.topic, topic(), topic(partitions=2)))


@pytest.fixture
def orders(spark: SparkSession, tmp_path: Path) -> FileStream:
    from pyspark.sql.types import _parse_datatype_string  # noqa: PLC0415 - needs a session

    return FileStream(spark, tmp_path, _parse_datatype_string(SCHEMA))  # type: ignore[arg-type]


def test_one_decision_writes_all(orders: FileStream, shop: Shop) -> None:
    """However a batch is shared out; one table refers to another, whose rows have to come first."""
    reports: list[BatchReport] = []
    everything = orders_of(0) + orders_of(1)
    orders.add(orders_of(0))
    orders.add(orders_of(1))
    orders.run(shop.sink(on_batch=reports.append), orders.frame(files_per_batch=2))
    shop.check(everything)
    [report] = reports
    lines = sum(len(order[3] or []) for order in everything)
    counts = (120, lines, 40)
    named = {f"Records({topic!r})": count for topic, count in zip(shop.topics, counts, strict=True)}
    named |= dict(zip(("Rows('orders')", "Rows('order_lines')", "Rows('paid_orders')"), counts, strict=True))
    assert report.outputs == named
    assert (report.row_count, report.record_count) == (160 + lines, 160 + lines)
    assert shop.target.state("row_count, record_count") == [(160 + lines, 160 + lines)]
    verified = shop.target.assert_same()
    assert (verified.counts, verified.records) == ({}, 160 + lines)
    assert [batch.digest_same for batch in verified.batches] == [True]
    rows = [(table.table, table.topics, table.rows) for table in verified.tables]
    tables = ("orders", "order_lines", "paid_orders")
    assert rows == [(name, (topic,), count) for name, topic, count in zip(tables, shop.topics, counts, strict=True)]
    shop.target.execute(
        "DELETE FROM order_lines WHERE order_id = 3 AND sku = 'sku-1'",
        "UPDATE orders SET paid = NOT paid WHERE id = 1",
        "DELETE FROM paid_orders WHERE id = 6",
        "INSERT INTO paid_orders VALUES (99, 'no record of it')",
    )
    verified = shop.target.verify()
    assert {(found.kind, found.table, found.topic) for found in verified.differences} == {
        ("missing_in_table", "order_lines", shop.topics[1]),
        ("differing", "orders", shop.topics[0]),
        # Two paid orders have this name.
        ("twice", "paid_orders", shop.topics[2]),
        ("missing_in_kafka", "paid_orders", None),
    }, str(verified)
    assert sum(verified.counts.values()) == 4


def test_an_owed_batch_of_several_outputs_is_sent_again(
    orders: FileStream, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D11, B7: the tables have the rows, Kafka has lost the transaction; a table alone is not touched again."""
    orders.add(orders_of(0))
    steps = shop.target.abort_once(monkeypatch)
    writes = [output for output in shop.writes() if output != Records(shop.topics[2], where="paid", value="name")]
    orders.run(shop.sink(writes))
    assert steps.count(Step.PRODUCE) == 2
    assert len(shop.target.rows("*", "paid_orders")) == 20
    assert shop.values(2) == []
    rows = 80 + len(shop.values(1))
    assert shop.target.state("row_count, record_count") == [(rows, rows - 20)]


def test_a_crash_behind_the_decision_leaves_each_row_once(orders: FileStream, shop: Shop) -> None:
    """D11: what is decided is completed by the next start, of all outputs."""
    orders.add(orders_of(0))
    with stopped_at(Step.DECIDE):
        orders.run(shop.sink())
    orders.run(shop.sink())
    shop.check(orders_of(0))


def test_tables_alone_are_decided_in_the_database(orders: FileStream, shop: Shop) -> None:
    """D11: there is nothing in Kafka that could be in doubt. A replay is skipped, if its rows are the same."""
    reports: list[BatchReport] = []
    writes: list[Records | Rows] = [
        output for output in shop.writes() if isinstance(output, Rows) and output.table != "order_lines"
    ]
    orders.add(orders_of(0))
    orders.run(shop.sink(writes, on_batch=reports.append))
    assert len(shop.target.rows("*", "orders")) == 60
    assert shop.target.state("status, row_count, record_count") == [("done", 80, 0)]
    [(figures,)] = shop.target.rows("figures", "kafka_transaction_state_history WHERE batch_id = 0")
    assert figures["outputs"] == {"Rows('orders')": 60, "Rows('paid_orders')": 20}
    assert (figures["record_bytes"], figures["seconds"] > 0) == (0, True)
    assert "produce" in figures["step_seconds"]
    orders.forget(0)
    orders.run(shop.sink(writes, on_batch=reports.append))
    assert [report.placement for report in reports] == [Placement.RUN, Placement.SKIP]
    assert len(shop.target.rows("*", "paid_orders")) == 20
    orders.forget(0)
    with halts(HaltCause.REPLAY_DIFFERS):
        orders.run(shop.sink(writes), orders.frame().withColumn("name", F.upper("name")))


REFUSED: dict[str, Records | Rows] = {
    r"Rows\('orders'\): where='name'.*its type is string": Rows("orders", where="name"),
    "its type is string; explode needs an array": Rows("orders", rows="explode(name) AS x"),
    "map_entries": Rows("orders", rows="explode(map(id, name)) AS x"),
    "the batch has a column 'name'": Rows("orders", rows="explode(lines) AS name"),
    r"Rows\('orders'\): keys=.*'number' is not among": Rows("orders", mode="upsert", keys=["number"]),
    r"Rows\('orders'\): columns='ident'.*has no column": Rows("orders", columns={"ident": "id"}),
    r"Records\('orders'\): key='identity'": Records("orders", key="identity"),
}


def test_what_does_not_fit_is_refused_with_its_output(spark: SparkSession, shop: Shop) -> None:
    """And a table stands behind those that it refers to."""
    tables: list[Records | Rows] = [output for output in shop.writes() if isinstance(output, Rows)]
    refused: dict[str, list[Records | Rows]] = {said: [output] for said, output in REFUSED.items()}
    refused[r'"order_lines" refers to "public"\."orders" by a foreign key'] = tables[::-1]
    refused["each table is written by one output"] = [Rows("orders"), Rows("public.orders", where="paid")]
    batch = spark.createDataFrame(orders_of(0, count=2), SCHEMA)
    for said, writes in refused.items():
        with pytest.raises(ConfigurationError, match=said):
            shop.target.write(batch, writes=writes)
