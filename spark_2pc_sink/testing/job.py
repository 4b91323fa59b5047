"""A user's job as a separate process: run to its end, or killed when its sink reaches a step of the recipe."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spark_2pc_sink.testing.errors import DeadlineError, JobError
from spark_2pc_sink.testing.processes import wait_for_group

if TYPE_CHECKING:
    from spark_2pc_sink.recipe.steps import Step

#: A job with Spark takes some 10 s on an idle machine.
JOB_DEADLINE_S: Final = 180.0
#: Characters from the end of a job's output that an error shows.
_TAIL_CHARACTERS: Final = 4_000


def run_job(
    script: str | os.PathLike[str],
    *arguments: str | os.PathLike[str],
    environment: Mapping[str, str] | None = None,
    deadline_s: float = JOB_DEADLINE_S,
) -> str:
    """Run a job to its end, in the current directory and with this Python.

    Args:
        script: the file with the job's program.
        arguments: its command line.
        environment: additional variables for the process.
        deadline_s: maximum seconds; the job is then killed.

    Returns:
        Its output.

    Raises:
        JobError: it failed; the text contains the end of its output.
        DeadlineError: it did not finish in time.
    """
    status, output = _run([sys.executable, *map(str, (script, *arguments))], environment, deadline_s)
    if status:
        raise JobError(f"{script} ended with status {status}. Its output ends:\n{output[-_TAIL_CHARACTERS:]}")
    return output


class CrashAt:
    """Runs a job that is killed at a step; the fixture ``crash_at`` is an instance.

    Args:
        environment: additional variables for the process.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self.environment: dict[str, str] = dict(environment or {})

    def __call__(
        self,
        step: Step | str,
        script: str | os.PathLike[str],
        *arguments: str | os.PathLike[str],
        times: int = 1,
        deadline_s: float = JOB_DEADLINE_S,
    ) -> None:
        """Run a job until its sink has completed ``step``, then end it with SIGKILL, including Spark's Java process.

        Args:
            step: step of the recipe, or its name: docs/how-it-works.md describes the steps.
            script: the file with the job's program.
            arguments: its command line.
            times: kill when the step is reached for this time: 2 for the second batch.
            deadline_s: maximum seconds.

        Raises:
            JobError: it ended by itself before reaching the step that many times.
            DeadlineError: it did not reach the step in time.
        """
        name = step if isinstance(step, str) else step.name
        killing = ["-m", "spark_2pc_sink.testing.killed_job", name, str(times)]
        command = [sys.executable, *killing, *map(str, (script, *arguments))]
        status, output = _run(command, self.environment, deadline_s)
        if status != -signal.SIGKILL:
            raise JobError(
                f"{script} ended with status {status} before its sink had reached {name} {times} times. Its "
                f"output ends:\n{output[-_TAIL_CHARACTERS:]}"
            )


def _run(command: list[str], environment: Mapping[str, str] | None, deadline_s: float) -> tuple[int, str]:
    # A file: Spark's Java process may hold a pipe open after the job has ended.
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # A separate process group, which is killed as a whole, as when a machine is lost.
            start_new_session=True,
        )
        try:
            status = process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            output.seek(0)
            tail = output.read().decode(errors="replace")[-_TAIL_CHARACTERS:]
            message = f"{Path(command[-1]).name} did not end within {deadline_s} s. Its output ends:\n{tail}"
            raise DeadlineError(message) from None
        finally:
            # Leftover processes; there are none if the job was killed with its group.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            # Spark's Java process holds files and ports until it has ended.
            wait_for_group(process.pid)
        output.seek(0)
        return status, output.read().decode(errors="replace")
