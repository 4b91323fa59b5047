"""A driver whose workers have a Python of their own; one batch of numbers, as `tests.harness.streams` writes it.

python -m tests.harness.own_python_main MASTER PYTHON SETTINGS_JSON OPTIONS_JSON DIRECTORY

PYTHON is the value of PYSPARK_PYTHON; '' leaves it to PATH, and PYTHONPATH out.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from spark_2pc_sink.testing.spark import spark_environment, spark_settings
from tests.harness.streams import write_one_batch

ROWS = 20_000
#: Executors unpack hundreds of megabytes first.
DEADLINE_S = 300


def main(master: str, python: str, settings: str, options: str, directory: str) -> None:
    root = Path(directory)
    os.environ.update(spark_environment(root / "local"))
    if python:
        os.environ["PYSPARK_PYTHON"] = python
    else:
        del os.environ["PYSPARK_PYTHON"], os.environ["PYTHONPATH"]
    builder = SparkSession.builder.appName("executors with a Python of their own")
    # Jars that are at hand for other tests would only be copied about.
    given = spark_settings(root) | {"spark.master": master, "spark.jars": ""} | json.loads(settings)
    for name, value in given.items():
        builder = builder.config(name, value)
    spark = builder.config("spark.executor.memory", "512m").getOrCreate()
    write_one_batch(spark, root, options, rows=ROWS, value="concat('value-', id)", deadline_s=DEADLINE_S)


if __name__ == "__main__":
    main(*sys.argv[1:])
