"""Programs of others: Kafka's own that write exactly once, killed with the broker; krafka; and Spark's Kafka source.

``SPARK_2PC_KILLS`` says how many kills of the program, and how many of the broker (default 5 each). krafka, a client in
Rust with two-phase commit (KIP-939), wants transaction.version 3, and ends a prepared transaction with that
transaction's own pair. So it goes with the form of apache/kafka#22704: with #21735 that pair is fenced by keeping the
transaction.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark.sql import DataFrame, SparkSession

from spark_2pc_sink.codes import Code
from spark_2pc_sink.testing import ReferenceCoordinator, read_topic, wait_until
from spark_2pc_sink.testing.kafka_broker import LocalBroker
from tests.conftest import MakeTopic, or_skip
from tests.harness.providers import Broker
from tests.integration.reference.clients.copying_apps import (
    CopyingApp,
    FileSource,
    MessageCopier,
    StreamsApp,
    find_streams,
)

KILLS = int(os.environ.get("SPARK_2PC_KILLS", "5"))

#: What is fed twice between two kills; a transaction takes a few dozen.
CHUNK = 200
PROGRESS_DEADLINE_S = 120
#: Up to so long after some progress comes a kill, in the middle of the rest.
KILL_DELAY_S = 0.2


@pytest.fixture
def own_broker(pytestconfig: pytest.Config) -> Iterator[LocalBroker]:
    or_skip(pytestconfig, find_streams)
    with ReferenceCoordinator(two_phase_commit=False) as broker:
        yield broker


@pytest.fixture(params=[StreamsApp, FileSource, MessageCopier])
def app(request: pytest.FixtureRequest, own_broker: LocalBroker, tmp_path: Path) -> Iterator[CopyingApp]:
    running: CopyingApp = request.param(own_broker, tmp_path)
    yield running
    running.kill()


def end_of(broker: LocalBroker, topic: str = "out") -> int:
    """The last stable offset: grows with each transaction that ends."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "end", "isolation.level": "read_committed"})
    try:
        return int(consumer.get_watermark_offsets(TopicPartition(topic, 0), 10)[1])
    finally:
        consumer.close()


def wait_for_progress(app: CopyingApp, beyond: int) -> None:
    """Until transactions are committed again."""

    def advanced() -> bool:
        app.keep_running()
        return end_of(app.broker) > beyond

    wait_until(advanced, deadline_s=PROGRESS_DEADLINE_S, what=f"transactions beyond offset {beyond}", interval_s=0.2)


@pytest.mark.thorough
@pytest.mark.kafka
@pytest.mark.java
@pytest.mark.timeout(300 + 120 * KILLS)
def test_each_record_comes_once_however_often_program_and_broker_are_killed(app: CopyingApp) -> None:
    """KIP-98, KIP-447 (Streams), KIP-618 (Connect)."""
    chance = random.Random(KILLS)
    fed: list[str] = []

    def feed() -> None:
        chunk = [str(len(fed) + each) for each in range(CHUNK)]
        app.feed(chunk)
        fed.extend(chunk)

    for number in range(2 * KILLS):
        before = end_of(app.broker)
        feed()
        wait_for_progress(app, before)
        feed()
        time.sleep(chance.uniform(0, KILL_DELAY_S))
        if number % 2:
            app.broker.kill()
            app.broker.start()
        else:
            app.kill()

    def all_out() -> bool:
        app.keep_running()
        return len(app.committed("out")) >= len(fed)

    wait_until(all_out, deadline_s=PROGRESS_DEADLINE_S, what=f"{len(fed)} records", interval_s=1)
    app.check(fed)


PROGRAM: Final = Path(__file__).parent / "krafka"
TARGET: Final = Path(__file__).parents[4] / ".cache" / "krafka"
TOPIC, TRANSACTIONAL_ID = "orders", "orders"
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def program() -> Path:
    """The program, built from the registry of crates; skipped where that cannot be, also in continuous integration."""
    if shutil.which("cargo") is None:
        pytest.skip("krafka needs cargo, with Rust 1.95 or later")
    environment = {**os.environ, "CARGO_TARGET_DIR": str(TARGET)}
    done = subprocess.run(
        ["cargo", "build", "--quiet"], cwd=PROGRAM, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"krafka could not be built: {done.stderr[-500:]}")
    return TARGET / "debug" / "krafka-interop"


@pytest.fixture(params=["unchanged", "bump"])
def coordinator(request: pytest.FixtureRequest) -> Iterator[ReferenceCoordinator]:
    """One that keeps prepared transactions from level 3 on, in each form."""
    forms = {"transaction.keep.prepared.version": "3", "transaction.keep.prepared.form": request.param}
    with ReferenceCoordinator(transaction_version=3, properties=forms) as running:
        running.create_topic(TOPIC, partitions=1)
        yield running


@pytest.fixture
def run(program: Path, coordinator: ReferenceCoordinator) -> Run:
    def run(what: str, *state: str) -> subprocess.CompletedProcess[str]:
        words = [str(program), what, coordinator.bootstrap, TOPIC, TRANSACTIONAL_ID, *state]
        return subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)

    return run


@pytest.mark.thorough
@pytest.mark.kafka
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("same", [True, False])
def test_what_one_process_prepared_another_completes(coordinator: ReferenceCoordinator, run: Run, same: bool) -> None:
    """With the stored state it is committed, with another one aborted."""
    prepared = run("prepare")
    assert prepared.returncode == 0, prepared.stderr
    state = prepared.stdout.strip()
    assert read_topic(coordinator.bootstrap, TOPIC) == []
    completed = run("complete", state if same else "1:0")
    if coordinator.properties["transaction.keep.prepared.form"] == "bump":
        assert Code.PRODUCER_FENCED.name.replace("_", "") in completed.stderr.replace("_", "").upper(), completed.stderr
        return
    assert completed.stdout.splitlines() == [f'Some("{state}")', "Committed" if same else "Aborted"], completed.stderr
    values = [record.value for record in read_topic(coordinator.bootstrap, TOPIC)]
    assert values == ([b"1", b"2", b"3"] if same else [])


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
