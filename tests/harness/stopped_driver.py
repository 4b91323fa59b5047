"""A driver that stops right after a step, in this process, as if it had been killed there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest

from spark_2pc_sink.recipe.steps import Step
from spark_2pc_sink.sink.driver import step_observer

_RESTORE: Final = "spark_2pc_sink.sink.driver.batch_driver.BatchDriver._restore"


class StoppedError(Exception):
    """The driver stops here."""


@contextmanager
def stopped_at(at: Step, *, times: int = 1) -> Iterator[None]:
    """Let the driver end, without another attempt, when it comes to a step for the nth time."""
    left = times

    def stop(step: Step) -> None:
        nonlocal left
        left -= step is at
        if step is at and left == 0:
            raise StoppedError

    def give_up(_: object, error: Exception, *_more: object) -> None:
        raise error

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(step_observer, "reached", stop)
        patched.setattr(_RESTORE, give_up)
        with pytest.raises(Exception, match="StoppedError"):
            yield
