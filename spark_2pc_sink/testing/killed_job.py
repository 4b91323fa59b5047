"""The process of a job that is killed: ``python -m spark_2pc_sink.testing.killed_job STEP TIMES SCRIPT ARGUMENT…``.

It runs the script as Python would, and ends it with SIGKILL when the sink has reached the step for the TIMES-th time.
Spark's Java process and Python workers are killed with it, as when a machine is lost; the caller is not.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from spark_2pc_sink.recipe.steps import Step
from spark_2pc_sink.sink.driver import step_observer
from spark_2pc_sink.testing.processes import kill_with_children


class KillAt:
    """Replaces the sink's observer.

    Args:
        step: the step at which to kill.
        times: kill when it is reached for this time.
    """

    def __init__(self, step: Step, times: int) -> None:
        self._step = step
        self._times_left = times

    def __call__(self, step: Step) -> None:
        """The sink has reached ``step``."""
        if step is not self._step:
            return
        self._times_left -= 1
        if not self._times_left:
            kill_with_children()


if __name__ == "__main__":
    step_observer.reached = KillAt(Step[sys.argv[1]], int(sys.argv[2]))
    script: str = sys.argv[3]
    # As Python itself does for a script: its arguments, and its directory first on the import path.
    sys.argv = sys.argv[3:]
    sys.path[0] = str(Path(script).resolve().parent)
    runpy.run_path(script, run_name="__main__")
