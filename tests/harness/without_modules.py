"""A Python process that cannot import some modules, as where a package is not installed.

``python -m tests.harness.without_modules MODULE,MODULE PROGRAM [ARGUMENT …]`` runs a program by its path, or one line
of Python where it ends in no ``.py``.
"""

from __future__ import annotations

import runpy
import subprocess
import sys
from importlib.abc import MetaPathFinder

from tests.harness import ROOT


class _NotInstalled(MetaPathFinder):
    def __init__(self, modules: set[str]) -> None:
        self._modules = modules

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname.partition(".")[0] in self._modules:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


def run_without(modules: set[str], program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program, or one line of Python, in a process that cannot import ``modules``."""
    command = [sys.executable, "-m", __name__, ",".join(sorted(modules)), program, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


if __name__ == "__main__":
    _, modules, program, *arguments = sys.argv
    sys.meta_path.insert(0, _NotInstalled(set(modules.split(","))))
    sys.argv = [program, *arguments]
    if program.endswith(".py"):
        runpy.run_path(program, run_name="__main__")
    else:
        exec(program, {"__name__": "__main__"})  # noqa: S102 - the test's own line
