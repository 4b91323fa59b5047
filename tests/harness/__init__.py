"""What tests share beside ``spark_2pc_sink.testing``: who provides the servers, and drivers as processes."""

import os
import subprocess
from pathlib import Path
from typing import Any, Final

#: The checkout: programs are started there, and workers of Spark import test modules from there.
ROOT: Final = Path(__file__).resolve().parents[2]


def run_program(*command: str, code: int = 0, deadline_s: float = 300, **how: Any) -> subprocess.CompletedProcess[str]:
    """Run a program until it ends with this exit code.

    Args:
        how: of `subprocess.run`; by default the program can import the package and the tests.
    """
    given = {"env": {**os.environ, "PYTHONPATH": str(ROOT)}, **how}
    done = subprocess.run(command, capture_output=True, text=True, timeout=deadline_s, check=False, **given)
    assert done.returncode == code, f"{command}: exit code {done.returncode}\n{done.stdout}\n{done.stderr[-4_000:]}"
    return done
