"""A Kafka source: order events from a topic, each once, to another topic and a PostgreSQL table, exactly once to both.

`python examples/orders_from_kafka.py` needs Java 17 and access to Maven Central, from which Spark fetches its Kafka
connector. A small Kafka and a PostgreSQL run inside, and stop at its end. With servers of your own, keep the lines from
`sink` to `awaitTermination`.
"""

import json
import tempfile

from confluent_kafka import Producer
from pyspark.sql import SparkSession, functions as F

from spark_2pc_sink import DualWriteSink
from spark_2pc_sink.testing import PostgresServer, ReferenceCoordinator, read_topic

#: For PySpark 4.2 and 4.3; docs/compatibility.md has the version for others.
CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"
ORDER = "order_id BIGINT, item STRING, price DECIMAL(10, 2), placed TIMESTAMP"

with ReferenceCoordinator() as kafka, PostgresServer() as postgres, tempfile.TemporaryDirectory() as folder:
    for topic in ("incoming", "orders"):
        kafka.create_topic(topic, partitions=2)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for number in [*range(100), *range(100)]:  # a client that has sent everything twice
        order = {"order_id": number, "item": "tea", "price": 4.50, "placed": f"2026-01-01T10:00:{number % 60:02}Z"}
        producer.produce("incoming", key=str(number), value=json.dumps(order))
    producer.flush()

    sink = DualWriteSink(
        transactional_id="orders",  # one per sink, the same after every restart
        kafka={"bootstrap.servers": kafka.bootstrap},
        database=postgres.url,
        topic="orders",
        key="order_id",  # an SQL expression over the batch
        table="orders",
        create_table=True,
    )
    session = SparkSession.builder.master("local[2]").config("spark.jars.packages", CONNECTOR)
    spark = session.config("spark.sql.shuffle.partitions", 2).getOrCreate()
    source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", kafka.bootstrap)
    source = source.option("kafka.isolation.level", "read_committed").option("startingOffsets", "earliest")
    records = source.option("subscribe", "incoming").option("maxOffsetsPerTrigger", 50).load()
    orders = (
        records.select(F.from_json(F.col("value").cast("string"), ORDER).alias("order"))
        .select("order.*")
        .withWatermark("placed", "1 hour")
        .dropDuplicatesWithinWatermark(["order_id"])
    )
    writer = orders.writeStream.foreachBatch(sink).option("checkpointLocation", f"{folder}/checkpoint")
    writer.trigger(availableNow=True).start().awaitTermination()  # without the trigger it waits for more records

    found = read_topic(kafka.bootstrap, "orders")
    [(rows,)] = postgres.query("SELECT count(*) FROM orders")
    print(f"Kafka has {len(found)} records, PostgreSQL {rows} rows")
