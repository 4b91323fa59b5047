"""Running schedules: one, all with so many faults, or random ones; on as many processes as there are cores."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from tests.simulation.checkers import check
from tests.simulation.schedule import Choices, PlannedChoices, RandomChoices, Schedule, ScheduleError
from tests.simulation.world import StuckError, World

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
    """What some schedules came to."""

    schedules: int = 0
    requests: int = 0
    violations: int = 0
    reported: list[Violation] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Count ``other`` in."""
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
    """Run one schedule, and count it."""
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
    """Run all schedules with one more fault than this one."""
    offered = run_schedule(schedule, Tally()).offered
    tally = Tally()
    for child in children(schedule, offered, kinds):
        run_schedule(child, tally, PlannedChoices)
    return tally


def run_random(profile: str, seeds: Iterable[int], *, faults_max: int) -> Tally:
    """Run random schedules."""
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
