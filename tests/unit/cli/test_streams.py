"""The standard streams of a command as shells, schedulers and pipes leave them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from spark_2pc_sink.cli import __main__ as program
from spark_2pc_sink.cli import exits

DDL = ["state", "ddl"]


def run(command: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """What a shell's command line comes to; ``"$@"`` in it is ``spark-2pc`` with words."""
    words = (sys.executable, "-m", str(program.__package__), *words)
    return subprocess.run(
        ["bash", "-c", command, "bash", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, **environment},
    )


@pytest.mark.parametrize("unbuffered", ["", pytest.param("1", marks=pytest.mark.slow)])
def test_a_reader_that_has_gone_is_no_failure(unbuffered: str) -> None:
    """As ``head`` does, and a pager that is left."""
    done = run('{ sleep 0.2; "$@"; echo "exit $?" >&2; } | true', *DDL, PYTHONUNBUFFERED=unbuffered)
    assert done.stderr == "exit 0\n"


def test_closed_streams_change_no_exit_code() -> None:
    done = run('"$@" >&- 2>&- <&-', *DDL)
    assert (done.returncode, done.stderr) == (exits.EXIT_SETTLED, "")


@pytest.mark.slow
def test_output_that_cannot_be_written_is_said() -> None:
    done = run('"$@" > /dev/full', *DDL)
    assert done.returncode == exits.EXIT_FAILED
    assert done.stderr == "spark-2pc: the result could not be printed: [Errno 28] No space left on device\n"
