"""A driver of its own in which Spark runs a task, or a whole stage, a second time.

Usage: ``python -m tests.harness.retry_main SCENARIO OPTIONS_JSON DIRECTORY``. Scenarios: ``held`` (a task fails while
the driver holds back all that it has sent), ``streaming`` (one fails of which the driver has written some), ``sent``
(one fails after the driver has its end) and ``stage`` (when the first task has ended, the shuffle files that the
others read are deleted; the option upsert_order_by makes some). It needs a session of its own: tasks may fail
(local[2,4]), and there are more of them than threads, so that some have not read their shuffle blocks yet.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

from spark_2pc_sink.sink.job import spark_batch
from spark_2pc_sink.sink.job.encode_task import run_encode_task
from spark_2pc_sink.sink.stream import attempt_input
from spark_2pc_sink.testing.spark import start_spark
from tests.harness.streams import write_one_batch

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_2pc_sink.sink.job.task_plan import TaskIdentity, TaskPlan

ROOT = Path(__file__).parents[2]
ROWS = 200_000
TASKS = 4


def main(scenario: str, options: str, directory: str) -> None:
    """Run one batch of ``ROWS`` rows, in which something fails once."""
    root = Path(directory)
    local = root / "local"
    spark = start_spark(
        local,
        python_path=ROOT,
        quick=True,
        settings={
            "spark.master": "local[2,4]",
            "spark.default.parallelism": str(TASKS),
            "spark.sql.execution.arrow.maxRecordsPerBatch": "500",
        },
    )
    marker = root / "failed-once"
    if scenario == "streaming":
        mock.patch.object(attempt_input, "HOLD_BYTES_MAX", 0).start()

    def some(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        read = 0
        for batch in batches:
            if read > 0.8 * ROWS / TASKS and not marker.exists():
                marker.touch()
                message = "this task fails once"
                raise RuntimeError(message)
            yield batch
            read += batch.num_rows

    def encode(batches: Iterable[pa.RecordBatch], plan: TaskPlan, identity: TaskIdentity) -> Iterator[pa.RecordBatch]:
        if scenario in {"held", "streaming"}:
            batches = some(batches)
        yield from run_encode_task(batches, plan, identity)
        if marker.exists():
            return
        marker.touch()
        if scenario == "sent":
            message = "this task fails once"
            raise RuntimeError(message)
        for file in local.rglob("shuffle_*"):
            file.unlink()

    with mock.patch.object(spark_batch, "run_encode_task", encode):
        write_one_batch(spark, root, options, rows=ROWS, value="concat('value-', id)")


if __name__ == "__main__":
    main(*sys.argv[1:])
