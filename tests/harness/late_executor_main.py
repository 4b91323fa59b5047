"""A driver with two batches, and between them an executor joins; prints each line at once.

python -m tests.harness.late_executor_main MASTER PYTHON OPTIONS_JSON DIRECTORY
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from spark_2pc_sink import DualWriteSink
from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.testing import wait_until
from spark_2pc_sink.testing.spark import spark_environment, spark_settings

#: So many that tasks write them, and not the driver.
ROWS: Final = 20_000
#: Said behind the first batch.
WRITTEN: Final = "written"
_DEADLINE_S: Final = 180.0


def main(master: str, python: str, options: str, directory: str) -> None:
    root = Path(directory)
    os.environ.update(spark_environment(root / "local"))
    os.environ["PYSPARK_PYTHON"] = python
    # The driver's executors are those of the cluster, which decides what they find.
    del os.environ["PYTHONPATH"]
    builder = SparkSession.builder.appName("an executor joins")
    settings = spark_settings(root) | {"spark.master": master, "spark.jars": "", "spark.executor.memory": "512m"}
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    sink = DualWriteSink(value="concat('value-', id)", **json.loads(options))
    sink.write(spark.range(0, ROWS, 1, 4), batch_id=0)
    before = _members(spark)
    print(WRITTEN, flush=True)
    wait_until(lambda: _members(spark) > before, deadline_s=_DEADLINE_S, what="an executor that joins")
    try:
        sink.write(spark.range(ROWS, 2 * ROWS, 1, 4), batch_id=1)
    except ConfigurationError as error:
        print(error, flush=True)
    spark.stop()


def _members(spark: SparkSession) -> int:
    return int(spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size())


if __name__ == "__main__":
    main(*sys.argv[1:])
