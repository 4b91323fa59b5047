"""What the steps of a batch take."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_2pc_sink.clock import Clock
    from spark_2pc_sink.recipe.steps import Step


class StepTimes:
    """An `Observer` of the steps that adds up, batch by batch, how long each was in coming.

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

    @property
    def total_s(self) -> float:
        """Seconds since the batch began."""
        return self._clock.now_s() - self._begun_s

    @property
    def by_step(self) -> dict[str, float]:
        """Seconds before each step that was reached, in the order in which they were reached first."""
        return dict(self._seconds)
