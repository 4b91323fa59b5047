"""A Spark Connect server as a process of its own, with the Python that writes its batches."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyspark

from spark_2pc_sink.testing import free_port, wait_until
from spark_2pc_sink.testing.processes import Lifetime, ServerProcess, children, kill_all
from spark_2pc_sink.testing.spark import quick_java_options, spark_environment, spark_settings
from tests.harness import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping

_MAIN: Final = "org.apache.spark.sql.connect.service.SparkConnectServer"
_START_DEADLINE_S: Final = 120.0
_STOP_DEADLINE_S: Final = 20.0


class ConnectServer(Lifetime):
    """The server. It can be killed, and started again on its port."""

    def __init__(self, folder: Path, *, settings: Mapping[str, str] | None = None) -> None:
        self._folder = folder
        self._settings = dict(settings or {})
        self._port = free_port()
        self._process: ServerProcess | None = None

    @property
    def remote(self) -> str:
        return f"sc://127.0.0.1:{self._port}"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.running

    @property
    def log(self) -> Path:
        """What the server says, and the Python processes beside it."""
        return self._folder / "connect-server.log"

    def start(self) -> None:
        settings = spark_settings(self._folder) | {
            "spark.master": "local[2]",
            "spark.connect.grpc.binding.port": str(self._port),
            "spark.driver.extraJavaOptions": quick_java_options(),
            # The Python beside the server imports pandas first, which takes long on a busy machine.
            "spark.python.authenticate.socketTimeout": "120s",
            **self._settings,
        }
        submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
        options = [word for name, value in settings.items() if value for word in ("--conf", f"{name}={value}")]
        before = self._started()
        self._process = ServerProcess(
            [str(submit), "--class", _MAIN, *options, "spark-internal"],
            log=self.log,
            environment={**os.environ, **spark_environment(self._folder, python_path=ROOT)},
        )
        wait_until(lambda: self._started() > before, deadline_s=_START_DEADLINE_S, what="the Spark Connect server")

    def kill(self) -> None:
        """End it, and the Python processes beside it, in the same moment, as when a machine is lost."""
        if self._process is not None:
            family = list(_family(self._process.pid))
            kill_all(family)
            self._process.end(signal.SIGKILL, deadline_s=_STOP_DEADLINE_S)
            self._process = None

    close = kill

    def _started(self) -> int:
        return self.log.read_text(errors="replace").count("Spark Connect server started at") if self.log.exists() else 0


def _family(pid: int) -> list[int]:
    return [pid, *(below for child in children(pid) for below in _family(child))]
