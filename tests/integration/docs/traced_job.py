"""A job of three micro-batches: the second is traced, and the third is killed when the database has decided it.

    python -m tests.integration.docs.traced_job '{"kafka": …, "database": …, "topic": …}' DIRECTORY

The trace is written to ``DIRECTORY/trace.json``. The driver then kills itself and its children, as the end of its
machine would.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spark_2pc_sink import DualWriteSink
from spark_2pc_sink.recipe.steps import Step
from spark_2pc_sink.sink.driver import step_observer
from spark_2pc_sink.testing.processes import kill_with_children
from spark_2pc_sink.testing.spark import start_spark
from tests.harness.call_trace import FOLDER_VARIABLE, ROOT, CallTrace, Lane

if TYPE_CHECKING:
    from spark_2pc_sink import BatchReport

BATCHES: Final = 3
#: More than the driver writes by itself (20 000), so that there are tasks.
ROWS: Final = 25_000


class Job:
    """The job and its trace.

    Args:
        given: ``kafka`` (bootstrap servers), ``database`` (URL) and ``topic``.
        directory: of its own.
    """

    def __init__(self, given: dict[str, str], directory: Path) -> None:
        self._given = given
        self._directory = directory
        self._traces = directory / "tasks"
        self._traces.mkdir()
        self._trace = CallTrace()
        self._decided = 0

    def run(self) -> None:
        """Run until the driver kills itself."""
        os.environ[FOLDER_VARIABLE] = str(self._traces)
        os.environ["PYTHONPATH"] = str(ROOT)
        self._trace.start()
        spark = start_spark(
            self._directory,
            python_path=Path(__file__).parent / "traced_workers",
            quick=True,
            # Each task is then a process of its own, with a trace of its own.
            settings={"spark.python.worker.reuse": "false"},
        )
        source = self._directory / "input"
        for number in range(BATCHES):
            frame = spark.range(number * ROWS, (number + 1) * ROWS).selectExpr("id", "concat('n-', id) AS name")
            frame.coalesce(1).write.mode("append").parquet(str(source))
        sink = DualWriteSink(
            transactional_id=self._given["topic"],
            kafka={"bootstrap.servers": self._given["kafka"]},
            database=self._given["database"],
            topic=self._given["topic"],
            key="id",
            table="public.target",
            create_table=True,
            on_batch=self._written,
        )
        step_observer.reached = self._reached
        stream = spark.readStream.schema("id BIGINT, name STRING").option("maxFilesPerTrigger", 1)
        query = (
            stream.parquet(str(source))
            .writeStream.foreachBatch(sink)
            .option("checkpointLocation", str(self._directory / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def _written(self, _report: BatchReport) -> None:
        if self._decided == 1:
            self._trace.clear()
            for path in self._traces.iterdir():
                path.unlink()
        elif self._decided == BATCHES - 1:
            tasks = [Lane(path.read_text().split(), []) for path in sorted(self._traces.iterdir())]
            (self._directory / "trace.json").write_text(json.dumps([*self._trace.lanes(), *tasks]))

    def _reached(self, step: Step) -> None:
        if step is Step.DECIDE:
            self._decided += 1
            if self._decided == BATCHES:
                kill_with_children()


if __name__ == "__main__":
    Job(json.loads(sys.argv[1]), Path(sys.argv[2])).run()
