"""The job of the manifests in this folder: JSON files of a volume, to a topic and a table."""

import os

from pyspark.sql import SparkSession

from spark_2pc_sink import DualWriteSink, run_until_stopped

sink = DualWriteSink(
    transactional_id="orders",
    kafka={"bootstrap.servers": os.environ["KAFKA"]},
    database=os.environ["DATABASE"],  # without a password: libpq takes it from PGPASSWORD
    topic="orders",
    key="order_id",
    table="orders",
    driver_port=7100,  # executors connect to it by the driver's headless service
)
spark = SparkSession.builder.appName("orders").getOrCreate()
orders = spark.readStream.schema("order_id BIGINT, placed TIMESTAMP").json("/data/orders")
query = orders.writeStream.foreachBatch(sink).option("checkpointLocation", "/data/checkpoint").start()
# Less than terminationGracePeriodSeconds, after which Kubernetes kills the pod.
raise SystemExit(run_until_stopped(query, grace_s=40))
