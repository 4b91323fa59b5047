"""Running schedules: one, all with so many faults, or random ones; on the product, and on the product with a defect.

A simulation that finds nothing proves nothing by itself. So the product is broken in known ways, one at a time, and
the same schedules and checkers must find it out. `defects` and `defects_people` have the defects.
"""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar
from unittest import mock

from tests.simulation.checkers import check
from tests.simulation.drivers import MISFITS
from tests.simulation.schedule import Choices, PlannedChoices, RandomChoices, Schedule, ScheduleError
from tests.simulation.world import StuckError, World
from tests.unit.fakes import coordinator

#: How many violations one piece of work reports in full.
_REPORTED_MAX = 5
#: How many choice points the faults after one that was left out are moved, forwards or back.
_SHIFT_MAX = 15


@dataclass(frozen=True)
class Violation:
    """A schedule after which something does not hold."""

    schedule: Schedule
    checker: str
    text: str


@dataclass
class Tally:
    schedules: int = 0
    requests: int = 0
    violations: int = 0
    reported: list[Violation] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.schedules += other.schedules
        self.requests += other.requests
        self.violations += other.violations
        self.reported += other.reported


def run_world(world: World) -> list[tuple[str, str]]:
    """Run it and check it: the violations."""
    try:
        world.run()
    except StuckError as error:
        # Where people have acted, a job may fail again and again: that is not green.
        return [] if world.people.acted else [("progress", str(error))]
    except ScheduleError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever the product raises beside its own errors is a finding
        return [("order of calls", f"unexpected {error!r}")]
    return check(world)


def run_schedule(schedule: Schedule, tally: Tally, kind: type[Choices] = Choices) -> Choices:
    choices = kind(schedule)
    _judge(World(schedule.profile, choices), schedule, tally)
    return choices


def _judge(world: World, schedule: Schedule, tally: Tally) -> None:
    violations = run_world(world)
    tally.schedules += 1
    tally.requests += len(world.choices.offered)
    if violations:
        tally.violations += 1
        if len(tally.reported) < _REPORTED_MAX:
            found = Schedule(schedule.profile, tuple(world.choices.taken))
            tally.reported.append(Violation(found, *violations[0]))


def children(schedule: Schedule, offered: Sequence[Sequence[str]], kinds: Collection[str] = ()) -> Iterator[Schedule]:
    """All schedules with one more fault, behind those that there are; of these kinds only, or of all."""
    for position in range(schedule.last + 1, len(offered)):
        for fault in offered[position]:
            if not kinds or fault in kinds:
                yield schedule.with_fault(position, fault)


def run_children(schedule: Schedule, kinds: Collection[str] = ()) -> Tally:
    offered = run_schedule(schedule, Tally()).offered
    tally = Tally()
    for child in children(schedule, offered, kinds):
        run_schedule(child, tally, PlannedChoices)
    return tally


def run_random(profile: str, seeds: Iterable[int], *, faults_max: int) -> Tally:
    tally = Tally()
    for seed in seeds:
        schedule = Schedule(profile)
        _judge(World(profile, RandomChoices(schedule, seed, faults_max=faults_max)), schedule, tally)
    return tally


def trace(schedule: Schedule) -> tuple[list[str], list[tuple[str, str]]]:
    """Run one schedule for people: every request, and the violations."""
    world = World(schedule.profile, Choices(schedule), tracing=True)
    violations = run_world(world)
    return world.traced, violations


def shrink(violation: Violation) -> Violation:
    """The same violation after as few faults as possible: none of them can be left out.

    A fault that is left out takes requests with it, or leaves others to be made, so those after it are moved too.
    """
    faults = violation.schedule.faults
    for number in range(len(faults) - 1, -1, -1):
        for shift in sorted(range(-_SHIFT_MAX, _SHIFT_MAX + 1), key=abs):
            later = ((position + shift, fault) for position, fault in faults[number + 1 :])
            shorter = Schedule(violation.schedule.profile, (*faults[:number], *later))
            found = _again(shorter, violation.checker)
            if found is not None:
                return shrink(found)
    return violation


def _again(schedule: Schedule, checker: str) -> Violation | None:
    positions = [position for position, _ in schedule.faults]
    if positions != sorted({*positions}) or any(position < 0 for position in positions):
        return None
    choices = PlannedChoices(schedule)
    try:
        violations = run_world(World(schedule.profile, choices))
    except ScheduleError:
        return None
    taken = Schedule(schedule.profile, tuple(choices.taken))
    return next((Violation(taken, by, text) for by, text in violations if by == checker), None)


def as_test(violation: Violation) -> str:
    """A test that fails as long as the violation is there; to be pasted into a file of tests."""
    name = re.sub(
        r"\W+", "_", "_".join((violation.schedule.profile, *(fault for _, fault in violation.schedule.faults)))
    )
    return f"""from tests.simulation.explore import trace
from tests.simulation.schedule import Schedule


def test_{name}() -> None:
    lines, violations = trace(Schedule.parse("{violation.schedule}"))
    assert violations == [], "\\n".join(lines)
"""


def quiet() -> None:
    """Recovery warns of everything that it mends: too much for a hundred thousand recoveries."""
    logging.getLogger("spark_2pc_sink").setLevel(logging.CRITICAL)


#: What replaces an attribute: made from the original, so that it can call it.
Replacement = Callable[[Any], Any]
#: An object, the name of its attribute, and what replaces that.
Change = tuple[Any, str, Replacement]
_F = TypeVar("_F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Mutant:
    """One deliberate defect.

    Args:
        faults: how many faults are tried at once.
        kinds: only these are tried, all where it says none; for what few of very many schedules show.
    """

    name: str
    changes: tuple[Change, ...]
    profiles: tuple[str, ...] = ("tv2",)
    faults: int = 2
    kinds: tuple[str, ...] = ()


def returning(value: Any) -> Replacement:
    """A function that answers the same whatever it is asked."""
    return lambda _original: lambda *_args, **_kwargs: value


def calling(function: Callable[..., Any]) -> Replacement:
    """A function that is given the original, and then what the original would be given."""
    return lambda original: lambda *args, **kwargs: function(original, *args, **kwargs)


class Mutants(list[Mutant]):
    """Mutants, each declared where its code is. ``profiles``: in which they are hunted unless they say other ones."""

    def __init__(self, *profiles: str) -> None:
        super().__init__()
        self._profiles = profiles

    def add(self, name: str, *changes: Change, **more: Any) -> None:
        """Declare a mutant by its changes. ``more``: the other fields of `Mutant`."""
        self.append(Mutant(name, changes, **{"profiles": self._profiles, **more}))

    def of(self, name: str, *places: tuple[Any, str], also: tuple[Change, ...] = (), **more: Any) -> Callable[[_F], _F]:
        """Declare a mutant whose code is the function below, as `calling` has it, in these places.

        Args:
            also: what else is changed.
        """

        def declare(function: _F) -> _F:
            self.add(name, *((*place, calling(function)) for place in places), *also, **more)
            return function

        return declare


class Applied:
    """The product with a defect, while the ``with`` block lasts."""

    def __init__(self, mutant: Mutant) -> None:
        self._patches: list[Any] = [
            mock.patch.object(target, attribute, replacement(getattr(target, attribute)))
            for target, attribute, replacement in mutant.changes
        ]

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
    name: str
    schedules: int
    violation: Violation | None


def hunt(mutant: Mutant, *, seed: int, schedules_max: int) -> Caught:
    """Run schedules until a checker notices: without faults, with each fault, then more faults in random order."""
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
