"""The orders example on Spark, as a user would start it, with files that come in while it runs."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

import psutil

from spark_2pc_sink import VerifyReport, verify
from tests.chaos.jobs import ChaosJob, Comparison, Sides
from tests.chaos.processes import MissedError, descendants
from tests.harness import ROOT
from tests.harness.driver_config import DriverConfig
from tests.harness.driver_process import DriverProcess, Nursery

NAME = "orders"
#: Orders go on from file to file within a round of files.
_EVENTS_PER_ROUND, _FILES_PER_ROUND = 2_400, 40
#: A file comes in with every how manieth call of `feed`.
_FEEDS_PER_FILE = 4
#: Files that wait for the driver, at most: what comes in while it starts again.
_AHEAD = 40
_FILES_PER_BATCH = 4


class OrdersJob(ChaosJob):
    """See `ChaosJob`.

    Args:
        sides: of the sink.
        folder: for input, checkpoint and drivers' files.
        nursery: starts drivers.
        seed: of the events.
        master: of the Spark cluster.
    """

    back_deadline_s = 300.0

    def __init__(self, sides: Sides, folder: Path, nursery: Nursery, seed: int, master: str) -> None:
        super().__init__(NAME, sides, folder)
        self._nursery = nursery
        self._seed = seed
        self._master = master
        self._input = folder / "events"
        self._input.mkdir()
        self._waiting: list[Path] = []
        self._rounds = self._feeds = self._fed = self._fed_since = self._batches_seen = 0
        self._finishing = False

    def launch(self, folder: Path) -> DriverProcess:
        """Start the example; the last time, until it has written what is there."""
        command = {
            "events": self._input,
            "checkpoint": self.folder / "checkpoint",
            "kafka": self.sides.proxied_kafka,
            "database": self.sides.proxied_database,
            "master": self._master,
            "max-files-per-trigger": _FILES_PER_BATCH,
        }
        config = DriverConfig(
            journal=str(folder / "journal"),
            input="",
            checkpoint=str(self.folder / "checkpoint"),
            query_id="",
            batches=0,
            sink={},
            spark=True,
            example=(
                *(f"--{name}={value}" for name, value in command.items()),
                *(["--available-now"] if self._finishing else []),
            ),
            orders=str(folder / "orders"),
        )
        return self._nursery.start(config, folder)

    def feed(self) -> None:
        """Let a file come in, unless many have come in since the last batch was done."""
        self._feeds += 1
        done = self._batches_done()
        if done != self._batches_seen:
            self._batches_seen, self._fed_since = done, 0
        if self._feeds % _FEEDS_PER_FILE or self._fed_since >= _AHEAD:
            return
        if not self._waiting:
            self._write_round()
        # Spark takes files by their time.
        file = self._waiting.pop(0)
        os.utime(file, (1_700_000_000 + self._fed, 1_700_000_000 + self._fed))
        file.rename(self._input / f"{self._fed:06}.jsonl")
        self._fed += 1
        self._fed_since += 1

    def finish(self) -> None:
        """Kill the driver; the next one writes what is there, and ends."""
        self._finishing = True
        if self.driver.running:
            self.kill(self.driver)

    def compare(self) -> Comparison:
        """What the example's own comparison compares: each event in the topic, each order's last state in the table."""
        compared = _example("orders_compare").compare(
            events=self._input, kafka=self.sides.kafka, topic=NAME, database=self.sides.database, table=NAME
        )
        return Comparison(compared.topic, compared.table)

    def verify(self) -> VerifyReport:
        """With nothing but the sink's id: it has noted the rest."""
        return verify(
            transactional_id=NAME, kafka={"bootstrap.servers": self.sides.kafka}, database=self.sides.database
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
        commits = self.folder / "checkpoint" / "commits"
        return max((int(file.name) for file in commits.glob("[0-9]*")), default=-1) + 1

    def _write_round(self) -> None:
        folder = self.folder / f"round-{self._rounds}"
        _example("orders_events").write_events(
            folder, events=_EVENTS_PER_ROUND, seed=self._seed * 1_000 + self._rounds, files=_FILES_PER_ROUND
        )
        self._rounds += 1
        self._waiting = sorted(folder.glob("*.jsonl"))


def _example(name: str) -> Any:
    """A module of the examples, which are programs and no package."""
    examples = str(ROOT / "examples")
    if examples not in sys.path:
        sys.path.insert(0, examples)
    return importlib.import_module(name)
