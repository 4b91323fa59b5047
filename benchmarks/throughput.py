"""One batch of a million rows: this sink beside Spark's own pair, in one run on one machine.

The pair is what a job does today without exactly once: persist the batch, write it with Spark's Kafka sink, then with
Spark's JDBC sink (reWriteBatchedInserts=true, batchsize 10 000). Both sides read the same parquet files as a stream,
both end with the same rows in a table with a primary key and the same records in a topic, compressed with zstd and
acknowledged by all replicas. Runs alternate, and ratios are of medians.

    make bench                      # or: python -m benchmarks.throughput --rows 1000000 --runs 3
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
import sqlalchemy

from spark_2pc_sink import DualWriteSink
from spark_2pc_sink.testing import KafkaBroker, PostgresServer
from spark_2pc_sink.testing.spark import start_spark

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 8
COLUMNS = (
    "id",
    "concat('customer-', id % 50000) AS customer",
    "CAST(id % 1000 AS INT) AS quantity",
    "CAST(id * 0.01 AS DECIMAL(12, 2)) AS amount",
    "timestamp_micros(1700000000000000 + id * 1000) AS ordered_at",
    "id % 3 = 0 AS express",
)
TABLE = (
    "id bigint PRIMARY KEY, customer text, quantity integer, amount numeric(12, 2), ordered_at timestamptz, "
    "express boolean"
)


class Bench:
    """The servers, the session and the input, shared by all runs."""

    def __init__(self, spark: SparkSession, broker: KafkaBroker, url: str, source: Path, rows: int) -> None:
        self.spark, self.broker, self.url, self.source, self.rows = spark, broker, url, source, rows
        self.engine = sqlalchemy.create_engine(url)
        self.count = 0

    def timed(self, write: Callable[[str, str], Callable[[DataFrame, int], None]]) -> float:
        """Seconds of one query over the whole input, from start() to its end; both sides are counted afterwards."""
        self.count += 1
        topic, table = f"bench-{self.count}", f"bench_{self.count}"
        self.broker.create_topic(topic, partitions=PARTITIONS)
        with self.engine.begin() as connection:
            connection.exec_driver_sql(f"CREATE TABLE {table} ({TABLE})")
        schema = self.spark.read.parquet(str(self.source)).schema
        stream = self.spark.readStream.schema(schema).parquet(str(self.source))
        checkpoint = tempfile.mkdtemp(prefix="spark-2pc-bench-")
        begun = time.perf_counter()
        query = (
            stream.writeStream.foreachBatch(write(topic, table))
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        seconds = time.perf_counter() - begun
        self._check(table)
        return seconds

    def _check(self, table: str) -> None:
        with self.engine.begin() as connection:
            found = connection.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar()
            connection.exec_driver_sql(f"DROP TABLE {table}")
        if found != self.rows:
            message = f"{found} rows arrived, {self.rows} were sent"
            raise SystemExit(message)

    def ours(self, key: str | None) -> Callable[[str, str], Callable[[DataFrame, int], None]]:
        """This sink."""

        def write(topic: str, table: str) -> Callable[[DataFrame, int], None]:
            return DualWriteSink(
                transactional_id=topic,
                kafka={"bootstrap.servers": self.broker.bootstrap, "compression.type": "zstd"},
                database=self.url,
                topic=topic,
                key=key,
                table=table,
            )

        return write

    def pair(self, key: str | None) -> Callable[[str, str], Callable[[DataFrame, int], None]]:
        """Spark's Kafka sink, then Spark's JDBC sink, on a persisted frame."""
        parsed = sqlalchemy.make_url(self.url)
        jdbc = f"jdbc:postgresql://{parsed.host}:{parsed.port}/{parsed.database}?reWriteBatchedInserts=true"

        def write(topic: str, table: str) -> Callable[[DataFrame, int], None]:
            def both(batch: DataFrame, _: int) -> None:
                batch.persist()
                keyed = [] if key is None else [f"CAST({key} AS STRING) AS key"]
                records = batch.selectExpr(*keyed, "to_json(struct(*)) AS value")
                kafka: dict[str, Any] = {
                    "kafka.bootstrap.servers": self.broker.bootstrap,
                    "kafka.compression.type": "zstd",
                    "kafka.acks": "all",
                    "kafka.linger.ms": "50",
                    "kafka.batch.size": "524288",
                    "topic": topic,
                }
                records.write.format("kafka").options(**kafka).save()
                (
                    batch.write.format("jdbc")
                    .options(url=jdbc, driver="org.postgresql.Driver", dbtable=table, batchsize="10000")
                    .options(user=parsed.username, password=parsed.password)
                    .mode("append")
                    .save()
                )
                batch.unpersist()

            return both

        return write


def main() -> None:
    """Run, and print one line per variant."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3, help="counted runs of each side, after one warm-up")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="spark-2pc-bench-") as directory:
        root = Path(directory)
        spark = start_spark(root, settings={"spark.driver.memory": "3g"})
        source = root / "input"
        spark.range(0, given.rows, 1, 4).selectExpr(*COLUMNS).write.parquet(str(source))
        with KafkaBroker(jvm_options=("-Xmx1g",)) as broker, PostgresServer(settings={"max_wal_size": "4GB"}) as server:
            bench = Bench(spark, broker, server.create_database("bench"), source, given.rows)
            sys.stdout.write(
                f"{given.rows} rows, {platform.machine()}, Python {platform.python_version()}, "
                f"Spark {pyspark.__version__}\n"
            )
            for name, key in (("keyed", "id"), ("unkeyed", None)):
                ours, pair = bench.ours(key), bench.pair(key)
                bench.timed(ours), bench.timed(pair)
                runs = [(bench.timed(ours), bench.timed(pair)) for _ in range(given.runs)]
                first, second = (statistics.median(side) for side in zip(*runs, strict=True))
                sys.stdout.write(
                    f"append, {name}: ours {first:.2f} s, the pair {second:.2f} s, "
                    f"throughput ratio {second / first:.2f} ({', '.join(f'{b / a:.2f}' for a, b in runs)})\n"
                )
        spark.stop()


if __name__ == "__main__":
    main()
