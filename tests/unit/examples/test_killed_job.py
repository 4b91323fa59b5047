"""The wrapper of the demo kills at the step it is told, the n-th time, and never else."""

from __future__ import annotations

import os
import signal

import pytest

from _killed_job import KillAt
from spark_2pc_sink.recipe.steps import Step


def test_it_kills_its_process_group_at_the_nth_time_only(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "killpg", lambda group, number: killed.append((group, number)))
    kill = KillAt(Step.DECIDE, 2)
    for step in (*Step, Step.PRODUCE):
        kill(step)
    assert killed == []
    kill(Step.DECIDE)
    assert killed == [(os.getpgrp(), signal.SIGKILL)]
