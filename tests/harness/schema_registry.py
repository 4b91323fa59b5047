"""A schema registry as a local process: Apicurio Registry, by its API that is Confluent's (version 7).

It keeps what it is told in memory, and forgets it when it ends.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

from spark_2pc_sink.testing.errors import CapabilityError, ServerError
from spark_2pc_sink.testing.java import find_java_home
from spark_2pc_sink.testing.ports import free_port
from spark_2pc_sink.testing.processes import Lifetime, ServerProcess
from spark_2pc_sink.testing.wait import poll_until

FOLDER = "SPARK_2PC_REGISTRY_HOME"
#: Five seconds; this is for a machine that is busy with something else.
START_DEADLINE_S = 90.0
STOP_DEADLINE_S = 10.0


class SchemaRegistryServer(Lifetime):
    """A registry on 127.0.0.1. The port stays the same over restarts."""

    def __init__(self) -> None:
        folder = Path(os.environ.get(FOLDER, ".cache/apicurio-registry-3.0.9"))
        programs = sorted(folder.glob("*-runner.jar"))
        if not programs:
            raise CapabilityError(f"no schema registry in {folder}: make schema-registry")
        self._program = programs[0]
        self._java = find_java_home() / "bin" / "java"
        self.port = free_port()
        self._folder = Path(tempfile.mkdtemp(prefix="spark-2pc-registry-"))
        self._process: ServerProcess | None = None

    @property
    def url(self) -> str:
        """Its address, as ``SchemaRegistryClient`` takes it."""
        return f"http://127.0.0.1:{self.port}/apis/ccompat/v7"

    def start(self) -> None:
        """Start it and wait until it answers."""
        options = ["-Xmx512m", "-XX:TieredStopAtLevel=1"]
        options += [f"-Dquarkus.http.port={self.port}", "-Dquarkus.http.host=127.0.0.1"]
        process = self._process = ServerProcess(
            [str(self._java), *options, "-jar", str(self._program.resolve())],
            log=self._folder / "registry.log",
            folder=self._folder,
        )

        def serves() -> bool:
            if not process.running:
                raise ServerError(f"the schema registry ended by itself. Its log ends:\n{process.log_tail()}")
            return self._serves()

        if not poll_until(serves, deadline_s=START_DEADLINE_S):
            raise ServerError(f"no schema registry within {START_DEADLINE_S} s:\n{process.log_tail()}")

    def stop(self) -> None:
        """End it; it forgets what it was told."""
        if self._process is not None:
            self._process.end(signal.SIGTERM, deadline_s=STOP_DEADLINE_S)
            self._process = None

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _serves(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/subjects", timeout=1) as answer:  # noqa: S310 - http, made above
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False
