"""One batch of numbers through a sink: the driver's half of ``tests.integration.sink.one_batch``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from spark_2pc_sink import DualWriteSink
from tests.harness.streams import start_query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def write_one_batch(
    spark: SparkSession, directory: Path, options: str, *, rows: int, value: str, deadline_s: int = 100
) -> None:
    """Write the numbers below ``rows`` in one batch, with the sink's options as JSON, and stop Spark."""
    source = directory / "input"
    spark.range(0, rows, 1, 4).write.parquet(str(source))
    stream = spark.readStream.schema("id BIGINT").parquet(str(source))
    query = start_query(stream, DualWriteSink(value=value, **json.loads(options)), directory / "checkpoint")
    assert query.awaitTermination(deadline_s), f"the batch did not end within {deadline_s} s"
    spark.stop()
