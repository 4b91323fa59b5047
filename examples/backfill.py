"""A backfill: days of archived orders, to a Kafka topic and a PostgreSQL table, exactly once to both.

    python examples/backfill.py --days /archive/orders --kafka 127.0.0.1:9092 \
        --database postgresql+psycopg2://me@127.0.0.1/shop

/archive/orders has a directory for each day, such as 2026-01-31, with JSON files. Each day is one batch, and its date
is the batch's id: kill this whenever you like, start it again, and each day is written once. Days that are there
already are read again and compared. The topic must exist; the table is created.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from pyspark.sql import SparkSession

from orders_job import EVENT, start_spark
from spark_2pc_sink import BatchReport, DualWriteSink


def main(arguments: Sequence[str] | None = None) -> int:
    """Write every day."""
    parser = argparse.ArgumentParser(description="Days of orders to Kafka and PostgreSQL, exactly once to both.")
    parser.add_argument("--days", type=Path, required=True, metavar="DIR", help="has a directory for each day")
    parser.add_argument("--kafka", required=True, metavar="HOST:PORT", help="bootstrap servers")
    parser.add_argument("--database", required=True, metavar="URL", help="SQLAlchemy URL")
    parser.add_argument("--topic", default="orders")
    parser.add_argument("--table", default="orders_archive")
    parser.add_argument("--transactional-id", default="orders-backfill", help="another one than that of the stream")
    parser.add_argument("--master", default="local[2]", help="Spark's master")
    given = parser.parse_args(arguments)
    sink = DualWriteSink(
        transactional_id=given.transactional_id,
        kafka={"bootstrap.servers": given.kafka},
        database=given.database,
        topic=given.topic,
        key="order_id",
        table=given.table,
        create_table=True,
    )
    spark = start_spark(given.master)
    with closing(sink):
        for report in write_days(spark, sink, given.days):
            print(report, flush=True)
    spark.stop()
    return 0


def write_days(spark: SparkSession, sink: DualWriteSink, days: Path) -> Iterator[BatchReport]:
    """Write the available days, oldest first."""
    for day in sorted(path for path in days.iterdir() if path.is_dir()):
        orders = spark.read.schema(EVENT).option("mode", "FAILFAST").json(str(day))
        yield sink.write(orders, batch_id=int(day.name.replace("-", "")))


if __name__ == "__main__":
    sys.exit(main())
