"""A job as a process, multisets and their differences, and the pytest plugin in a run of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, strategies as st

from spark_2pc_sink import VerifyReport
from spark_2pc_sink.testing import (
    CrashAt,
    DeadlineError,
    JobError,
    Step,
    assert_same_multiset,
    assert_same_on_both_sides,
    killed_job,
    multiset_difference,
    pytest_plugin,
    run_job,
    wait_until,
)
from spark_2pc_sink.verification import api

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
    with pytest.raises(DeadlineError, match=r"job\.py did not end within") as raised:
        run_job(path, "argument", deadline_s=1.0)
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


SAME = VerifyReport(transactional_id="orders", verdict="same")
SIDES: dict[str, Any] = {"transactional_id": "orders", "kafka": {"bootstrap.servers": "h:1"}, "database": "d"}


@given(st.lists(st.integers(0, 5)), st.lists(st.integers(0, 5)))
def test_every_element_is_accounted_for(actual: list[int], expected: list[int]) -> None:
    difference = multiset_difference(actual, expected)
    surplus = difference.duplicated.total() + difference.foreign.total()
    assert difference.actual - surplus == difference.expected - difference.missing.total()
    assert bool(difference) == (sorted(actual) != sorted(expected))


def test_missing_twice_and_foreign_are_told_apart() -> None:
    with pytest.raises(AssertionError) as raised:
        assert_same_multiset(["a", "a", "z"], ["a", "b"], what="records in t")
    assert str(raised.value).splitlines() == [
        "records in t: 3 found, 2 expected",
        "missing: 1 of 1 different",
        "  1 x 'b'",
        "twice: 1 of 1 different",
        "  1 x 'a'",
        "foreign: 1 of 1 different",
        "  1 x 'z'",
    ]


def test_equal_sides_pass_and_the_report_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    verify = mock.Mock(return_value=SAME)
    monkeypatch.setattr(api, "verify", verify)
    assert assert_same_on_both_sides(**SIDES, table="t", since=3) is SAME
    assert verify.call_args == mock.call(**SIDES, table="t", since=3)


@pytest.mark.parametrize(
    "report",
    [
        replace(SAME, verdict="different", counts={"gap": 1}),
        replace(SAME, verdict="inconclusive"),
        replace(SAME, known=False),
    ],
    ids=["different", "not checked", "not known"],
)
def test_anything_else_fails_with_the_report(monkeypatch: pytest.MonkeyPatch, report: VerifyReport) -> None:
    monkeypatch.setattr(api, "verify", mock.Mock(return_value=report))
    with pytest.raises(AssertionError) as failed:
        assert_same_on_both_sides(**SIDES)
    assert str(failed.value) == str(report)


ROOT = Path(__file__).parents[3]
PLUGIN = pytest_plugin.__name__


def run_pytest(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A pytest with this plugin and no other, where every warning is an error."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-W", "error", "-q", "-p", PLUGIN, "-p", "no:cacheprovider", *words],
        cwd=folder,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_run_that_uses_none_of_it_pays_nothing(tmp_path: Path) -> None:
    """Nothing heavy is imported, nothing of the sink, and no server is started."""
    (tmp_path / "test_own.py").write_text(
        "import sys\n"
        "def test_own():\n"
        "    heavy = {'confluent_kafka', 'kafka', 'psycopg2', 'pyarrow', 'pyspark', 'sqlalchemy'}\n"
        "    ours = {name for name in sys.modules if name.startswith('spark_2pc_sink.')}\n"
        "    assert not heavy & set(sys.modules)\n"
        "    assert ours <= {'spark_2pc_sink.extras', 'spark_2pc_sink.testing', '" + PLUGIN + "'}\n"
    )
    done = run_pytest(tmp_path)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_what_our_libraries_find_deprecated_does_not_reach_the_run(tmp_path: Path) -> None:
    """Neither when tests are collected nor when they run. The user's own deprecations do."""
    (tmp_path / "conftest.py").write_text("from spark_2pc_sink.wire import messages\n")
    (tmp_path / "test_own.py").write_text(
        "import warnings\n"
        "import pytest\n"
        "from spark_2pc_sink import DualWriteSink, verify\n"
        "def test_late():\n"
        "    import kafka.net.manager\n"
        "    warnings.warn_explicit('old', DeprecationWarning, 'a.py', 1, module='pyspark.sql.types')\n"
        "def test_own():\n"
        "    with pytest.raises(DeprecationWarning):\n"
        "        warnings.warn('old', DeprecationWarning)\n"
    )
    done = run_pytest(tmp_path)
    assert done.returncode == 0, done.stdout
