"""A driver that loses an executor at a place of a batch, or has one decommissioned there.

Usage: ``python -m tests.harness.lost_executor_main SIGNAL PLACE OPTIONS_JSON DIRECTORY``. The signal is KILL, or PWR,
which tells an executor to go (``spark.decommission.enabled``). Places in a task: ``reading`` (the driver holds back
what it has sent), ``streaming`` (the driver is writing that) and ``sent`` (the driver has its end); in the driver,
while no task runs: the name of a step. It happens once in a batch. Executors are two processes of one core each, and
Spark starts another in the place of a lost one.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final
from unittest import mock

import psutil

from spark_2pc_sink.recipe.steps import Step
from spark_2pc_sink.sink.job import spark_batch
from spark_2pc_sink.sink.job.encode_task import run_encode_task
from spark_2pc_sink.sink.stream import attempt_input
from spark_2pc_sink.testing.spark import start_spark
from tests.harness.fatal_step import act_at
from tests.harness.streams import write_one_batch

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_2pc_sink.sink.job.task_plan import TaskIdentity, TaskPlan

ROOT: Final = Path(__file__).parents[2]
ROWS: Final = 200_000
#: Another executor has to start in the middle of it.
_DEADLINE_S: Final = 300
_EXECUTOR: Final = "CoarseGrainedExecutorBackend"


def main(name: str, place: str, options: str, directory: str) -> None:
    """Run one batch of ``ROWS`` rows."""
    root = Path(directory)
    spark = start_spark(
        root / "local",
        python_path=ROOT,
        quick=True,
        settings={
            "spark.master": "local-cluster[2,1,1024]",
            "spark.executor.memory": "512m",
            "spark.decommission.enabled": "true",
            "spark.sql.execution.arrow.maxRecordsPerBatch": "500",
        },
    )
    number = signal.Signals[f"SIG{name}"]
    strike = _Strike(root / "struck", number)
    if place in Step.__members__:
        act_at(Step[place], 1, lambda: strike.one_of(psutil.Process().children(recursive=True)))
    else:
        _IN_TASKS[place](strike)
    write_one_batch(spark, root, options, rows=ROWS, value="concat('value-', id)", deadline_s=_DEADLINE_S)


class _Strike:
    """A signal to an executor, once however many tasks come to the place.

    Args:
        marker: a file that is there once it has been sent.
    """

    def __init__(self, marker: Path, number: int) -> None:
        self._marker = marker
        self._number = number

    def own(self) -> None:
        """To the executor of the task that calls; its Python goes on for as long as it is let."""
        self.one_of(psutil.Process().parents())

    def one_of(self, processes: Iterable[psutil.Process]) -> None:
        """To the first executor among processes."""
        executor = next(filter(_is_executor, processes))
        try:
            os.close(os.open(self._marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        executor.send_signal(self._number)


def _is_executor(process: psutil.Process) -> bool:
    try:
        return _EXECUTOR in " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        # It has ended since it was listed, perhaps as one that nobody has reaped.
        return False


def _while_reading(strike: _Strike) -> None:
    def encode(batches: Iterable[pa.RecordBatch], plan: TaskPlan, identity: TaskIdentity) -> Iterator[pa.RecordBatch]:
        return run_encode_task(_struck(batches, strike), plan, identity)

    mock.patch.object(spark_batch, "run_encode_task", encode).start()


def _while_streaming(strike: _Strike) -> None:
    """Nothing is held back, so that the driver writes each frame at once."""
    mock.patch.object(attempt_input, "HOLD_BYTES_MAX", 0).start()
    _while_reading(strike)


def _when_sent(strike: _Strike) -> None:
    """The driver has all that a task has made, and Spark has not heard of its end."""

    def encode(batches: Iterable[pa.RecordBatch], plan: TaskPlan, identity: TaskIdentity) -> Iterator[pa.RecordBatch]:
        for receipt in run_encode_task(batches, plan, identity):
            strike.own()
            yield receipt

    mock.patch.object(spark_batch, "run_encode_task", encode).start()


def _struck(batches: Iterable[pa.RecordBatch], strike: _Strike) -> Iterator[pa.RecordBatch]:
    """Input of a task; the signal is sent when the task has done its first piece and asks for more."""
    for batch in batches:
        yield batch
        strike.own()


_IN_TASKS: Final[dict[str, Callable[[_Strike], None]]] = {
    "reading": _while_reading,
    "streaming": _while_streaming,
    "sent": _when_sent,
}


if __name__ == "__main__":
    main(*sys.argv[1:])
