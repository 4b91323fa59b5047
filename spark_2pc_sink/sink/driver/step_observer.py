"""The steps that a batch reaches on the driver: who is told, and how long each took."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jdbc_state.sink_log import sink_log

if TYPE_CHECKING:
    from spark_2pc_sink.clock import Clock
    from spark_2pc_sink.recipe.steps import Step

_log = sink_log(__name__)


def reached(step: Step) -> None:
    """A step is complete.

    Tests stop a driver between two steps by replacing this function. It is no part of the public API.
    """
    _log.debug("step %d reached: %s", step, step.name)


class StepTimes:
    """Adds up, batch by batch, how long each step was in coming.

    Args:
        clock: measures.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.begin()

    def begin(self) -> None:
        """A batch begins."""
        self._begun_s = self._last_s = self._clock.now_s()
        self._seconds: dict[str, float] = {}

    def __call__(self, step: Step) -> None:
        """A step is complete."""
        now_s, name = self._clock.now_s(), step.name.lower()
        self._seconds[name] = self._seconds.get(name, 0.0) + now_s - self._last_s
        self._last_s = now_s
        reached(step)

    @property
    def total_s(self) -> float:
        """Seconds since the batch began."""
        return self._clock.now_s() - self._begun_s

    @property
    def by_step(self) -> dict[str, float]:
        """Seconds before each step that was reached, in the order in which they were reached first."""
        return dict(self._seconds)
