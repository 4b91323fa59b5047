"""A job as a process: run to its end, or killed at a step; what it printed is in the error where it ended otherwise."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from spark_2pc_sink.testing import CrashAt, DeadlineError, JobError, Step, killed_job, run_job, wait_until

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
    assert ended(int(child))


def test_a_job_that_does_not_reach_the_step_is_an_error(script: str) -> None:
    with pytest.raises(JobError, match="before its sink had reached DECIDE 2 times") as raised:
        CrashAt({"SIDE": "one"})("DECIDE", script, "DECIDE", times=2)
    assert "one __main__\ndone" in str(raised.value)


def test_a_job_that_hangs_is_ended(tmp_path: Path) -> None:
    path = tmp_path / "job.py"
    path.write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(60)\n")
    with pytest.raises(DeadlineError, match="did not end within") as raised:
        run_job(path, deadline_s=1.0)
    pid = int(str(raised.value).splitlines()[-1])
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_the_caller_of_a_killed_job_goes_on(tmp_path: Path) -> None:
    """A script that shares its process group; with the job die the processes of its session, whatever their group."""
    (tmp_path / "job.py").write_text(
        "import os, subprocess\n"
        "from spark_2pc_sink.recipe.steps import Step\n"
        "from spark_2pc_sink.sink.driver.step_observer import reached\n"
        "group = subprocess.Popen(['sleep', '60'], preexec_fn=os.setpgrp)\n"
        "server = subprocess.Popen(['sleep', '60'], stdout=subprocess.DEVNULL, start_new_session=True)\n"
        "print(group.pid, server.pid, flush=True)\n"
        "for step in (*Step, Step.DECIDE):\n"
        "    reached(step)\n"
        "    print(step.name, flush=True)\n"
    )
    command = f"sleep 60 & {sys.executable} -m {killed_job.__name__} DECIDE 2 job.py; echo $?; kill $!"
    done = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=True, start_new_session=True
    )
    pids, *steps, status = done.stdout.splitlines()
    group, server = map(int, pids.split())
    assert (steps, int(status)) == ([step.name for step in Step], 128 + signal.SIGKILL)
    wait_until(lambda: ended(group), deadline_s=10, what="the end of the job's child")
    assert not ended(server)
    os.kill(server, signal.SIGKILL)


def ended(pid: int) -> bool:
    """Whether a process is gone, or only waits for its parent to read its status."""
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"
