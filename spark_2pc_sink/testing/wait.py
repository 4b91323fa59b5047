"""Waiting for a condition, with a deadline and a name."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from spark_2pc_sink.testing.errors import DeadlineError

T = TypeVar("T")

#: Short compared to any wait, long compared to the cost of checking.
POLL_INTERVAL_S = 0.02
#: Long enough for what takes moments, also on a busy machine.
DEADLINE_S = 60.0


def wait_until(
    condition: Callable[[], T], *, deadline_s: float = DEADLINE_S, what: str, interval_s: float = POLL_INTERVAL_S
) -> T:
    """Call ``condition`` until it returns a true value, and return that.

    The condition is called at least once, and once more after the deadline, so that a machine that was under load for
    the whole time still gets an answer.

    Args:
        condition: called without arguments; an exception it raises ends the wait.
        deadline_s: maximum seconds to wait.
        what: description of the condition, for the error's sentence.
        interval_s: seconds between two calls.

    Raises:
        DeadlineError: it was never true.
    """
    found = poll_until(condition, deadline_s=deadline_s, interval_s=interval_s)
    if found:
        return found
    raise DeadlineError(f"waited {deadline_s} s for {what}, in vain; the last result was {found!r}")


def poll_until(condition: Callable[[], T], *, deadline_s: float, interval_s: float = POLL_INTERVAL_S) -> T:
    """As `wait_until`, for callers with their own error: the last result, true unless time ran out."""
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(interval_s)
    return condition()
