"""A streaming job: order events from JSON files, to a Kafka topic and a PostgreSQL table, exactly once to both.

    python examples/orders_job.py --events /tmp/events --checkpoint /tmp/checkpoint --available-now \
        --kafka 127.0.0.1:9092 --database postgresql+psycopg2://me@127.0.0.1/shop

Each event becomes one record of the topic, with the order's id as its key. The table has one row for each order: its
last state. Kill the job whenever you like, and start it again with the same arguments: there is no other recovery.

With --available-now it ends when the files that are there have been written, and compares both sides with them. The
topic must exist; the table is created. orders_events.py writes such files; orders_demo.py starts everything.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, functions as F
from pyspark.sql.streaming import StreamingQuery

from orders_compare import compare
from orders_events import REGIONS
from orders_progress import print_progress
from spark_2pc_sink import DualWriteSink

EVENT = """
    order_id    STRING,
    sequence    INT,
    status      STRING,
    event_time  TIMESTAMP,
    customer    STRUCT<id: INT, name: STRING, country: STRING>,
    currency    STRING,
    items       ARRAY<STRUCT<sku: STRING, title: STRING, quantity: INT, unit_price: DECIMAL(10, 2)>>,
    note        STRING
"""
# All columns. Without the format, to_json would cut times off at the millisecond.
RECORD_VALUE = """to_json(struct(*), map("timestampFormat", "yyyy-MM-dd'T'HH:mm:ss.SSSSSSxxx"))"""
RECORD_HEADERS = "array(named_struct('key', 'schema', 'value', CAST('order/1' AS BINARY)))"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job; the exit code is 3 when the comparison at its end finds a difference."""
    given = parse(arguments)
    # The sink logs what it recovered, and what it waits for. Spark itself writes to standard error.
    logging.basicConfig(format="%(message)s", level=logging.WARNING, stream=sys.stdout)
    logging.getLogger("spark_2pc_sink.recovery").setLevel(logging.INFO)
    spark = start_spark(given.master)
    try:
        query = start_query(spark, given)
        print_progress(query, database=given.database, transactional_id=given.transactional_id)
    finally:
        spark.stop()
    if not given.available_now:
        return 0
    comparison = compare(
        events=given.events, kafka=given.kafka, topic=given.topic, database=given.database, table=given.table
    )
    print(comparison)
    return comparison.exit_code


def start_query(spark: SparkSession, given: argparse.Namespace) -> StreamingQuery:
    """Start the stream."""
    events = (
        spark.readStream.schema(EVENT)
        # An invalid line stops the job. The default would write an order of nulls.
        .option("mode", "FAILFAST")
        .option("maxFilesPerTrigger", given.max_files_per_trigger)
        .json(str(given.events))
    )
    regions = spark.createDataFrame(pa.table({"country": list(REGIONS), "region": list(REGIONS.values())}))
    sink = DualWriteSink(
        transactional_id=given.transactional_id,
        kafka={"bootstrap.servers": given.kafka},
        database=given.database,
        topic=given.topic,
        key="order_id",
        value=RECORD_VALUE,
        headers=RECORD_HEADERS,
        table=given.table,
        create_table=True,
        mode="upsert",
        upsert_keys=["order_id"],
        upsert_order_by="sequence",  # of several events of one order in a batch, the last one is its row
    )
    writer = enrich(events, regions).writeStream.foreachBatch(sink).option("checkpointLocation", str(given.checkpoint))
    return (writer.trigger(availableNow=True) if given.available_now else writer).start()


def enrich(events: DataFrame, regions: DataFrame) -> DataFrame:
    """Add what each line of an order costs, what it costs in all, and the region of its customer."""
    priced_items = F.transform(
        "items",
        lambda item: item.withField("line_total", (item["unit_price"] * item["quantity"]).cast("decimal(14, 2)")),
    )
    total = F.aggregate(
        priced_items,
        F.lit(0).cast("decimal(16, 2)"),
        lambda sum_, item: (sum_ + F.coalesce(item["line_total"], F.lit(0))).cast("decimal(16, 2)"),
    )
    return events.join(F.broadcast(regions), events["customer.country"] == regions["country"], "left").select(
        "order_id",
        "sequence",
        "status",
        "event_time",
        F.col("customer.id").alias("customer_id"),
        F.col("customer.name").alias("customer_name"),
        F.col("customer.country").alias("country"),
        "region",
        "currency",
        total.alias("total"),
        priced_items.alias("items"),
        "note",
    )


def start_spark(master: str) -> SparkSession:
    """Start Spark, for a job whose batches are small."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.appName("orders")
        .master(master)
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "4")
        # For small batches, planning again after each stage costs more than it saves.
        .config("spark.sql.adaptive.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        # Over TCP a task waits 40 ms for its first row, as long as the kernel delays an acknowledgement.
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Order events to Kafka and PostgreSQL, exactly once to both.")
    parser.add_argument("--events", type=Path, required=True, metavar="DIR", help="where the JSON files come in")
    parser.add_argument("--checkpoint", type=Path, required=True, metavar="DIR", help="Spark's checkpoint")
    parser.add_argument("--kafka", required=True, metavar="HOST:PORT", help="bootstrap servers")
    parser.add_argument("--database", required=True, metavar="URL", help="SQLAlchemy URL")
    parser.add_argument("--topic", default="orders")
    parser.add_argument("--table", default="orders")
    parser.add_argument("--transactional-id", default="orders", help="stable across restarts, one for each job")
    parser.add_argument("--max-files-per-trigger", type=int, default=4, metavar="N", help="size of a batch")
    parser.add_argument("--available-now", action="store_true", help="write what is there, compare, end")
    parser.add_argument("--master", default="local[2]", help="Spark's master")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
