"""A job on Spark, with files that come in while it runs."""

from __future__ import annotations

import os
from abc import abstractmethod
from pathlib import Path

import psutil

from spark_2pc_sink import VerifyReport, verify
from tests.chaos.jobs import ChaosJob, Sides
from tests.chaos.processes import MissedError, descendants
from tests.harness.driver_process import Nursery

#: A file comes in with every how manieth call of `feed`.
_FEEDS_PER_FILE = 4


class SparkJob(ChaosJob):
    """See `ChaosJob`.

    Args:
        name: of the job.
        sides: of the sink.
        folder: for input, checkpoint and drivers' files.
        nursery: starts drivers.
        seed: of the events.
    """

    back_deadline_s = 300.0
    #: Files that come in since the last batch was done, at most: as while a driver starts again.
    files_ahead = 40

    def __init__(self, name: str, sides: Sides, folder: Path, nursery: Nursery, seed: int) -> None:
        super().__init__(name, sides, folder)
        self.nursery = nursery
        self.seed = seed
        self.input = folder / "events"
        self.input.mkdir()
        self.checkpoint = folder / "checkpoint"
        #: True for the last driver, which writes what is there and ends.
        self.finishing = False
        self._waiting: list[Path] = []
        self._rounds = self._feeds = self._fed = self._fed_since = self._batches_seen = 0

    @abstractmethod
    def write_round(self, folder: Path, number: int) -> None:
        """Write the next files of the input into a new folder, as ``*.jsonl``, to be taken by their names."""

    @abstractmethod
    def python_workers(self) -> list[psutil.Process]:
        """The Python processes that run tasks."""

    def feed(self) -> None:
        """Let a file come in, unless many have come in since the last batch was done."""
        self._feeds += 1
        done = self._batches_done()
        if done != self._batches_seen:
            self._batches_seen, self._fed_since = done, 0
        if self._feeds % _FEEDS_PER_FILE or self._fed_since >= self.files_ahead:
            return
        if not self._waiting:
            folder = self.folder / f"round-{self._rounds}"
            self.write_round(folder, self._rounds)
            self._rounds += 1
            self._waiting = sorted(folder.glob("*.jsonl"))
        # Spark takes files by their time.
        file = self._waiting.pop(0)
        os.utime(file, (1_700_000_000 + self._fed, 1_700_000_000 + self._fed))
        file.rename(self.input / f"{self._fed:06}.jsonl")
        self._fed += 1
        self._fed_since += 1

    def finish(self) -> None:
        """Kill the driver; the next one writes what is there, and ends."""
        self.finishing = True
        if self.driver.running:
            self.kill(self.driver)

    def verify(self) -> VerifyReport:
        """With nothing but the sink's id: it has noted the rest."""
        return verify(
            transactional_id=self.name, kafka={"bootstrap.servers": self.sides.kafka}, database=self.sides.database
        )

    def virtual_machine(self) -> psutil.Process:
        """The driver's JVM.

        Raises:
            MissedError: there is none.
        """
        found = descendants(self.driver.pid, command="SparkSubmit")
        if not found:
            raise MissedError("the driver has no virtual machine")
        return found[0]

    def _batches_done(self) -> int:
        """Spark's commit log has a file for each batch; it forgets old ones."""
        return max((int(file.name) for file in (self.checkpoint / "commits").glob("[0-9]*")), default=-1) + 1
