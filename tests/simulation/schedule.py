"""A schedule: at which choice point what is done instead of going on, as text; and the profiles that it runs in."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from spark_2pc_sink.ids import EPOCH_BUMP_VERSION, EPOCH_MAX
from spark_2pc_sink.reference.coordinator.states import Profile as BrokerProfile, Settings

#: What happens at a choice point where the schedule names nothing.
GO = "go"


class ScheduleError(ValueError):
    """A schedule chooses what is not offered: it belongs to another version of the code."""


@dataclass(frozen=True)
class Schedule:
    """A profile and the faults in it.

    Args:
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
        """`GO`, or the option that is planned here."""
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
    """Chooses a fault now and then; `taken` is the schedule that does the same again."""

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


#: Where rows go: to the topic and the table, or to one of them.
BOTH: Final = "both"
TOPIC_ALONE: Final = "topic"
TABLE_ALONE: Final = "table"
_BUMP, _SAME = BrokerProfile.KEEP_PREPARED, BrokerProfile.KEEP_UNCHANGED
_SEVERAL: Final = (BOTH, BOTH, TABLE_ALONE, TOPIC_ALONE)


@dataclass(frozen=True, kw_only=True)
class Profile:
    """One kind.

    Args:
        keep_version: the level of transaction.version from which it does.
        fences_late_commits: a commit that meets the coordinator's own abort is fenced (KAFKA-20785).
        first_epoch: of the transactional id before the sink is started, None for an id that is unknown.
        drifts: Spark computes other rows when it runs a batch again.
        loses_commits: the database may fail over to a standby that lacks its last commit. Both sides cannot agree
            then, and the only question is whether a driver halts. It does after every such failover that comes alone;
            not after some that come with another fault: where the driver's claim was lost with its decision, and the
            InitProducerId that ended its recovery had taken the commit from Kafka's view, nobody knows of it.
        people: persons act at any point, and after a halt; see `people`.
        bad: places of records, (batch, partition, number), whose rows the table refuses: they go to the dead letters.
        letters: dead letters go to a topic too.
        outputs: where the rows of each partition of a batch go: `BOTH`, or one side alone. Those beyond the two
            partitions of the topic share them.
    """

    name: str
    transaction_version: int = 2
    two_phase_commit: bool = False
    keeps: BrokerProfile = BrokerProfile.AS_RELEASED
    keep_version: int = EPOCH_BUMP_VERSION
    fences_late_commits: bool = False
    first_epoch: int | None = None
    drifts: bool = False
    loses_commits: bool = False
    people: bool = False
    outputs: tuple[str, ...] = (BOTH, BOTH)
    bad: frozenset[tuple[int, int, int]] = frozenset()
    letters: bool = False
    batches: tuple[tuple[int, ...], ...] = ((2, 1), (0, 0), (1, 1))

    def records_of(self, batch_id: int) -> tuple[int, ...]:
        """Of one batch, by partition; there are none after the last."""
        return self.batches[batch_id] if batch_id < len(self.batches) else ()

    @property
    def settings(self) -> Settings:
        return Settings(
            profile=self.keeps,
            transaction_version=self.transaction_version,
            keep_prepared_version=self.keep_version,
            fences_late_commits=self.fences_late_commits,
            two_phase_commit_enable=self.two_phase_commit,
        )


_ALL = (
    Profile(name="tv2"),
    # The first batch is empty, and the last one writes one partition only.
    Profile(name="tv2-2pc", two_phase_commit=True, batches=((0, 0), (2, 1), (0, 1))),
    Profile(name="tv2-keep", keeps=_BUMP),
    Profile(name="tv2-2pc-keep", two_phase_commit=True, keeps=_BUMP),
    # apache/kafka#22704, which refuses the first of these.
    Profile(name="tv2-keep-same", keeps=_SAME, fences_late_commits=True),
    Profile(name="tv2-2pc-keep-same", two_phase_commit=True, keeps=_SAME),
    # As krafka, Dekaf and crabka have it: the level below 3 keeps nothing.
    Profile(name="tv3-2pc-keep", transaction_version=3, keep_version=3, two_phase_commit=True, keeps=_BUMP),
    # Batches one behind the other, where each needs a pair of its own.
    Profile(name="tv1", transaction_version=1, batches=((2, 1), (0, 2), (0, 0))),
    Profile(name="tv0", transaction_version=0),
    Profile(name="tv0-2pc", transaction_version=0, two_phase_commit=True),
    # The first pair is (P, 32765); the second batch with records needs a new producer id.
    Profile(name="tv2-rollover", first_epoch=EPOCH_MAX - 2, batches=((2, 1), (1, 1), (0, 0))),
    Profile(name="tv2-drift", drifts=True),
    Profile(name="tv2-async", loses_commits=True),
    Profile(name="tv0-async", transaction_version=0, loses_commits=True),
    # One row of the first batch, and all of the last.
    Profile(name="tv2-bad", bad=frozenset({(0, 0, 1), (2, 0, 0), (2, 1, 0)})),
    # Two rows of the first batch, and all of the second, which is letters alone.
    Profile(
        name="tv2-letters", letters=True, bad=frozenset({(0, 0, 0), (0, 1, 0), (1, 1, 0)}), batches=((2, 1), (0, 1))
    ),
    Profile(
        name="tv0-letters",
        letters=True,
        transaction_version=0,
        bad=frozenset({(0, 1, 0), (1, 0, 0)}),
        batches=((2, 1), (2, 1)),
    ),
    # Several outputs: all of them in one batch, then rows for a table alone, then records for a topic alone.
    Profile(name="tv2-outputs", outputs=_SEVERAL, batches=((1, 1, 2, 1), (0, 0, 2, 0), (0, 0, 0, 1))),
    # Also with a bad row of each kind of output.
    Profile(
        name="tv0-outputs",
        outputs=_SEVERAL,
        transaction_version=0,
        bad=frozenset({(0, 2, 1), (1, 0, 0)}),
        batches=((0, 0, 2, 0), (1, 0, 1, 1), (0, 0, 1, 0)),
    ),
    # Two batches one behind the other: what is restored, or set back, may be one of them.
    Profile(name="people-tv2", people=True, batches=((2, 1), (1, 1))),
    Profile(name="people-tv0", people=True, transaction_version=0, batches=((1, 1), (0, 0), (1, 0))),
    Profile(name="people-keep", people=True, two_phase_commit=True, keeps=_BUMP, batches=((1, 1), (1, 0), (0, 1))),
)
#: By name.
PROFILES = {profile.name: profile for profile in _ALL}
#: Those in which persons act.
PEOPLE = tuple(name for name, profile in PROFILES.items() if profile.people)
#: Those in which both sides must agree, whatever happens.
PROMISED = tuple(name for name, profile in PROFILES.items() if not profile.loses_commits and not profile.people)
#: Of these CI runs all pairs of faults, of one half at a time, by the commit: they differ the most. Of the others it
#: runs single faults and some at random, and the nightly workflow all pairs.
CONTINUOUS: Final = {"even": ("tv2", "people-tv2"), "odd": ("tv0", "tv2-2pc-keep")}
