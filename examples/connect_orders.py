"""A streaming job on Spark Connect: order events to a Kafka topic and a PostgreSQL table, exactly once to both.

    python examples/connect_orders.py --remote sc://127.0.0.1:15002 --events /data/events --checkpoint /data/orders \
        --kafka 127.0.0.1:9092 --database postgresql+psycopg2://me@127.0.0.1/shop

This process is a client: it needs `pyspark-client` and no Java. The batches are written by the server's machine, whose
Python has the same spark_2pc_sink. Paths are the server's, and so are the ways to Kafka and PostgreSQL. Kill the
client, the server, or both, and start the job again with the same arguments.

The job ends when the files that are there have been written. orders_events.py writes such files.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from pyspark.sql import SparkSession

from spark_2pc_sink import DualWriteSink

EVENT = "order_id STRING, sequence INT, status STRING, event_time TIMESTAMP, currency STRING, note STRING"


def main(arguments: Sequence[str] | None = None) -> int:
    """Process what is available, then stop."""
    given = parse(arguments)
    spark = SparkSession.builder.remote(given.remote).getOrCreate()
    events = spark.readStream.schema(EVENT).option("maxFilesPerTrigger", given.max_files_per_trigger).json(given.events)
    sink = DualWriteSink(
        transactional_id=given.transactional_id,
        kafka={"bootstrap.servers": given.kafka},
        database=given.database,
        topic=given.topic,
        key="order_id",
        table=given.table,
        create_table=True,
        query_name=given.transactional_id,  # needed where a session has several queries
    )
    writer = events.writeStream.foreachBatch(sink).option("checkpointLocation", given.checkpoint)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Order events to Kafka and PostgreSQL by a Spark Connect server.")
    parser.add_argument("--remote", required=True, metavar="URL", help="the server, as sc://127.0.0.1:15002")
    parser.add_argument("--events", required=True, metavar="DIR", help="where the JSON files come in, on the server")
    parser.add_argument("--checkpoint", required=True, metavar="DIR", help="Spark's checkpoint, on the server")
    parser.add_argument("--kafka", required=True, metavar="HOST:PORT", help="bootstrap servers")
    parser.add_argument("--database", required=True, metavar="URL", help="SQLAlchemy URL")
    parser.add_argument("--topic", default="orders")
    parser.add_argument("--table", default="orders")
    parser.add_argument("--transactional-id", default="orders", help="stable across restarts, one for each job")
    parser.add_argument("--max-files-per-trigger", type=int, default=4, metavar="N", help="size of a batch")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
