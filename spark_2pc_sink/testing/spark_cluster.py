"""A standalone Spark cluster on this machine: a master and workers, with executors as separate processes."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from spark_2pc_sink.testing.processes import Lifetime, ServerProcess, children, free_port, kill_all, wait_until
from spark_2pc_sink.testing.spark import quick_java_options, spark_environment

_START_DEADLINE_S = 180.0
_STOP_DEADLINE_S = 20.0


class SparkCluster(Lifetime):
    """The cluster. Executors live as long as their session.

    ``cores`` and ``memory`` (in Spark's notation) are those of each worker, for the executors of all sessions.
    Executors can import modules from ``python_path``; with None, from their Python only.
    """

    def __init__(
        self, folder: Path, *, python_path: Path | None = None, workers: int = 2, cores: int = 1, memory: str = "1g"
    ) -> None:
        self._folder = folder
        self._python_path = python_path
        self._workers = workers
        self._room = ("--cores", str(cores), "--memory", memory)
        self._port = free_port()
        #: Its URL, for ``spark.master``.
        self.master: str = f"spark://127.0.0.1:{self._port}"
        self._processes: list[ServerProcess] = []

    @property
    def worker_pids(self) -> list[int]:
        """The workers' processes; executors are their children."""
        return [worker.pid for worker in self._processes[1:]]

    def start(self) -> None:
        """Start the master and the workers, and wait until all have joined."""
        self._folder.mkdir(exist_ok=True)
        master = ("org.apache.spark.deploy.master.Master", "--port", str(self._port))
        self._start("master", *master, python_path=self._python_path)
        for _ in range(self._workers):
            self.add_worker(python_path=self._python_path)
        log, what = self._processes[0].log, f"{self._workers} workers of the Spark cluster"
        wait_until(
            lambda: log.read_text(errors="replace").count("Registering worker") >= self._workers,
            deadline_s=_START_DEADLINE_S,
            what=what,
        )

    def close(self) -> None:
        """End all processes, also executors."""
        # Executors of a killed driver, or paused ones, are not ended by any other process.
        kill_all([executor for pid in self.worker_pids for executor in children(pid)])
        for process in reversed(self._processes):
            process.end(signal.SIGTERM, deadline_s=_STOP_DEADLINE_S)

    def add_worker(self, *, python_path: Path | None) -> None:
        """Start an additional worker, without waiting for it; ``python_path`` as for the cluster."""
        name = f"worker-{len(self.worker_pids)}"
        program = ("org.apache.spark.deploy.worker.Worker", *self._room)
        self._start(name, *program, "--work-dir", str(self._folder / name), self.master, python_path=python_path)

    def _start(self, name: str, program: str, *arguments: str, python_path: Path | None) -> None:
        import pyspark  # noqa: PLC0415 - half a second that only users of Spark should pay

        spark_class = Path(pyspark.__file__).parent / "bin" / "spark-class"
        common = ["--host", "127.0.0.1", "--webui-port", "0"]
        daemon = {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": quick_java_options()}
        environment = {**os.environ, **spark_environment(self._folder, python_path=python_path), **daemon}
        if python_path is None:
            del environment["PYTHONPATH"]
        self._processes.append(
            ServerProcess(
                [str(spark_class), program, *common, *arguments],
                log=self._folder / f"{name}.log",
                environment=environment,
            )
        )
