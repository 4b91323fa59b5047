"""The Spark cluster that faults hit: its executors and their Python workers can be found."""

from __future__ import annotations

from pathlib import Path

import psutil

from spark_2pc_sink.testing.spark_cluster import SparkCluster
from tests.chaos.processes import descendants
from tests.harness import ROOT

#: Of each of two workers: room for the executors of two drivers, since a stopped one keeps its own.
_CORES = 2


class ChaosCluster(SparkCluster):
    """The cluster; a context manager.

    Args:
        folder: for logs and the workers' files.
    """

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
