"""What tests of the sink share."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_2pc_sink.sink.job.batch_size import SmallBatches
from tests.conftest import MakeTopic
from tests.harness.providers import Broker
from tests.harness.streams import FileStream
from tests.integration.sink.targets import SCHEMA, Target


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> FileStream:
    return FileStream(spark, tmp_path, SCHEMA)


@pytest.fixture
def target(kafka: Broker, database: str, topic: MakeTopic, transactional_id: str) -> Target:
    return Target(kafka, database, transactional_id, topic())


@pytest.fixture
def target_of_each_version(
    kafka_each_version: Broker, database: str, topic: MakeTopic, transactional_id: str
) -> Target:
    return Target(kafka_each_version, database, transactional_id, topic(broker=kafka_each_version, partitions=3))


@pytest.fixture(autouse=True)
def first_batch_by_tasks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of tests are small: tasks write the first one of a query all the same, but where a test is about that."""
    if request.node.get_closest_marker("first_batch_tried") is None:
        monkeypatch.setattr(SmallBatches, "try_first", lambda _: None)


@pytest.fixture(params=["tasks", "driver"])
def written_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Who encodes and sends the rows: tasks, or the driver as with a batch that is known to be small."""
    monkeypatch.setattr(SmallBatches, "expected", request.param == "driver")
    return str(request.param)
