"""A schedule: at which choice point what is done instead of going on; as text, so that it can be run again."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

#: What happens at a choice point where the schedule names nothing.
GO = "go"


class ScheduleError(ValueError):
    """A schedule chooses what is not offered: it belongs to another version of the code."""


@dataclass(frozen=True)
class Schedule:
    """A profile and the faults in it.

    Args:
        profile: name in `profiles.PROFILES`.
        faults: number of the choice point, from 0, and what is chosen there; ascending.
    """

    profile: str
    faults: tuple[tuple[int, str], ...] = ()

    def __str__(self) -> str:
        return "@".join((self.profile, *(f"{position}:{fault}" for position, fault in self.faults)))

    @classmethod
    def parse(cls, text: str) -> Schedule:
        """Read ``profile@12:crash@40:timeout``."""
        profile, *faults = text.split("@")
        pairs = (fault.split(":", 1) for fault in faults)
        return cls(profile, tuple((int(position), fault) for position, fault in pairs))

    def with_fault(self, position: int, fault: str) -> Schedule:
        """This schedule and one more fault."""
        return Schedule(self.profile, (*self.faults, (position, fault)))

    @property
    def last(self) -> int:
        """The choice point of the last fault, -1 without faults."""
        return self.faults[-1][0] if self.faults else -1


class Choices:
    """Answers at choice points as a schedule says, and notes what could have been answered."""

    def __init__(self, schedule: Schedule) -> None:
        self._planned = dict(schedule.faults)
        self.offered: list[Sequence[str]] = []
        self.taken: list[tuple[int, str]] = []
        #: The choice point of the last fault that was taken, -1 before the first.
        self.last_taken = -1

    @property
    def wants_options(self) -> bool:
        """Whether somebody is interested in what is possible at the next choice point."""
        return True

    def choose(self, options: Sequence[str]) -> str:
        """`GO`, or the option that is planned here.

        Raises:
            ScheduleError: the planned option is not possible here.
        """
        position = len(self.offered)
        self.offered.append(options)
        choice = self._choice(position, options)
        if choice is GO:
            return GO
        if choice not in options:
            message = f"choice point {position} offers {', '.join(options)}, not {choice}"
            raise ScheduleError(message)
        self.taken.append((position, choice))
        self.last_taken = position
        return choice

    def _choice(self, position: int, options: Sequence[str]) -> str:
        return self._planned.get(position, GO)


class PlannedChoices(Choices):
    """Where nobody asks afterwards what else was possible: options are made only where the schedule chooses one."""

    @property
    def wants_options(self) -> bool:
        """Whether the next choice depends on what is possible."""
        return len(self.offered) in self._planned


class RandomChoices(Choices):
    """Chooses a fault now and then; `taken` is the schedule that does the same again.

    Args:
        schedule: the profile.
        seed: of the chooser.
        faults_max: how many faults there may be.
    """

    def __init__(self, schedule: Schedule, seed: int, *, faults_max: int) -> None:
        super().__init__(schedule)
        self._random = random.Random(seed)
        self._left = faults_max
        #: Each schedule has a rate of its own, so that some have their faults close together and some far apart.
        self._rate = self._random.choice((0.02, 0.05, 0.1, 0.2))

    def _choice(self, position: int, options: Sequence[str]) -> str:
        if not options or self._left == 0 or self._random.random() >= self._rate:
            return GO
        self._left -= 1
        return self._random.choice(options)
