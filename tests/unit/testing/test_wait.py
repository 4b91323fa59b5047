"""Waiting with a deadline."""

from __future__ import annotations

import pytest

from spark_2pc_sink.testing import DeadlineError, wait_until


def test_returns_what_the_condition_returned() -> None:
    answers = iter([0, "", "there"])
    assert wait_until(lambda: next(answers), deadline_s=5, what="an answer", interval_s=0) == "there"


def test_names_what_never_came() -> None:
    with pytest.raises(DeadlineError, match=r"waited 0 s for rain, in vain; the last result was \[\]"):
        wait_until(list, deadline_s=0, what="rain")
