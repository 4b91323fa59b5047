"""The Spark session under test: its workers run this Python and see the tests' modules."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from tests.conftest import MakeTopic
from tests.harness.providers import Broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def interpreter_of(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        yield pa.RecordBatch.from_pydict({"executable": [sys.executable]})


def test_workers_run_this_python_and_import_test_modules(spark: SparkSession) -> None:
    rows = spark.range(1).mapInArrow(interpreter_of, "executable string").collect()
    assert {row.executable for row in rows} == {sys.executable}


def test_kafka_source_of_spark_reads_from_the_broker(spark: SparkSession, kafka: Broker, topic: MakeTopic) -> None:
    name = topic(partitions=1)
    options = {"kafka.bootstrap.servers": kafka.bootstrap, "topic": name}
    spark.range(5).selectExpr("cast(id as string) as value").write.format("kafka").options(**options).save()
    read = spark.read.format("kafka").option("kafka.bootstrap.servers", kafka.bootstrap).option("subscribe", name)
    assert sorted(bytes(row.value) for row in read.load().collect()) == [b"0", b"1", b"2", b"3", b"4"]
