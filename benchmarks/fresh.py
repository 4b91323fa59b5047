"""Calling a function in a Python process of its own: another Spark session, with nothing warm.

Arguments and answer are JSON. What the process prints goes where ours goes.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.workbench import ROOT

#: The longest that one call may take, s: the whole of a benchmark in full on a slow machine.
CALL_DEADLINE_S = 3 * 3600.0


def call(module: str, function: str, arguments: dict[str, Any], *, root: Path = ROOT) -> Any:
    """Call ``module.function(**arguments)`` in a new process and return what it returned.

    Args:
        module: of `benchmarks`.
        function: of the module.
        arguments: by name.
        root: where the process finds the packages.

    Raises:
        SystemExit: the process failed; it has said why.
    """
    with tempfile.TemporaryDirectory(prefix="spark-2pc-bench-") as directory:
        answer = Path(directory) / "answer.json"
        command = _command(module, function, arguments, answer)
        # Also as the working directory, which Python searches before PYTHONPATH.
        done = subprocess.run(command, check=False, timeout=CALL_DEADLINE_S, cwd=root, env=_environment(root))
        if done.returncode != 0 or not answer.exists():
            message = f"{module}.{function} failed with exit status {done.returncode}"
            raise SystemExit(message)
        return json.loads(answer.read_text())


def begin(module: str, function: str, arguments: dict[str, Any]) -> subprocess.Popen[bytes]:
    """Begin a call whose process the caller will end: nobody waits for an answer."""
    command = _command(module, function, arguments, Path(os.devnull))
    return subprocess.Popen(command, cwd=ROOT, env=_environment(ROOT))


def _command(module: str, function: str, arguments: dict[str, Any], answer: Path) -> list[str]:
    return [sys.executable, "-m", "benchmarks.fresh", module, function, json.dumps(arguments), str(answer)]


def _environment(root: Path) -> dict[str, str]:
    path = os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path}


def main() -> None:
    """The other end of `call`."""
    module, function, arguments, answer = sys.argv[1:]
    found = getattr(importlib.import_module(module), function)(**json.loads(arguments))
    Path(answer).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
