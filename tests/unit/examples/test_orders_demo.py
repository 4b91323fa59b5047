"""The demo kills its job where it is told to, and leaves no process and no file behind."""

from __future__ import annotations

import subprocess

import pytest

import orders_demo
from orders_demo import kill_session, session_ended
from spark_2pc_sink.testing import wait_until


def start_session() -> subprocess.Popen[bytes]:
    """A process in a session of its own, with a child in another process group, as Spark's Python workers are."""
    job = subprocess.Popen(
        ["bash", "-c", "set -m; sleep 60 & echo; wait"], stdout=subprocess.PIPE, start_new_session=True
    )
    assert job.stdout is not None
    job.stdout.readline()
    return job


def test_every_process_of_a_session_is_killed_whatever_its_group() -> None:
    with start_session() as job:
        assert len(kill_session(job.pid)) == 2
        wait_until(lambda: not kill_session(job.pid), deadline_s=10, what="the end of both")


def test_a_job_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orders_demo, "JOB_DEADLINE_S", 0.05)
    with start_session() as job, pytest.raises(SystemExit, match="did not end within"), session_ended(job.pid):
        job.wait(timeout=10)
