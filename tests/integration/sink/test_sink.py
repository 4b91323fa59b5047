"""The sink in a streaming query, on real Kafka and real PostgreSQL, read back by independent clients."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession, functions as F

from spark_2pc_sink import recover
from spark_2pc_sink.errors import ConfigurationError, UnstorableValueError
from spark_2pc_sink.sink.job import batch_size, spark_batch
from spark_2pc_sink.sink.job.batch_size import FIRST_ROWS_MAX, SMALL_ROWS_MAX
from spark_2pc_sink.sink.job.encode_task import encode
from spark_2pc_sink.sink.job.task_plan import TaskReceipt
from spark_2pc_sink.testing import ReferenceCoordinator, assert_same_multiset, read_topic, wait_until
from tests.conftest import MakeTopic
from tests.harness.kafka_tools import set_transaction_version
from tests.harness.providers import Broker
from tests.harness.streams import FileStream
from tests.integration.sink.targets import SCHEMA, Row, Target, record_rows, rows_of


def test_append_on_each_transaction_version(stream: FileStream, target_of_each_version: Target) -> None:
    """Two batches and an empty one; B24, A16: transaction.version 0, 1 and 2, without two-phase commit."""
    target = target_of_each_version
    rows = rows_of(0) + rows_of(1)
    stream.add(rows_of(0))
    stream.add(rows_of(1))
    stream.add([(-1, "filtered away", 0)])
    stream.run(target.sink(key="id"), stream.frame().where("id >= 0"))
    target.check(rows)
    assert target.state("status, batch_id, row_count") == [("done", 2, 0)]


@pytest.fixture
def by_driver(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows the driver has encoded, batch by batch."""
    counts: list[int] = []

    def spy(batches: list[pa.RecordBatch], *arguments: Any) -> TaskReceipt:
        counts.append(sum(batch.num_rows for batch in batches))
        return encode(batches, *arguments)

    monkeypatch.setattr(spark_batch, "encode", spy)
    return counts


@pytest.mark.first_batch_tried
def test_the_driver_writes_small_batches_until_one_is_large(
    stream: FileStream, target: Target, by_driver: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """B30: the one that turns out to be large is shared out in the same transaction, before anything was sent."""
    monkeypatch.setattr(batch_size, "SMALL_S_MAX", 60)
    sizes = (10, 20, SMALL_ROWS_MAX, SMALL_ROWS_MAX + 1, 30)
    batches = [[(batch * 100_000 + n, "x", n) for n in range(size)] for batch, size in enumerate(sizes)]
    for rows in batches:
        stream.add(rows)
    stream.run(target.sink(key="id"))
    target.check([row for rows in batches for row in rows])
    assert by_driver == [10, 20, SMALL_ROWS_MAX]
    everything = read_topic(target.broker.bootstrap, target.topic, isolation="read_uncommitted")
    assert len(everything) == sum(sizes), "a transaction was aborted"


@pytest.mark.first_batch_tried
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda frame: frame.selectExpr("id", "name", "amount"), [FIRST_ROWS_MAX]),
        # One task would look through everything for a few rows.
        (lambda frame: frame.where("amount >= 0"), []),
    ],
    ids=["selected", "filtered"],
)
def test_the_driver_tries_a_first_batch_that_comes_straight_from_the_source(
    stream: FileStream, target: Target, by_driver: list[int], change: Any, expected: list[int]
) -> None:
    rows: list[Row] = [(n, "x", n) for n in range(FIRST_ROWS_MAX)]
    stream.add(rows)
    stream.run(target.sink(key="id"), change(stream.frame()))
    target.check(rows)
    assert by_driver == expected


@pytest.mark.first_batch_tried
def test_rows_that_cannot_be_collected_are_shared_out(
    stream: FileStream, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few and huge, for instance, so that spark.driver.maxResultSize refuses them: tasks make the next attempt."""
    refused: list[int] = []

    def refuse(_: Any, rows: int) -> Any:
        refused.append(rows)
        message = "Total size of serialized results is bigger than spark.driver.maxResultSize"
        raise RuntimeError(message)

    monkeypatch.setattr(batch_size, "SMALL_S_MAX", 60)
    monkeypatch.setattr(type(stream.spark.range(1)), "limit", refuse)
    stream.add(rows_of(0))
    stream.add(rows_of(1))
    stream.run(target.sink(key="id"))
    assert refused == [FIRST_ROWS_MAX + 1, SMALL_ROWS_MAX + 1]
    target.check(rows_of(0) + rows_of(1))


@pytest.mark.usefixtures("written_by")
def test_records_are_where_and_what_a_java_producer_would_write(
    stream: FileStream, spark: SparkSession, target: Target
) -> None:
    """Read back by librdkafka and by the Java consumer (Spark's Kafka source): key, value, headers, time, partition."""
    stream.add(rows_of(0))
    sink = target.sink(
        key="concat('k', id)",
        value="concat(id, ':', coalesce(name, ''))",
        headers="array(struct('schema' AS key, CAST('1' AS BINARY) AS value), "
        "struct('n' AS key, CAST(NULL AS BINARY) AS value))",
    )
    stream.run(sink)
    records = target.records()
    expected = [(f"k{i}".encode(), f"{i}:{name or ''}".encode()) for i, name, _ in rows_of(0)]
    assert_same_multiset([(record.key, record.value) for record in records], expected, what="records")
    assert {record.headers for record in records} == {(("schema", b"1"), ("n", None))}
    assert len({record.partition for record in records}) == 4
    kafka = {"kafka.bootstrap.servers": target.broker.bootstrap}
    reader = spark.read.format("kafka").options(**kafka, subscribe=target.topic, includeHeaders=True)
    java = reader.option("kafka.isolation.level", "read_committed").load()
    seen_by_java = [
        (row.partition, row.offset, bytes(row.key), bytes(row.value), int(row.timestamp.timestamp() * 1000))
        for row in java.collect()
    ]
    seen = [(record.partition, record.offset, record.key, record.value, record.timestamp) for record in records]
    assert_same_multiset(seen_by_java, seen, what="records seen by the Java consumer")
    # Java's own producer sends the same keys to the same partitions.
    sent = spark.createDataFrame([(key.decode(), "again") for key, _ in expected], "key string, value string")
    sent.write.format("kafka").options(**kafka, topic=target.topic).save()
    by_key = {record.key: record.partition for record in records}
    again = [record for record in target.records() if record.value == b"again"]
    assert len(again) == len(expected)
    assert {record.key: record.partition for record in again} == by_key


def test_a_batch_of_many_frames(stream: FileStream, target: Target) -> None:
    """C10: rows are copied while tasks still run, in several pieces of each task."""
    rows = rows_of(0, 60_000)
    stream.add(rows, partitions=3)
    stream.run(target.sink(key="id"), stream.frame(files_per_batch=10))
    target.check(rows)
    assert target.rows("count(*)", "pg_class WHERE relname ~ '^_2pc' AND relkind = 'r'") == [(0,)]


def test_topic_and_partition_columns_override(
    stream: FileStream, target_of_each_version: Target, topic: MakeTopic
) -> None:
    """The conventions of Spark's Kafka sink: columns named topic and partition, row by row.

    B18: the state row has the id of every topic that the batch wrote. B24: below transaction.version 2 the driver adds
    the partitions of all of them.
    """
    target = target_of_each_version
    other = topic(partitions=2, broker=target.broker)
    stream.add(rows_of(0))
    frame = stream.frame().selectExpr(
        "*",
        f"CASE WHEN id % 2 = 0 THEN '{other}' END AS topic",
        "CASE WHEN id % 2 = 0 THEN CAST(id % 4 / 2 AS INT) END AS partition",
    )
    stream.run(target.sink(key="id", value="to_json(struct(id, name, amount))"), frame)
    even = [row for row in rows_of(0) if row[0] % 2 == 0]
    odd = [row for row in rows_of(0) if row[0] % 2 == 1]
    records = replace(target, topic=other).records()
    assert_same_multiset(record_rows(records), even, what="the other topic")
    assert all(record.partition == json.loads(record.value or b"")["id"] % 4 // 2 for record in records)
    assert_same_multiset(record_rows(target.records()), odd, what="the sink's topic")
    assert_same_multiset(target.rows(), rows_of(0), what="rows")
    ((ids,),) = target.state("topic_ids")
    assert set(ids) == {other, target.topic}
    assert len(set(ids.values())) == 2


def test_an_unknown_topic_below_transaction_version_two(stream: FileStream, target_of_each_version: Target) -> None:
    """A25: the driver adds partitions before a row is read; it is the row that is named all the same."""
    stream.add(rows_of(0, 5))
    frame = stream.frame().withColumn("topic", F.expr("IF(id = 3, 'no-such-topic', 'no such topic')"))
    sink = target_of_each_version.sink(topic=None, key="id", columns={"id": "id"})
    with pytest.raises(UnstorableValueError, match=r"column 'topic' of the row with key='[0-4]': 'no.such.topic'"):
        stream.run(sink, frame)
    assert target_of_each_version.rows("count(*)") == [(0,)]


def test_a_comment_at_the_end_of_an_expression(spark: SparkSession, target: Target) -> None:
    """It is not taken for one over what the sink puts behind it: headers and keys that are texts were lost by that."""
    target.write(
        spark.createDataFrame([(1, "one", 0)], SCHEMA),
        key="name -- who",
        value="concat('v', id) -- what",
        headers="array(named_struct('key', 'h', 'value', CAST(name AS BINARY))) -- why",
        partition="1 -- where",
        columns={"id": "id -- first", "name": "upper(name) -- second", "amount": "amount"},
        mode="upsert",
        upsert_keys=["id"],
        upsert_order_by="name -- last",
    )
    [record] = target.records()
    assert (record.key, record.value, record.partition) == (b"one", b"v1", 1)
    assert record.headers == (("h", b"one"),)
    assert target.rows() == [(1, "ONE", 0)]


def test_expressions_that_differ_per_evaluation_are_refused(stream: FileStream, target: Target) -> None:
    """A7: a replay would not be the same batch; refused before anything is written. The same of the stream itself."""
    stream.add(rows_of(0, 3))
    changing = {"key": "concat(id, rand())", "value": "to_json(struct(id, current_timestamp() AS at))"}
    for option, expression in changing.items():
        with pytest.raises(ConfigurationError, match=r"an expression of the sink=.*changes each time"):
            stream.run(target.sink(**{option: expression}))
        assert target.rows("count(*)", "pg_tables WHERE schemaname = 'public'") == [(0,)]
    with pytest.raises(ConfigurationError, match=r"the stream=.*rand.*changes each time"):
        stream.run(target.sink(key="id"), stream.frame().withColumn("lottery", F.rand()))


def test_the_current_time_of_the_stream_is_the_same_in_a_replay(stream: FileStream, target: Target) -> None:
    """A7: Spark notes a batch's time in the checkpoint, so the sink takes it; both sides have it."""
    stream.add(rows_of(0, 3))
    frame = stream.frame().withColumn("at", F.expr("unix_micros(current_timestamp())"))
    stream.run(target.sink(key="id"), frame)
    stored = target.rows("id, at")
    assert_same_multiset([(row["id"], row["at"]) for row in target.values()], stored, what="times")

    stream.forget(0)
    replayed: list[tuple[int, int]] = []

    def note(batch: DataFrame, batch_id: int) -> None:
        replayed.extend((row.id, row.at) for row in batch.collect() if batch_id == 0)

    stream.run(note, frame)
    assert_same_multiset(replayed, stored, what="times of the replay")


def test_calling_the_sink_outside_a_query_is_refused(spark: SparkSession, target: Target) -> None:
    """A batch is only safe to replay under the id of its query."""
    sink = target.sink(key="id")
    with pytest.raises(ConfigurationError, match="foreachBatch"):
        sink(spark.createDataFrame(rows_of(0, 1), SCHEMA), 0)


#: Before each batch; the last two without a change between them.
LEVELS = (0, 2, 0, 0)


@pytest.mark.parametrize("kind", ["reference", pytest.param("kafka", marks=[pytest.mark.kafka, pytest.mark.slow])])
def test_a_query_goes_on(
    kind: str, request: pytest.FixtureRequest, stream: FileStream, database: str, transactional_id: str
) -> None:
    """KIP-890, B24: batches at level 0, 2 and 0 again, in one run; and the next run, at level 2."""
    with ExitStack() as running:
        broker: Broker = (
            running.enter_context(ReferenceCoordinator(keep_prepared=False))
            if kind == "reference"
            else request.getfixturevalue("start_kafka")()
        )
        target = Target(broker, database, transactional_id, broker.create_topic("orders", partitions=3))
        sink = target.sink(key="id")

        def write(batch: DataFrame, batch_id: int) -> None:
            set_transaction_version(broker.bootstrap, LEVELS[batch_id])
            sink(batch, batch_id)

        for number in range(len(LEVELS)):
            stream.add(rows_of(number, 50))
        stream.run(write)
        set_transaction_version(broker.bootstrap, 2)
        stream.add(rows_of(9, 50))
        stream.run(target.sink(key="id"))
        target.check([row for number in (0, 1, 2, 3, 9) for row in rows_of(number, 50)])


def test_a_query_is_seen_while_it_runs(stream: FileStream, target: Target) -> None:
    """D10: and no longer, although its process goes on; then nobody has to say take_over."""
    sides = target.sides
    seen = []

    def look(_: object) -> None:
        report = recover(dry_run=True, **sides)
        seen.append(report.driver is not None and report.driver.alive)

    stream.add(rows_of(0))
    stream.add(rows_of(1))
    stream.run(target.sink(key="id", on_batch=look))
    assert seen == [True, True]

    def gone() -> bool:
        driver = recover(dry_run=True, **sides).driver
        return driver is not None and driver.alive is False

    wait_until(gone, what="the driver to be gone")
    assert recover(**sides).settled
    assert target.rows("generation", "kafka_transaction_state") == [(2,)]


VIEW = (
    "ALTER TABLE target RENAME TO old",
    "CREATE VIEW target AS SELECT * FROM old",
    "CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$",
    "CREATE TRIGGER instead INSTEAD OF INSERT ON target FOR EACH ROW EXECUTE FUNCTION nothing()",
)


def test_a_table_that_is_none_any_more_ends_the_query(stream: FileStream, target: Target) -> None:
    """C16: in the batch after it, which neither side has then."""
    stream.add(rows_of(0))
    stream.add(rows_of(1))
    sink = target.sink(key="id", on_batch=lambda _: target.execute(*VIEW))
    with pytest.raises(ConfigurationError, match="it is a view"):
        stream.run(sink)
    assert len(target.rows(table="old")) == len(rows_of(0))
    assert len(target.records()) == len(rows_of(0))
