"""Acts at a step, or while something else waits; and a driver of this process that stops."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

from spark_2pc_sink.recipe.steps import Step
from spark_2pc_sink.sink.driver import step_observer

_RESTORE: Final = "spark_2pc_sink.sink.driver.batch_driver.BatchDriver._restore"


def act_at(at: Step, nth: int, act: Callable[[], None]) -> None:
    """Do something when this process comes to a step for the nth time; a batch comes to each of its steps once."""
    left = nth

    def reached(step: Step) -> None:
        nonlocal left
        left -= step is at
        if step is at and left == 0:
            act()

    step_observer.reached = reached


class StoppedError(Exception):
    """The driver stops here."""


@contextmanager
def stopped_at(step: Step, *, times: int = 1) -> Iterator[None]:
    """Let the driver end, without another attempt, when it comes to a step for the nth time, as if it were killed."""

    def stop() -> None:
        raise StoppedError

    def give_up(_: object, error: Exception, *_more: object) -> None:
        raise error

    with pytest.MonkeyPatch.context() as patched:
        # Put back at the end; what is set in between is in `act_at`.
        patched.setattr(step_observer, "reached", step_observer.reached)
        patched.setattr(_RESTORE, give_up)
        act_at(step, times, stop)
        with pytest.raises(Exception, match="StoppedError"):
            yield


@contextmanager
def later(delay_s: float, act: Callable[..., object], *arguments: Any) -> Iterator[None]:
    """Call ``act`` in a thread of its own ``delay_s`` seconds from here; it has returned when the block is left.

    Without that wait the block's next step could meet the act half done: a connection that is being closed in the
    middle of its ``commit``, a server that is stopped while it starts. An error of the act fails the test, by pytest.
    """
    timer = threading.Timer(delay_s, act, arguments)
    timer.start()
    try:
        yield
    finally:
        timer.join()
