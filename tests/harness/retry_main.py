"""A driver of its own in which Spark runs a task, or a whole stage, a second time.

Usage: ``python -m tests.harness.retry_main SCENARIO OPTIONS_JSON DIRECTORY``. Scenarios: ``source`` (a task fails while
it reads rows), ``encoded`` (one fails that has encoded some of its rows for others to send), ``task`` (one fails that
has sent records) and ``stage`` (when the first task has sent, the shuffle files are deleted). It needs a session of its
own: tasks may fail (local[2,4]), and there are more of them than threads, so that some have not read their shuffle
blocks yet when those are deleted.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

from spark_2pc_sink.sink.job import spark_batch
from spark_2pc_sink.sink.tasks.encode_task import run_encode_task
from spark_2pc_sink.sink.tasks.send_task import run_send_task
from spark_2pc_sink.testing.spark import start_spark
from tests.harness.one_batch import write_one_batch

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_2pc_sink.sink.contract.task_plan import TaskIdentity, TaskPlan

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
        quick=True,
        settings={
            "spark.master": "local[2,4]",
            "spark.default.parallelism": str(TASKS),
            "spark.sql.execution.arrow.maxRecordsPerBatch": "500",
        },
    )
    marker = root / "failed-once"
    if scenario == "encoded":
        _fail_after_encoding(marker)
    elif scenario != "source":
        _fail_after_sending(scenario, marker, local)

    def fail_once(number: int) -> str:
        # Late in a partition, so that where rows are not moved records of it are on their way to the brokers.
        if number % ROWS > ROWS // 2 and not marker.exists():
            marker.touch()
            message = "this task fails once"
            raise RuntimeError(message)
        return f"value-{number}"

    spark.udf.register("fail_once", fail_once)
    value = "fail_once(id)" if scenario == "source" else "concat('value-', id)"
    write_one_batch(spark, root, options, rows=ROWS, value=value)


def _fail_after_encoding(marker: Path) -> None:
    """Let the first task that has encoded rows fail before it has read the others."""

    def some(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        encoded = 0
        for batch in batches:
            if encoded and not marker.exists():
                marker.touch()
                message = "this task fails once"
                raise RuntimeError(message)
            yield batch
            encoded += batch.num_rows

    def encode_some(
        batches: Iterable[pa.RecordBatch], plan: TaskPlan, identity: TaskIdentity
    ) -> Iterator[pa.RecordBatch]:
        return run_encode_task(some(batches), plan, identity)

    mock.patch.object(spark_batch, "run_encode_task", encode_some).start()


def _fail_after_sending(scenario: str, marker: Path, local: Path) -> None:
    """Let the first task that has written its records fail, or lose the shuffle files of those that have not."""

    def send_and_fail(
        batches: Iterable[pa.RecordBatch], plan: TaskPlan, identity: TaskIdentity
    ) -> Iterator[pa.RecordBatch]:
        yield from run_send_task(batches, plan, identity)
        if marker.exists():
            return
        marker.touch()
        if scenario == "task":
            message = "this task fails once"
            raise RuntimeError(message)
        for file in local.rglob("shuffle_*"):
            file.unlink()

    mock.patch.object(spark_batch, "run_send_task", send_and_fail).start()


if __name__ == "__main__":
    main(*sys.argv[1:])
