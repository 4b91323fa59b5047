"""A streaming job: Debezium's change events from a Kafka topic, to a PostgreSQL table and another topic, exactly once.

    spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0 examples/change_events.py \
        --kafka 127.0.0.1:9092 --source shop.public.products --topic products --checkpoint /tmp/checkpoint \
        --database postgresql+psycopg2://me@127.0.0.1/copy --available-now

The table has each row as it is at the source, and no row that was deleted there. The topic has each state of a row as
its own JSON, and a tombstone for a deleted one: compacted, it is the same table. docs/change-events.md explains it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

from spark_2pc_sink import DualWriteSink

ROW = "id BIGINT, name STRING, price DECIMAL(10, 2)"
#: Of PostgreSQL's connector; with other databases the order is another field of source.
ENVELOPE = f"before STRUCT<{ROW}>, after STRUCT<{ROW}>, op STRING, source STRUCT<lsn: BIGINT>"


def start_query(spark: SparkSession, given: argparse.Namespace) -> StreamingQuery:
    """Start the stream."""
    sink = DualWriteSink(
        transactional_id=given.transactional_id,
        kafka={"bootstrap.servers": given.kafka},
        database=given.database,
        topic=given.topic,
        key="id",
        value="to_json(struct(id, name, price))",
        table=given.table,
        columns={"id": "id", "name": "name", "price": "price"},
        create_table=True,
        mode="upsert",
        upsert_keys=["id"],
        upsert_order_by="lsn",  # of several changes of one row in a batch, the last one counts
        delete_when="op = 'd'",
        tombstones=True,
    )
    changes = read_changes(spark, given)
    writer = changes.writeStream.foreachBatch(sink).option("checkpointLocation", given.checkpoint)
    return (writer.trigger(availableNow=True) if given.available_now else writer).start()


def read_changes(spark: SparkSession, given: argparse.Namespace) -> DataFrame:
    """One row for each change: the row after it, or of a deletion the row before it; with op and lsn."""
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", given.kafka)
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", given.source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", given.max_offsets_per_trigger)
        .load()
    )
    # Behind each deletion Debezium sends a tombstone of its own. A text that is no event stops the job.
    envelope = F.from_json(F.col("value").cast("string"), ENVELOPE, {"mode": "FAILFAST"})
    changes = records.where("value IS NOT NULL").select(envelope.alias("change"))
    return changes.selectExpr("change.op", "change.source.lsn", "coalesce(change.after, change.before) AS row").select(
        "op", "lsn", "row.*"
    )


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Debezium's change events to PostgreSQL and Kafka, exactly once.")
    parser.add_argument("--kafka", required=True, metavar="HOST:PORT", help="bootstrap servers")
    parser.add_argument("--source", required=True, metavar="TOPIC", help="the topic of change events")
    parser.add_argument("--checkpoint", required=True, metavar="DIR", help="Spark's checkpoint")
    parser.add_argument("--database", required=True, metavar="URL", help="SQLAlchemy URL")
    parser.add_argument("--topic", default="products")
    parser.add_argument("--table", default="products")
    parser.add_argument("--transactional-id", default="products", help="stable across restarts, one for each job")
    parser.add_argument("--max-offsets-per-trigger", type=int, default=100_000, metavar="N", help="size of a batch")
    parser.add_argument("--available-now", action="store_true", help="write what is there, then end")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    start_query(SparkSession.builder.appName("change events").getOrCreate(), parse(sys.argv[1:])).awaitTermination()
