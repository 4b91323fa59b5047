"""The example of a backfill: days by their dates, begun again after half of them."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from backfill import write_days
from orders_events import write_events
from spark_2pc_sink import DualWriteSink
from spark_2pc_sink.recipe.placement import Placement
from spark_2pc_sink.testing import assert_same_multiset, read_topic
from tests.integration.postgres.database_tables import rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.conftest import MakeTopic
    from tests.harness.providers import Broker


def test_days_are_written_once_however_often_it_is_started(
    spark: SparkSession, kafka: Broker, database: str, topic: MakeTopic, transactional_id: str, tmp_path: Path
) -> None:
    name = topic()
    days, events = tmp_path / "days", tmp_path / "events"
    write_events(events, events=60, seed=7, files=3)
    placed = []
    for date, file in zip(("2026-01-30", "2026-01-31", "2026-02-03"), sorted(events.iterdir()), strict=True):
        (days / date).mkdir(parents=True)
        file.rename(days / date / file.name)
        sink = DualWriteSink(
            transactional_id=transactional_id,
            kafka={"bootstrap.servers": kafka.bootstrap},
            database=database,
            topic=name,
            key="order_id",
            table="orders_archive",
            create_table=True,
        )
        with closing(sink):
            placed.append([report.placement for report in write_days(spark, sink, days)])
    run, skip = Placement.RUN, Placement.SKIP
    assert placed == [[run], [skip, run], [skip, skip, run]]
    expected = [(event["order_id"], event["sequence"]) for file in days.glob("*/*") for event in _events(file)]
    sent = [json.loads(record.value or b"") for record in read_topic(kafka.bootstrap, name)]
    assert_same_multiset([(event["order_id"], event["sequence"]) for event in sent], expected, what="records")
    assert_same_multiset(rows(database, "SELECT order_id, sequence FROM orders_archive"), expected, what="rows")


def _events(file: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
