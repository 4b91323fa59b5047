"""The orders example on a Spark cluster, as a user would start it, with files that come in while it runs."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import psutil

from spark_2pc_sink.testing import MultisetDifference
from spark_2pc_sink.testing.spark_cluster import SparkCluster
from tests.chaos.jobs import Sides, SparkJob, descendants
from tests.harness import ROOT
from tests.harness.driver_config import DriverConfig
from tests.harness.driver_process import DriverProcess, Nursery

#: Of each of two workers: room for the executors of two drivers, since a stopped one keeps its own.
_CORES = 2


class ChaosCluster(SparkCluster):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder, python_path=ROOT, cores=_CORES)

    def executors(self) -> list[psutil.Process]:
        """Executors of all drivers, the oldest first."""
        return self._below("CoarseGrainedExecutorBackend")

    def python_workers(self) -> list[psutil.Process]:
        """The Python processes that run tasks; each executor has a daemon, which forks them."""
        return self._below("pyspark.daemon", parent="pyspark.daemon")

    def _below(self, command: str, *, parent: str = "") -> list[psutil.Process]:
        found = [found for pid in self.worker_pids for found in descendants(pid, command=command, parent=parent)]
        return sorted(found, key=lambda process: (process.create_time(), process.pid))


NAME = "orders"
#: The topic, and how many partitions it has.
TOPICS = {NAME: 4}
#: Orders go on from file to file within a round of files.
_EVENTS_PER_ROUND, _FILES_PER_ROUND = 2_400, 40
_FILES_PER_BATCH = 4


class OrdersJob(SparkJob):
    def __init__(self, sides: Sides, folder: Path, nursery: Nursery, seed: int, cluster: ChaosCluster) -> None:
        super().__init__(NAME, sides, folder, nursery, seed)
        self._cluster = cluster

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
        config = DriverConfig(
            journal=str(folder / "journal"),
            input="",
            checkpoint=str(self.checkpoint),
            query_id="",
            batches=0,
            sink={},
            spark=True,
            example=(
                *(f"--{name}={value}" for name, value in command.items()),
                *(["--available-now"] if self.finishing else []),
            ),
            orders=str(folder / "orders"),
        )
        return self.nursery.start(config, folder)

    def compare(self) -> dict[str, MultisetDifference]:
        """What the example's own comparison compares: each event in the topic, each order's last state in the table."""
        compared = _example("orders_compare").compare(
            events=self.input, kafka=self.sides.kafka, topic=NAME, database=self.sides.database, table=NAME
        )
        return {"Kafka": compared.topic, "PostgreSQL": compared.table}

    def python_workers(self) -> list[psutil.Process]:
        """Below the workers of the cluster."""
        return self._cluster.python_workers()

    def write_round(self, folder: Path, number: int) -> None:
        _example("orders_events").write_events(
            folder, events=_EVENTS_PER_ROUND, seed=self.seed * 1_000 + number, files=_FILES_PER_ROUND
        )


def _example(name: str) -> Any:
    """A module of the examples, which are programs and no package."""
    examples = str(ROOT / "examples")
    if examples not in sys.path:
        sys.path.insert(0, examples)
    return importlib.import_module(name)
