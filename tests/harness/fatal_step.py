"""A step of a batch at which this process dies, as `kill -9` would have it, or something else happens."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, ClassVar

from spark_2pc_sink.recipe.steps import Step
from spark_2pc_sink.sink.driver.step_observer import StepTimes

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_2pc_sink.clock import Clock


def die_at(step: Step, batch: int, *, also: Callable[[], None] = lambda: None) -> None:
    def die() -> None:
        also()
        os.kill(os.getpid(), signal.SIGKILL)

    act_at(step, batch, die)


def act_at(step: Step, batch: int, act: Callable[[], None]) -> None:
    """Do something at a step of one of the next batches that this process writes."""
    _FatalSteps.step, _FatalSteps.batch, _FatalSteps.act = step, batch, staticmethod(act)
    sys.modules["spark_2pc_sink.sink.query_run"].__dict__["StepTimes"] = _FatalSteps


class _FatalSteps(StepTimes):
    """Takes the place of the sink's observer."""

    step: ClassVar[Step]
    batch: ClassVar[int]
    act: ClassVar[Callable[[], None]]
    begun: ClassVar[int] = 0

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        # It has begun once by itself, before any batch.
        type(self).begun = 0

    def begin(self, **figures: float) -> None:
        type(self).begun += 1
        super().begin(**figures)

    def __call__(self, step: Step) -> None:
        super().__call__(step)
        if step is self.step and self.begun == self.batch:
            type(self).act()
