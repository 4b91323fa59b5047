"""Orders from JSON files into the topic and the table that the environment names: ``python job.py FOLDER``."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from spark_2pc_sink import DualWriteSink


def main(folder: str) -> None:
    """Write the files in FOLDER/orders that were not written yet."""
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    orders = spark.readStream.schema("order_id BIGINT, item STRING").json(f"{folder}/orders")
    sink = DualWriteSink.from_env(table="orders", key="order_id")
    writing = orders.writeStream.foreachBatch(sink).option("checkpointLocation", f"{folder}/checkpoint")
    writing.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1])
