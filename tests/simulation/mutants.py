"""The simulation of broken products: each defect must be noticed by some checker.

A simulation that finds nothing proves nothing by itself. So the product is broken in known ways, one at a time, and
the same schedules and checkers must find it out. The defects are in `defects` and `defects_outside`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from tests.simulation.drivers import MISFITS
from tests.simulation.explore import Tally, Violation, children, run_schedule
from tests.simulation.schedule import Schedule, ScheduleError
from tests.unit.fakes import coordinator

#: What replaces an attribute: made from the original, so that it can call it.
Replacement = Callable[[Any], Any]


@dataclass(frozen=True)
class Mutant:
    """One deliberate defect.

    Args:
        name: says what is wrong.
        changes: (object, attribute, replacement) each.
        profiles: where it can show.
        faults: how many faults are tried at once.
        kinds: only these are tried, all where it says none; for what few of very many schedules show.
    """

    name: str
    changes: tuple[tuple[Any, str, Replacement], ...]
    profiles: tuple[str, ...] = ("tv2",)
    faults: int = 2
    kinds: tuple[str, ...] = ()

    def patches(self) -> list[Any]:
        """What to start, and to stop again."""
        return [
            mock.patch.object(target, attribute, replacement(getattr(target, attribute)))
            for target, attribute, replacement in self.changes
        ]


class Applied:
    """The product with a defect, while the ``with`` block lasts."""

    def __init__(self, mutant: Mutant) -> None:
        self._patches = mutant.patches()

    def __enter__(self) -> Applied:
        self._start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The product without the defect, for a while."""
        self._stop()
        try:
            yield
        finally:
            self._start()

    def _start(self) -> None:
        for patch in self._patches:
            patch.start()
        coordinator.forget()

    def _stop(self) -> None:
        for patch in reversed(self._patches):
            patch.stop()
        coordinator.forget()


@dataclass(frozen=True)
class Caught:
    """What became of a mutant.

    Args:
        name: of the mutant.
        schedules: how many it took.
        violation: what noticed it, None for nothing.
    """

    name: str
    schedules: int
    violation: Violation | None


def hunt(mutant: Mutant, *, seed: int, schedules_max: int) -> Caught:
    """Run schedules until a checker notices: without faults, all with one fault, then pairs and more in random order.

    Args:
        mutant: what to look for.
        seed: of the order.
        schedules_max: when to give up.

    Raises:
        AssertionError: the mutant does not fit the code any more: what it causes is no behaviour, but a TypeError.
    """
    tally = Tally()
    with Applied(mutant) as applied:
        for _ in _schedules(mutant, random.Random(seed), tally):
            if tally.reported and _holds_without(applied, tally.reported[0].schedule):
                violation = tally.reported[0]
                if any(error.__name__ in violation.text for error in MISFITS):
                    message = f"the mutant {mutant.name!r} does not fit the code: {violation.text}"
                    raise AssertionError(message)
                return Caught(mutant.name, tally.schedules, violation)
            # What the sound product violates too says nothing of the mutant.
            tally.reported.clear()
            if tally.schedules >= schedules_max:
                break
    return Caught(mutant.name, tally.schedules, None)


def _holds_without(applied: Applied, schedule: Schedule) -> bool:
    """Whether the sound product survives the schedule; also where it has not so many choice points."""
    again = Tally()
    with applied.paused():
        try:
            run_schedule(schedule, again)
        except ScheduleError:
            return True
    return again.violations == 0


def _schedules(mutant: Mutant, chance: random.Random, tally: Tally) -> Iterator[Schedule]:
    """Run schedules, and yield each after it was run."""
    level = [Schedule(profile) for profile in mutant.profiles]
    singles: list[Schedule] = []
    for schedule in level:
        offered = run_schedule(schedule, tally).offered
        yield schedule
        singles += children(schedule, offered, mutant.kinds)
    chance.shuffle(singles)
    for schedule in singles:
        run_schedule(schedule, tally)
        yield schedule
    while mutant.faults >= 2:
        # A random way down: each further fault at any point behind the last.
        schedule = chance.choice(singles)
        for _ in range(1, chance.randint(2, mutant.faults)):
            possible = list(children(schedule, run_schedule(schedule, Tally()).offered, mutant.kinds))
            if possible:
                schedule = chance.choice(possible)
        run_schedule(schedule, tally)
        yield schedule
