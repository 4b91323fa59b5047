"""A Spark cluster of its own on this machine: a master and workers, whose executors are processes."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import TracebackType

import psutil
import pyspark

from spark_2pc_sink.testing import free_port, wait_until
from spark_2pc_sink.testing.processes import ServerProcess
from spark_2pc_sink.testing.spark import quick_java_options, spark_environment
from tests.chaos.processes import descendants
from tests.harness import ROOT

WORKERS = 2
#: Room for the executors of two drivers: a stopped one keeps its own.
_WORKER = ("--cores", "2", "--memory", "1g")
_START_DEADLINE_S = 180.0
_STOP_DEADLINE_S = 20.0


class SparkCluster:
    """The cluster; a context manager.

    Args:
        folder: for logs and the workers' files.
        workers: that are there from the beginning.
        bare: executors find no module of this project by themselves.
    """

    def __init__(self, folder: Path, *, workers: int = WORKERS, bare: bool = False) -> None:
        self._folder = folder
        self._workers = workers
        self._bare = bare
        self._port = free_port()
        self._processes: list[ServerProcess] = []

    @property
    def master(self) -> str:
        """Its URL, as ``spark.master`` takes it."""
        return f"spark://127.0.0.1:{self._port}"

    def __enter__(self) -> SparkCluster:
        master = ("org.apache.spark.deploy.master.Master", "--port", str(self._port))
        self._folder.mkdir(exist_ok=True)
        self._start("master", *master, bare=self._bare)
        try:
            for _ in range(self._workers):
                self.add_worker(bare=self._bare)
            wait_until(self._complete, deadline_s=_START_DEADLINE_S, what="the workers of the Spark cluster")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for executor in self.executors():
            executor.kill()
        for process in reversed(self._processes):
            process.end(signal.SIGTERM, deadline_s=_STOP_DEADLINE_S)

    def add_worker(self, *, bare: bool) -> None:
        """Start one more worker.

        Args:
            bare: its executors find no module of this project by themselves.
        """
        name = f"worker-{len(self._processes) - 1}"
        program = ("org.apache.spark.deploy.worker.Worker", *_WORKER)
        self._start(name, *program, "--work-dir", str(self._folder / name), self.master, bare=bare)

    def executors(self) -> list[psutil.Process]:
        """Executors of all drivers, the oldest first."""
        return self._below("CoarseGrainedExecutorBackend")

    def python_workers(self) -> list[psutil.Process]:
        """The Python processes that run tasks; each executor has a daemon, which forks them."""
        return self._below("pyspark.daemon", parent="pyspark.daemon")

    def _below(self, command: str, *, parent: str = "") -> list[psutil.Process]:
        workers = self._processes[1:]
        found = [found for worker in workers for found in descendants(worker.pid, command=command, parent=parent)]
        return sorted(found, key=lambda process: (process.create_time(), process.pid))

    def _start(self, name: str, program: str, *arguments: str, bare: bool) -> None:
        spark_class = Path(pyspark.__file__).parent / "bin" / "spark-class"
        common = ["--host", "127.0.0.1", "--webui-port", "0"]
        daemon = {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": quick_java_options()}
        environment = {**os.environ, **spark_environment(self._folder, python_path=ROOT), **daemon}
        if bare:
            del environment["PYTHONPATH"]
        self._processes.append(
            ServerProcess(
                [str(spark_class), program, *common, *arguments],
                log=self._folder / f"{name}.log",
                environment=environment,
            )
        )

    def _complete(self) -> bool:
        return self._processes[0].log.read_text(errors="replace").count("Registering worker") >= self._workers
