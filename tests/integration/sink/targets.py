"""Both sides of a test's sink, and rows to write to them."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from spark_2pc_sink import BatchReport, DualWriteSink, VerifyReport, verify
from spark_2pc_sink.recipe.steps import Step
from spark_2pc_sink.sink.driver import step_observer
from spark_2pc_sink.testing import TopicRecord, assert_same_multiset, read_topic
from tests.harness.driver_job import terminate
from tests.harness.providers import Broker
from tests.harness.streams import sink_options
from tests.integration.postgres import database_tables

SCHEMA = StructType(
    [StructField("id", LongType()), StructField("name", StringType()), StructField("amount", IntegerType())]
)
Row = tuple[int, str | None, int | None]


def rows_of(batch: int, count: int = 500) -> list[Row]:
    """Rows with nulls and text of several scripts; ids are unique over batches."""
    return [
        (batch * 10_000 + n, None if n % 17 == 0 else f"n-{n}-żółw-🚲", None if n % 13 == 0 else n)
        for n in range(count)
    ]


def record_rows(records: list[TopicRecord]) -> list[Row]:
    parsed = [json.loads(record.value or b"null") for record in records]
    return [(row["id"], row.get("name"), row.get("amount")) for row in parsed]


@dataclass(frozen=True)
class Target:
    """The two sides that a test's sink writes to."""

    broker: Broker
    database: str
    transactional_id: str
    topic: str

    @property
    def sides(self) -> dict[str, Any]:
        """What every command takes."""
        kafka = {"bootstrap.servers": self.broker.bootstrap}
        return {"transactional_id": self.transactional_id, "kafka": kafka, "database": self.database}

    def options(self, **changes: Any) -> dict[str, Any]:
        """Options of the test's sink; of several topics and tables if ``writes`` is one."""
        sides = {name: getattr(self, name) for name in ("broker", "database", "transactional_id", "topic")}
        return sink_options(**{**sides, **changes})

    def sink(self, **changes: Any) -> DualWriteSink:
        return DualWriteSink(**self.options(**changes))

    def write(self, batch: DataFrame, batch_id: int = 0, **options: Any) -> BatchReport:
        """Write a batch that is no stream's, by a sink of its own."""
        with closing(self.sink(**options)) as sink:
            return sink.write(batch, batch_id=batch_id)

    def verify(self, **options: Any) -> VerifyReport:
        return verify(**self.sides, **options)

    def assert_same(self) -> VerifyReport:
        report = self.verify()
        assert report.verdict == "same", str(report)
        return report

    def abort_once(self, monkeypatch: pytest.MonkeyPatch, batch: int = 0) -> list[Step]:
        """Have Kafka abort the transaction of a batch right after its decision; the steps that are reached."""
        steps: list[Step] = []

        def note(step: Step) -> None:
            if step is Step.DECIDE and steps.count(step) == batch:
                terminate(self.broker, self.transactional_id)
            steps.append(step)

        monkeypatch.setattr(step_observer, "reached", note)
        return steps

    def records(self) -> list[TopicRecord]:
        return read_topic(self.broker.bootstrap, self.topic)

    def values(self) -> list[Any]:
        """What the JSON of their values says."""
        return [json.loads(record.value or b"null") for record in self.records()]

    def execute(self, *statements: str) -> None:
        """Run statements in one transaction."""
        database_tables.run(self.database, *statements)

    def rows(self, columns: str = "id, name, amount", table: str = "target") -> list[tuple[Any, ...]]:
        return database_tables.rows(self.database, f"SELECT {columns} FROM {table}")

    def state(self, columns: str) -> list[tuple[Any, ...]]:
        return self.rows(columns, "kafka_transaction_state")

    def letters(self, columns: str) -> list[tuple[Any, ...]]:
        """Columns of the dead letters, in the order of the first."""
        return self.rows(columns, "kafka_transaction_state_dead_letters ORDER BY 1")

    def check(self, rows: list[Row]) -> None:
        assert_same_multiset(record_rows(self.records()), rows, what=f"records in {self.topic}")
        assert_same_multiset(self.rows(), rows, what="rows in the table")
