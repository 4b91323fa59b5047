"""The process of a job that is killed: ``python -m spark_2pc_sink.testing.killed_job STEP TIMES SCRIPT ARGUMENT…``.

It runs the script as Python would, and ends it with SIGKILL when the sink has reached the step for the TIMES-th time.
Spark's Java process and Python workers are killed with it, as when a machine is lost; the caller is not.
"""

from __future__ import annotations

import runpy
import sys
from itertools import count
from pathlib import Path

from spark_2pc_sink.recipe.steps import Step
from spark_2pc_sink.sink.driver import step_observer
from spark_2pc_sink.testing.processes import kill_with_children


def kill_at(last: Step, times: int) -> None:
    """Kill this process when its sink reaches a step for this time."""
    numbers = count(1)

    def reached(step: Step) -> None:
        if step is last and next(numbers) == times:
            kill_with_children()

    step_observer.reached = reached


if __name__ == "__main__":
    kill_at(Step[sys.argv[1]], int(sys.argv[2]))
    script: str = sys.argv[3]
    # As Python itself does for a script: its arguments, and its directory first on the import path.
    sys.argv = sys.argv[3:]
    sys.path[0] = str(Path(script).resolve().parent)
    runpy.run_path(script, run_name="__main__")
