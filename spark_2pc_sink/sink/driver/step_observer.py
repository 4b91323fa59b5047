"""The steps that a batch reaches on the driver: who is told, and how long each took."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jdbc_state.sink_log import sink_log

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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
        tell: called with every step, before anything else happens.
    """

    def __init__(self, clock: Clock, tell: Callable[[Step], None] | None = None) -> None:
        self._clock = clock
        self._tell = tell
        self.begin()

    def begin(self, **figures: float) -> None:
        """A batch begins.

        Args:
            figures: of it, for the history.
        """
        self._begun_s = self._last_s = self._clock.now_s()
        self._seconds: dict[str, float] = {}
        self._figures = figures

    def __call__(self, step: Step) -> None:
        """A step is complete."""
        now_s, name = self._clock.now_s(), step.name.lower()
        self._seconds[name] = self._seconds.get(name, 0.0) + now_s - self._last_s
        self._last_s = now_s
        if self._tell is not None:
            self._tell(step)
        reached(step)

    @property
    def total_s(self) -> float:
        """Seconds since the batch began."""
        return self._clock.now_s() - self._begun_s

    @property
    def by_step(self) -> dict[str, float]:
        """Seconds before each step that was reached, in the order in which they were reached first."""
        return dict(self._seconds)

    @property
    def figures(self) -> Mapping[str, Any]:
        """See `Observer.figures`: the times are written to the millisecond."""
        steps = {name: round(seconds, 3) for name, seconds in self._seconds.items()}
        return {"seconds": round(sum(steps.values()), 3), "step_seconds": steps, **self._figures}
