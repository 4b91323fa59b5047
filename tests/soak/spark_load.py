"""A streaming query of Spark through the sink, as fast as micro-batches come.

The source makes its rows itself (rate-micro-batch: the same rows for the same batch, so a replay is the same batch).
Every tenth batch has rows a hundred times as long.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import StreamingQueryException

from spark_2pc_sink import DualWriteSink
from spark_2pc_sink.testing.spark import start_spark
from tests.harness import ROOT
from tests.soak.child import Gate, serve

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROWS_PER_BATCH: Final = 20
PAYLOAD: Final = f"repeat('x', CASE WHEN value DIV {ROWS_PER_BATCH} % 10 = 9 THEN 4000 ELSE 40 END)"
#: What a stream and Spark's status store keep is little here, so that it is full before the judged half begins.
_SETTINGS: Final = {
    "spark.jars": "",
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "500",
    "spark.sql.ui.retainedExecutions": "50",
    "spark.sql.streaming.minBatchesToRetain": "10",
    "spark.sql.streaming.numRecentProgressUpdates": "10",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC",
}
_BYTES_PER_MIB: Final = 1024 * 1024


class CountingSink(DualWriteSink):
    """The sink, counting the batches that it has written."""

    def __init__(self, gate: Gate, **options: Any) -> None:
        super().__init__(**options)
        self._gate = gate
        self.batches = 0

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        super().__call__(batch, batch_id)
        self.batches += 1
        self._gate.after_batch()


class SparkLoad:
    """A query that runs until it is told to stop."""

    def __init__(self, sink: dict[str, Any], folder: Path) -> None:
        self._spark = start_spark(folder / "spark", python_path=ROOT, settings=_SETTINGS)
        self.gate = Gate(lambda: not self._query.isActive)
        self._sink = CountingSink(self.gate, **sink)
        stream = self._spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS_PER_BATCH).load()
        writer = stream.selectExpr("value AS id", f"{PAYLOAD} AS payload").writeStream.foreachBatch(self._sink)
        self._query = writer.option("checkpointLocation", str(folder / "checkpoint")).start()
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True
        self._query.stop()
        self._spark.stop()

    def sample(self, used: bool) -> dict[str, Any]:
        return {
            "batches": self._sink.batches,
            "error": self._failure(),
            **(self._jvm_use() if used else {}),
        }

    def _failure(self) -> str:
        error: StreamingQueryException | None = None if self._stopped else self._query.exception()
        return "" if error is None else str(error)

    def _jvm_use(self) -> dict[str, float]:
        """What is used after a full collection of garbage, by which Spark also learns what it can remove."""
        machine: Any = self._spark.sparkContext._jvm
        machine.java.lang.System.gc()
        management = machine.java.lang.management.ManagementFactory
        memory = management.getMemoryMXBean()
        return {
            "heap_mib": memory.getHeapMemoryUsage().getUsed() / _BYTES_PER_MIB,
            "non_heap_mib": memory.getNonHeapMemoryUsage().getUsed() / _BYTES_PER_MIB,
            "classes": management.getClassLoadingMXBean().getLoadedClassCount(),
            "blocks_mib": self._blocks_bytes() / _BYTES_PER_MIB,
        }

    def _blocks_bytes(self) -> int:
        """Broadcast variables and cached blocks in memory."""
        context: Any = self._spark.sparkContext._jsc
        status = context.sc().getExecutorMemoryStatus().values().toList()
        pairs = (status.apply(at) for at in range(status.size()))
        return sum(int(pair._1()) - int(pair._2()) for pair in pairs)


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)
    _config = Path(sys.argv[1])
    _load = SparkLoad(json.loads(_config.read_text())["sink"], _config.parent)
    serve(_load.gate, _load.sample, _load.stop)
