"""A driver of its own that writes one batch, in which a task fails, or an executor is lost or told to go.

Usage: ``python -m tests.harness.one_batch_main ACT PLACE OPTIONS_JSON DIRECTORY``. Acts: ``fail``, of a task or of what
a stage has left; ``KILL`` and ``PWR``, signals to an executor, the second of which tells it to go
(``spark.decommission.enabled``); ``encrypt``, which harms nothing. Places in a task: ``reading`` (the driver holds back
what it has sent), ``streaming`` (the driver is writing that), ``sent`` (the driver has its end, and Spark has not heard
of it) and ``stage`` (it has ended, and the shuffle files that others read are deleted; the option upsert_order_by makes
some); in the driver, while no task runs: the name of a step. It happens once, of which the file ``struck`` tells.

A failing task has a session of its own: tasks may fail, and there are more of them than threads, so that some have not
read their shuffle blocks yet. Executors are two processes of one core each, and Spark starts another in the place of a
lost one. Printed is from how many tasks each attempt came, and whether it came encrypted.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final
from unittest import mock

import psutil

from spark_2pc_sink import DualWriteSink
from spark_2pc_sink.recipe.steps import Step
from spark_2pc_sink.sink.job import spark_batch
from spark_2pc_sink.sink.job.encode_task import run_encode_task
from spark_2pc_sink.sink.job.task_plan import TaskResults
from spark_2pc_sink.sink.stream import attempt_input
from spark_2pc_sink.sink.stream.listener import StreamListener
from spark_2pc_sink.testing.spark import start_spark
from tests.harness import ROOT
from tests.harness.acts import act_at
from tests.harness.streams import start_query

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_2pc_sink.sink.job.task_plan import TaskIdentity, TaskPlan, TaskReceipt

ROWS: Final = 200_000
TASKS: Final = 4
#: Another executor has to start in the middle of it.
_DEADLINE_S: Final = 300
_EXECUTOR: Final = "CoarseGrainedExecutorBackend"
_EXECUTORS: Final = {
    "spark.master": "local-cluster[2,1,1024]",
    "spark.executor.memory": "512m",
    "spark.decommission.enabled": "true",
}
_SETTINGS: Final = {
    "fail": {"spark.master": "local[2,4]", "spark.default.parallelism": str(TASKS)},
    # Spark's own traffic is encrypted with a key that its processes share.
    "encrypt": {
        "spark.authenticate": "true",
        "spark.authenticate.secret": "shared",
        "spark.network.crypto.enabled": "true",
        **_EXECUTORS,
    },
}


def main(act: str, place: str, options: str, directory: str) -> None:
    root = Path(directory)
    settings = _SETTINGS.get(act, _EXECUTORS) | {"spark.sql.execution.arrow.maxRecordsPerBatch": "500"}
    spark = start_spark(root / "local", python_path=ROOT, quick=True, settings=settings)
    strike = _Strike(act, root / "struck")
    if place in Step.__members__:
        act_at(Step[place], 1, lambda: strike.one_of(psutil.Process().children(recursive=True)))
    elif place:
        _strike_in_tasks(strike, place, root / "local")
    spark.range(0, ROWS, 1, 4).write.parquet(str(root / "input"))
    stream = spark.readStream.schema("id BIGINT").parquet(str(root / "input"))
    sink = DualWriteSink(value="concat('value-', id)", **json.loads(options))
    arrived, opened = TaskResults.check_arrived, StreamListener.open_attempt
    with (
        mock.patch.object(TaskResults, "check_arrived", autospec=True, side_effect=arrived) as checked,
        mock.patch.object(StreamListener, "open_attempt", autospec=True, side_effect=opened) as attempts,
    ):
        query = start_query(stream, sink, root / "checkpoint")
        assert query.awaitTermination(_DEADLINE_S), f"the batch did not end within {_DEADLINE_S} s"
    spark.stop()
    tasks = [len(call.args[1]) for call in checked.call_args_list]
    encrypted = all(call.args[0].endpoint.encrypted for call in attempts.call_args_list)
    print(json.dumps({"tasks": tasks, "encrypted": encrypted}), flush=True)


class _Strike:
    """An act that is done once, however many tasks come to the place.

    Args:
        marker: a file that is there once it was done.
    """

    def __init__(self, act: str, marker: Path) -> None:
        self._act = act
        self._marker = marker

    def own(self) -> None:
        """At the task that calls, or at its executor; its Python goes on for as long as it is let."""
        if self._act != "fail":
            self.one_of(psutil.Process().parents())
        elif self.first():
            message = "this task fails once"
            raise RuntimeError(message)

    def one_of(self, processes: Iterable[psutil.Process]) -> None:
        """A signal to the first executor among processes."""
        executor = next(filter(_is_executor, processes))
        if self.first():
            executor.send_signal(signal.Signals[f"SIG{self._act}"])

    def first(self) -> bool:
        """True for who asks first, of all processes."""
        try:
            os.close(os.open(self._marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


def _is_executor(process: psutil.Process) -> bool:
    try:
        return _EXECUTOR in " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        # It has ended since it was listed, perhaps as one that nobody has reaped.
        return False


def _strike_in_tasks(strike: _Strike, place: str, local: Path) -> None:
    if place == "streaming":
        # Nothing is held back, so that the driver writes each frame at once.
        mock.patch.object(attempt_input, "HOLD_BYTES_MAX", 0).start()

    def late(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        read = 0
        for batch in batches:
            if read > 0.8 * ROWS / TASKS:
                strike.own()
            yield batch
            read += batch.num_rows

    def encode(batches: Iterable[pa.RecordBatch], plan: TaskPlan, identity: TaskIdentity) -> TaskReceipt:
        given = late(batches) if place in {"reading", "streaming"} else batches
        receipt = run_encode_task(given, plan, identity)
        if place == "sent":
            strike.own()
        if place == "stage" and strike.first():
            for file in local.rglob("shuffle_*"):
                file.unlink()
        return receipt

    mock.patch.object(spark_batch, "run_encode_task", encode).start()


if __name__ == "__main__":
    main(*sys.argv[1:])
