"""The jobs under attack: their drivers, one after the other, the supervisor that starts them again, their processes.

``rows`` is the batch driver and its recovery without Spark, which is back in a moment. ``orders`` is the orders example
on a Spark cluster, as a user would start it. Both read files that come in while they run. `outputs_job` has another.
"""

from __future__ import annotations

import importlib
import os
import random
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import psutil

from spark_2pc_sink import VerifyReport, verify
from spark_2pc_sink.testing import MultisetDifference, multiset_difference, read_topic, wait_until
from spark_2pc_sink.testing.kafka_broker import LocalBroker
from spark_2pc_sink.testing.spark_cluster import SparkCluster
from spark_2pc_sink.verification.report import Verdict
from tests.chaos.plan import ANYWHERE, Planned
from tests.harness import ROOT
from tests.harness.driver_config import END, DriverConfig
from tests.harness.driver_job import Job, make_rows
from tests.harness.driver_process import DriverProcess, Nursery


class MissedError(Exception):
    """A fault hit nothing: what it was to hit was not there, or had ended by itself."""


def descendants(pid: int, *, command: str, parent: str = "") -> list[psutil.Process]:
    """Processes below ``pid`` whose command line contains ``command``, and that of their parents ``parent``."""
    try:
        below = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return [process for process in below if _is(process, command, parent)]


def _is(process: psutil.Process, command: str, parent: str) -> bool:
    try:
        above = process.parent()
        return command in " ".join(process.cmdline()) and above is not None and parent in " ".join(above.cmdline())
    except psutil.NoSuchProcess:
        return False


def kill(process: psutil.Process) -> None:
    send(process, signal.SIGKILL)
    wait_until(lambda: _ended(process), what=f"the exit of the killed process {process}")


def send(process: psutil.Process, number: signal.Signals) -> None:
    if _ended(process):
        raise MissedError(f"{process} had already exited")
    os.kill(process.pid, number)


def _ended(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return True


#: A whole batch has gone through after a fault when this many have ended: the first may have been under way.
BATCHES_BACK = 2
#: Errors that no fault here may lead to: a person would have to act, or the driver has broken its own rules.
REFUSED = frozenset(
    {
        "HaltError",
        "ClaimRefusedError",
        "ConfigurationError",
        "DataError",
        "LocalProtocolError",
        "AuthorizationError",
        "SupersededError",
        "AssertionError",
        "Difference",
    }
)


class BrokenError(AssertionError):
    """A job did something that it must never do, or did not come back."""


@dataclass(frozen=True)
class Sides:
    """What a job goes through, and what the harness reads directly."""

    broker: LocalBroker
    database: str
    proxied_kafka: str
    proxied_database: str


class ChaosJob(ABC):
    """A job whose drivers are started one after the other. ``seed``: of its input."""

    name: ClassVar[str]
    #: With the number of partitions of each; all names begin with the job's own.
    topics: ClassVar[dict[str, int]]
    #: How long it may take to come back, on a machine that is busy with ten other things.
    back_deadline_s: float
    #: What `spark_2pc_sink.verify` says of it when nothing is wrong.
    verify_says: Verdict = "same"

    def __init__(self, sides: Sides, folder: Path, nursery: Nursery, seed: int) -> None:
        self.sides = sides
        self.folder = folder
        self.nursery = nursery
        self.seed = seed
        self.drivers: list[DriverProcess] = []
        #: Drivers that were killed or stopped for good.
        self.struck: list[DriverProcess] = []
        #: The errors of drivers that ended without being struck.
        self.gave_up: Counter[str] = Counter()
        #: What to print of them, until it is printed.
        self.news: list[str] = []
        self._disturbed_s = time.monotonic()
        self._batches_before = 0

    @abstractmethod
    def launch(self, folder: Path) -> DriverProcess:
        """Start a driver on what is not done yet; its files are in ``folder``."""

    @abstractmethod
    def feed(self) -> None:
        """Add input, if the driver does not lag behind already. Called from a thread of its own."""

    @abstractmethod
    def finish(self) -> None:
        """End the input. The driver ends when it has written all of it."""

    @abstractmethod
    def compare(self) -> dict[str, MultisetDifference]:
        """How each output differs from what it must hold, by its name; both sides are read to their end by others."""

    def verify(self, **more: Any) -> VerifyReport:
        """Compare both sides with each other and with the history, as an operator does, by no more than the sink's id.

        Args:
            **more: what the sink has not noted.
        """
        kafka = {"bootstrap.servers": self.sides.broker.bootstrap}
        return verify(transactional_id=self.name, kafka=kafka, database=self.sides.database, **more)

    @property
    def driver(self) -> DriverProcess:
        return self.drivers[-1]

    @property
    def finished(self) -> bool:
        end = self.driver.end()
        return not self.driver.running and end is not None and end.event == "finished"

    def start(self, *, stop_at: str | None = None) -> DriverProcess:
        """Start a driver, whatever the one before does. ``stop_at``: a place at which it stops itself."""
        folder = self.folder / f"driver-{len(self.drivers)}"
        folder.mkdir()
        if stop_at is not None:
            (folder / "orders").write_text(stop_at)
        self._batches_before = self.batches if self.drivers else 0
        self.drivers.append(self.launch(folder))
        return self.driver

    def tend(self) -> None:
        """Start a driver when the newest has died; what a supervisor does."""
        if self.driver.running or self.finished:
            return
        if self.driver not in self.struck:
            self._check_end()
        self.start()

    def disturbed(self) -> None:
        """Note a fault: only batches from now on show that the job has recovered."""
        self._disturbed_s = time.monotonic()

    @property
    def batches(self) -> int:
        """How many its drivers have finished; of those before the newest, until that was started."""
        return self._batches_before + len(self.driver.events("batch"))

    @property
    def back(self) -> bool:
        """True when a whole batch has gone through since `disturbed`."""
        batches = [event for event in self.driver.events("batch") if event["at_s"] > self._disturbed_s]
        return len(batches) >= BATCHES_BACK

    def kill(self, driver: DriverProcess) -> None:
        self.strike(driver)
        os.killpg(driver.pid, signal.SIGKILL)
        wait_until(lambda: not driver.running, what=f"the exit of the killed driver of {self.name}")

    def strike(self, driver: DriverProcess) -> None:
        """Note that a driver cannot do anything from now on."""
        if not driver.running:
            raise MissedError(f"the driver of {self.name} had already exited")
        self.struck.append(driver)
        self.disturbed()

    def stop_at(self, place: str, planned: Planned) -> DriverProcess:
        """Let the driver stop itself at a place, or stop it wherever it is; returns when it stands still."""
        driver = self.driver
        if place == ANYWHERE:
            time.sleep(planned.delay_s)
            if not driver.running:
                raise MissedError(f"the driver of {self.name} had already exited")
            driver.stop()
            return driver
        driver.order_stop(place)
        return self.stopped(driver, place)

    def stopped(self, driver: DriverProcess, place: str) -> DriverProcess:
        """Wait until a driver that was ordered to stop stands still."""
        wait_until(
            lambda: driver.stopped or not driver.running,
            deadline_s=self.back_deadline_s,
            what=f"the driver of {self.name} to reach {place}; the end of its log:\n{driver.log_tail()}",
        )
        if not driver.running:
            raise MissedError(f"the driver of {self.name} exited before it reached {place}")
        return driver

    def close(self) -> None:
        for driver in self.drivers:
            driver.close()

    def _check_end(self) -> None:
        end = self.driver.end()
        if end is not None and end.error in REFUSED:
            raise BrokenError(f"the driver of {self.name} exited with {end}\n{self.driver.log_tail()}")
        self.gave_up["no error reported" if end is None else end.error] += 1
        self.news.append(f"the driver of {self.name} exited by itself: {end}")


#: Rows of a batch of the job ``rows``: also none, and more than COPY keeps in buffers.
SIZES = (20, 20, 0, 5, 100, 600)
#: Its batches that wait for the driver.
_AHEAD = 4
#: Calls of `feed` for each new batch of it, and for each new file of a job on Spark.
_FEEDS_PER_BATCH, _FEEDS_PER_FILE = 2, 4
READ_DEADLINE_S = 300.0


class RowsJob(ChaosJob):
    """The cheap job: the batch driver and its recovery without Spark, which is back in a moment."""

    name = "rows"
    topics: ClassVar = {"rows": 3}
    back_deadline_s = 120.0

    def __init__(self, sides: Sides, folder: Path, nursery: Nursery, seed: int) -> None:
        super().__init__(sides, folder, nursery, seed)
        self._sizes = random.Random(f"rows {seed}")
        # No primary key: nothing but the sink keeps rows from being there twice.
        self._job = Job(
            broker=sides.broker,
            database=sides.database,
            topic=self.name,
            transactional_id=self.name,
            folder=folder,
            nursery=nursery,
            follow=True,
            table=self.name,
        ).create((), primary_key=False)
        self._done = self._feeds = 0

    def launch(self, folder: Path) -> DriverProcess:
        kafka = {"bootstrap.servers": self.sides.proxied_kafka}
        return self._job.start(folder=folder, kafka=kafka, database=self.sides.proxied_database)

    def feed(self) -> None:
        while (self._job.checkpoint / str(self._done)).exists():
            self._done += 1
        self._feeds += 1
        if self._feeds % _FEEDS_PER_BATCH == 0 and self._job.batches - self._done < _AHEAD:
            self._job.write_batch(self._job.batches, make_rows(self._job.batches, self._sizes.choice(SIZES)))
            self._job.batches += 1

    def finish(self) -> None:
        (self._job.folder / "input" / END).touch()

    def compare(self) -> dict[str, MultisetDifference]:
        expected = self._job.rows()
        records = read_topic(self.sides.broker.bootstrap, self.name, deadline_s=READ_DEADLINE_S)
        found = [(int((record.key or b"").decode()), (record.value or b"").decode()) for record in records]
        stored = self._job.sql(f"SELECT id, payload FROM {self.name}")
        return {"Kafka": multiset_difference(found, expected), "PostgreSQL": multiset_difference(stored, expected)}

    def verify(self, **more: Any) -> VerifyReport:
        """With what this driver, unlike a sink, has not noted."""
        columns = "id = key::bigint, payload = value_text"
        return super().verify(table=self.name, mode="append", record_columns=columns, **more)


class SparkJob(ChaosJob):
    back_deadline_s = 300.0
    #: Files that come in since the last batch was done, at most: as while a driver starts again.
    files_ahead = 40

    def __init__(self, sides: Sides, folder: Path, nursery: Nursery, seed: int) -> None:
        super().__init__(sides, folder, nursery, seed)
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
        self.finishing = True
        if self.driver.running:
            self.kill(self.driver)

    def jvm(self) -> psutil.Process:
        found = descendants(self.driver.pid, command="SparkSubmit")
        if not found:
            raise MissedError("the driver has no JVM")
        return found[0]

    def _launch(self, folder: Path, **config: Any) -> DriverProcess:
        journal, orders = str(folder / "journal"), str(folder / "orders")
        started = DriverConfig(journal=journal, orders=orders, checkpoint=str(self.checkpoint), spark=True, **config)
        return self.nursery.start(started, folder)

    def _batches_done(self) -> int:
        """Spark's commit log has a file for each batch; it forgets old ones."""
        return max((int(file.name) for file in (self.checkpoint / "commits").glob("[0-9]*")), default=-1) + 1


#: Of each of two workers: room for the executors of two drivers, since a stopped one keeps its own.
_CORES = 2
#: Orders go on from file to file within a round of files.
_EVENTS_PER_ROUND, _FILES_PER_ROUND = 2_400, 40
_FILES_PER_BATCH = 4


class OrdersJob(SparkJob):
    """The orders example on a Spark cluster of its own, as a user would start it."""

    name = "orders"
    topics: ClassVar = {"orders": 4}

    def __init__(self, sides: Sides, folder: Path, nursery: Nursery, seed: int) -> None:
        super().__init__(sides, folder, nursery, seed)
        self._cluster = SparkCluster(folder, python_path=ROOT, cores=_CORES).__enter__()

    def launch(self, folder: Path) -> DriverProcess:
        """Start the example; the last time, until it has written what is there."""
        command = {
            "events": self.input,
            "checkpoint": self.checkpoint,
            "kafka": self.sides.proxied_kafka,
            "database": self.sides.proxied_database,
            "master": self._cluster.master,
            "max-files-per-trigger": _FILES_PER_BATCH,
        }
        words = [f"--{name}={value}" for name, value in command.items()]
        return self._launch(folder, example=(*words, *(["--available-now"] if self.finishing else [])))

    def compare(self) -> dict[str, MultisetDifference]:
        """What the example's own comparison compares: each event in the topic, each order's last state in the table."""
        broker, database = self.sides.broker.bootstrap, self.sides.database
        compared = _example("orders_compare").compare(
            events=self.input, kafka=broker, topic=self.name, database=database, table=self.name
        )
        return {"Kafka": compared.topic, "PostgreSQL": compared.table}

    def executors(self) -> list[psutil.Process]:
        """Executors of all drivers, the oldest first."""
        return self._below("CoarseGrainedExecutorBackend")

    def python_workers(self) -> list[psutil.Process]:
        """Each executor has a daemon, which forks them."""
        return self._below("pyspark.daemon", parent="pyspark.daemon")

    def write_round(self, folder: Path, number: int) -> None:
        _example("orders_events").write_events(
            folder, events=_EVENTS_PER_ROUND, seed=self.seed * 1_000 + number, files=_FILES_PER_ROUND
        )

    def close(self) -> None:
        super().close()
        self._cluster.close()

    def _below(self, command: str, *, parent: str = "") -> list[psutil.Process]:
        pids = self._cluster.worker_pids
        found = [found for pid in pids for found in descendants(pid, command=command, parent=parent)]
        return sorted(found, key=lambda process: (process.create_time(), process.pid))


def _example(name: str) -> Any:
    """A module of the examples, which are programs and no package."""
    examples = str(ROOT / "examples")
    if examples not in sys.path:
        sys.path.insert(0, examples)
    return importlib.import_module(name)
