"""A driver whose tasks run in executors of their own: a cluster of two, with one core each, on this machine.

Usage: ``python -m tests.support.cluster_main OPTIONS_JSON DIRECTORY``. Prints how many parts each batch has staged.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from spark_2pc_sink import DualWriteSink
from spark_2pc_sink.sink.staging_tables import StagedTables
from spark_2pc_sink.testing.spark import start_spark

ROOT = Path(__file__).parents[2]
ROWS = 100_000


def main(options: str, directory: str) -> None:
    """Run one batch of ``ROWS`` rows."""
    root = Path(directory)
    spark = start_spark(
        root / "local",
        python_path=ROOT,
        quick=True,
        settings={"spark.master": "local-cluster[2,1,1024]", "spark.executor.memory": "512m"},
    )
    drop = StagedTables.drop

    def show(staged: StagedTables) -> None:
        print(json.dumps([parts for _, parts in staged.taken.values()]), flush=True)
        drop(staged)

    StagedTables.drop = show  # type: ignore[assignment,method-assign]
    source = root / "input"
    spark.range(0, ROWS, 1, 4).write.parquet(str(source))
    query = (
        spark.readStream.schema("id BIGINT")
        .parquet(str(source))
        .writeStream.foreachBatch(DualWriteSink(value="concat('value-', id)", **json.loads(options)))
        .option("checkpointLocation", str(root / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(100)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
