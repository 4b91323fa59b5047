"""A job as a process: run to its end, or killed at a step; what it printed is in the error where it ended otherwise."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from spark_2pc_sink.testing import CrashAt, DeadlineError, JobError, Step, run_job
from spark_2pc_sink.testing.killed_job import KillAt

#: Stands in for a job: its sink reaches the steps that its command line names.
SCRIPT = """
import os, subprocess, sys
from spark_2pc_sink.recipe.steps import Step
from spark_2pc_sink.sink.driver.step_observer import reached
import beside
child = subprocess.Popen(["sleep", "60"])
print("child", child.pid, os.environ.get("SIDE"), __name__, flush=True)
with open("child", "w") as file:
    file.write(str(child.pid))
for name in sys.argv[1:]:
    reached(Step[name])
child.kill()
print("done", flush=True)
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "job.py").write_text(SCRIPT)
    (tmp_path / "beside.py").touch()
    monkeypatch.chdir(tmp_path)
    return "job.py"


def test_a_job_runs_to_its_end(script: str) -> None:
    """As a script, with its words, its folder, and more variables."""
    output = run_job(script, "BEGIN", environment={"SIDE": "both"})
    assert " both __main__\ndone\n" in output


def test_a_job_is_killed_at_a_step_with_its_children(script: str) -> None:
    """For the time that is asked for."""
    CrashAt()(Step.DECIDE, script, "BEGIN", "DECIDE", "DECIDE", times=2)
    child = Path("child").read_text()
    # Ended: its parent is gone, so that whoever reaps it may not have done it yet.
    assert not Path(f"/proc/{child}").exists() or Path(f"/proc/{child}/stat").read_text().split()[2] == "Z"


def test_a_job_that_does_not_reach_the_step_is_an_error(script: str) -> None:
    with pytest.raises(JobError, match="before its sink had reached DECIDE 2 times") as raised:
        CrashAt({"SIDE": "one"})("DECIDE", script, "DECIDE", times=2)
    assert "one __main__\ndone" in str(raised.value)


def test_a_job_that_fails_is_an_error_with_its_output(script: str) -> None:
    with pytest.raises(JobError, match="KeyError: 'NONSENSE'"):
        run_job(script, "NONSENSE")


def test_a_job_that_hangs_is_ended(tmp_path: Path) -> None:
    path = tmp_path / "job.py"
    path.write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(60)\n")
    with pytest.raises(DeadlineError, match="was not done within") as raised:
        run_job(path, deadline_s=1.0)
    pid = int(str(raised.value).splitlines()[-1])
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_it_kills_its_process_group_at_the_nth_time_only(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "killpg", lambda group, number: killed.append((group, number)))
    kill = KillAt(Step.DECIDE, 2)
    for step in (*Step, Step.PRODUCE):
        kill(step)
    assert killed == []
    kill(Step.DECIDE)
    assert killed == [(os.getpgrp(), signal.SIGKILL)]
