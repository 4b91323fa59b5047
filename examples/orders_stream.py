"""The simplest job: orders from JSON files, to a Kafka topic and a PostgreSQL table, exactly once to both.

`python examples/orders_stream.py` needs nothing but Java 17: a small Kafka and a PostgreSQL run inside, and are gone at
its end. With servers of your own, keep the lines from `sink` to `awaitTermination`.
"""

import json
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

from spark_2pc_sink import DualWriteSink
from spark_2pc_sink.testing import PostgresServer, ReferenceCoordinator, read_topic

with ReferenceCoordinator() as kafka, PostgresServer() as postgres, tempfile.TemporaryDirectory() as folder:
    kafka.create_topic("orders", partitions=2)
    Path(folder, "orders").mkdir()
    lines = [json.dumps({"order_id": number, "item": "tea", "price": "4.50"}) for number in range(100)]
    Path(folder, "orders/1.json").write_text("\n".join(lines))

    sink = DualWriteSink(
        transactional_id="orders",  # one per sink, the same after every restart
        kafka={"bootstrap.servers": kafka.bootstrap},
        database=postgres.url,
        topic="orders",
        key="order_id",  # an SQL expression over the batch
        table="orders",
        create_table=True,
    )
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    orders = spark.readStream.schema("order_id BIGINT, item STRING, price DECIMAL(10, 2)").json(f"{folder}/orders")
    writer = orders.writeStream.foreachBatch(sink).option("checkpointLocation", f"{folder}/checkpoint")
    writer.trigger(availableNow=True).start().awaitTermination()  # without the trigger it waits for more files

    records = read_topic(kafka.bootstrap, "orders")
    [(rows,)] = postgres.query("SELECT count(*) FROM orders")
    print(f"Kafka has {len(records)} records, PostgreSQL {rows} rows")
