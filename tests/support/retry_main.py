"""A driver of its own in which Spark runs a task, or a whole stage, a second time.

Usage: ``python -m tests.support.retry_main SCENARIO OPTIONS_JSON DIRECTORY``, with the scenario ``task`` or ``stage``.
It needs a session of its own: tasks may fail (local[2,4]), and there are more of them than threads, so that some have
not read their shuffle blocks yet when those are deleted.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from spark_2pc_sink import DualWriteSink
from spark_2pc_sink.testing.spark import start_spark

ROOT = Path(__file__).parents[2]
ROWS = 40_000
TASKS = 4


def main(scenario: str, options: str, directory: str) -> None:
    """Run one batch of ``ROWS`` rows, in which something fails once."""
    root = Path(directory)
    local = root / "local"
    spark = start_spark(
        local,
        python_path=ROOT,
        settings={
            "spark.master": "local[2,4]",
            "spark.default.parallelism": str(TASKS),
            "spark.sql.execution.arrow.maxRecordsPerBatch": "500",
        },
    )
    marker = root / "failed-once"

    def fail_once(number: int) -> str:
        # Late in a partition, so that records of it are on their way to the brokers.
        if number % ROWS > ROWS // 2 and not marker.exists():
            marker.touch()
            if scenario == "task":
                message = "this task fails once"
                raise RuntimeError(message)
            for file in local.rglob("shuffle_*"):
                file.unlink()
        return f"value-{number}"

    spark.udf.register("fail_once", fail_once)
    source = root / "input"
    spark.range(0, ROWS, 1, 4).write.parquet(str(source))
    query = (
        spark.readStream.schema("id BIGINT")
        .parquet(str(source))
        .writeStream.foreachBatch(DualWriteSink(value="fail_once(id)", **json.loads(options)))
        .option("checkpointLocation", str(root / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(150)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
