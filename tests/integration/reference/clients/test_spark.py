"""Spark's own Kafka source and sink (spark-sql-kafka-0-10): batch, streaming, offsets, headers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession

from spark_2pc_sink.testing import read_topic
from tests.conftest import MakeTopic
from tests.harness.providers import Broker

#: For a whole query, on a machine that is busy with something else.
DEADLINE_S = 180
START_MS = 1_700_000_000_000

Read = Callable[..., DataFrame]


@pytest.fixture
def read(spark: SparkSession, client_broker: Broker) -> Read:
    """Reads a topic as a batch, with the source's options."""

    def frame(topic: str, **options: object) -> DataFrame:
        reader = spark.read.format("kafka").option("kafka.bootstrap.servers", client_broker.bootstrap)
        return reader.options(subscribe=topic, **{name: str(value) for name, value in options.items()}).load()

    return frame


def fill(broker: Broker, topic: str, partitions: int, each: int) -> None:
    """Records ``p-n`` with time START_MS + n in every partition p."""
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for partition in range(partitions):
        for number in range(each):
            producer.produce(topic, f"{partition}-{number}", partition=partition, timestamp=START_MS + number)
    assert producer.flush(DEADLINE_S) == 0


def values(frame: DataFrame) -> list[str]:
    return sorted(bytes(row.value).decode() for row in frame.select("value").collect())


def write(frame: DataFrame, broker: Broker, **options: str) -> None:
    writer = frame.write.format("kafka").option("kafka.bootstrap.servers", broker.bootstrap)
    writer.options(**options).save()


def test_batch_write_with_keys_partitions_and_headers(
    spark: SparkSession, client_broker: Broker, topic: MakeTopic, read: Read
) -> None:
    name = topic(partitions=2, broker=client_broker)
    frame = spark.range(10).selectExpr(
        "CAST(concat('key ', id) AS BINARY) AS key",
        "CAST(concat('value ', id) AS BINARY) AS value",
        "CAST(id % 2 AS INT) AS partition",
        "array(struct('number' AS key, CAST(CAST(id AS STRING) AS BINARY) AS value)) AS headers",
    )
    write(frame, client_broker, topic=name, includeHeaders="true")
    expected = sorted((n % 2, f"key {n}", f"value {n}", str(n)) for n in range(10))
    # Read back by librdkafka, which shares no code with the connector, and by the connector itself.
    assert expected == sorted(
        (
            found.partition,
            (found.key or b"").decode(),
            (found.value or b"").decode(),
            (found.headers[0][1] or b"").decode(),
        )
        for found in read_topic(client_broker.bootstrap, name)
    )
    assert expected == sorted(
        (row.partition, bytes(row.key).decode(), bytes(row.value).decode(), bytes(row.headers[0].value).decode())
        for row in read(name, includeHeaders="true").collect()
    )


def test_batch_read_between_times(client_broker: Broker, topic: MakeTopic, read: Read) -> None:
    name = topic(partitions=2, broker=client_broker)
    fill(client_broker, name, partitions=2, each=5)
    found = read(name, startingTimestamp=START_MS + 1, endingTimestamp=START_MS + 3)
    assert values(found) == ["0-1", "0-2", "1-1", "1-2"]


def test_stream_in_small_batches(spark: SparkSession, client_broker: Broker, topic: MakeTopic, tmp_path: Path) -> None:
    """Topic to topic: a restart of the query goes on where the checkpoint says."""
    source, target = topic(partitions=2, broker=client_broker), topic(partitions=2, broker=client_broker)

    def run() -> list[int]:
        """Run until all that is there has been read; the number of records of each batch."""
        stream = spark.readStream.format("kafka").option("kafka.bootstrap.servers", client_broker.bootstrap)
        options = {"subscribe": source, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "6"}
        frame = stream.options(**options).load().selectExpr("CAST(value AS STRING) AS value")
        writer = frame.writeStream.format("kafka").option("kafka.bootstrap.servers", client_broker.bootstrap)
        writer = writer.option("topic", target).option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(DEADLINE_S)
        return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]

    fill(client_broker, source, partitions=2, each=8)
    assert run() == [6, 6, 4]
    fill(client_broker, source, partitions=2, each=1)
    assert run() == [2]
    found = sorted((record.value or b"").decode() for record in read_topic(client_broker.bootstrap, target))
    assert found == sorted([f"{p}-{n}" for p in range(2) for n in range(8)] + ["0-0", "1-0"])
