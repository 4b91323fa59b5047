"""Fixtures of the tests that watch sinks from outside: jobs on real servers, and what watches them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_2pc_sink.testing import wait_until
from tests.harness import ROOT
from tests.harness.driver_job import Job
from tests.integration.faults.conftest import make_job, nursery

__all__ = ["make_job", "nursery"]

#: For a process that starts, also on a machine that has much to do.
START_DEADLINE_S = 60

#: The type of the fixture serve: a command with its arguments, and the address that it prints.
Serve = Callable[..., str]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Starts ``spark-2pc COMMAND`` as a process, and returns the address on which it listens; it ends with the test."""
    running: list[subprocess.Popen[bytes]] = []

    def start(command: str, job: Job, *options: str) -> str:
        out = tmp_path / f"{command}-{len(running)}.out"
        sides = ("--bootstrap-server", job.broker.bootstrap, "--database", job.database)
        words = [sys.executable, "-m", "spark_2pc_sink.cli", command, *sides, "--listen", "127.0.0.1:0", *options]
        with out.open("wb") as file:
            running.append(subprocess.Popen(words, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT))
        wait_until(lambda: b"listening on" in out.read_bytes(), what=f"{command} to listen")
        (line,) = [line for line in out.read_text().splitlines() if line.startswith("listening on ")]
        return line.removeprefix("listening on ").removeprefix("http://")

    yield start
    for process in running:
        process.terminate()
        assert process.wait(START_DEADLINE_S) == 0, "it ends at SIGTERM with exit code 0"
