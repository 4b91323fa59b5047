"""One run: faults by a plan until the time or the number is reached, then the comparison."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tests.chaos.faults import Kind
from tests.chaos.jobs import BrokenError, ChaosJob
from tests.chaos.plan import Planned
from tests.chaos.processes import MissedError
from tests.chaos.times import Restart, blocked_s, blocked_without_death_s, restart
from tests.chaos.verdict import Verdict
from tests.chaos.watch import Standstill
from tests.chaos.world import World

#: A fault whose prey has just ended by itself is tried again.
TRIES_MAX = 3
#: The broker answers EndTxn before the end markers are written; on a busy machine that takes a while.
_REST_DEADLINE_S = 30.0


@dataclass
class Tally:
    """What happened in one or several runs.

    Attributes:
        faults: how often each kind took effect.
        kills: processes that it ended with SIGKILL, a group or a server as one.
        missed: faults that hit nothing.
        restarts: after kills of drivers.
        blocked: how long readers stood after the first call of recovery, for each restart where they did.
        blocked_otherwise: and after other faults.
        gave_up: the errors of drivers that ended without being killed, and were started again.
        verdict: what both sides say at the end.
    """

    faults: Counter[str] = field(default_factory=Counter)
    kills: Counter[str] = field(default_factory=Counter)
    missed: list[str] = field(default_factory=list)
    restarts: list[Restart] = field(default_factory=list)
    blocked: list[float] = field(default_factory=list)
    blocked_otherwise: list[float] = field(default_factory=list)
    gave_up: Counter[str] = field(default_factory=Counter)
    verdict: Verdict = field(default_factory=Verdict)

    @property
    def good(self) -> bool:
        """True when everything that was done took effect, and nothing is wrong."""
        return not self.missed and not self.verdict.complaints


class Run:
    """Carries faults out.

    Args:
        world: that runs.
        kinds: the table.
        tally: to which it adds.
        say: told of each fault.
    """

    def __init__(self, world: World, kinds: dict[str, Kind], tally: Tally, say: Callable[[str], None]) -> None:
        self._world = world
        self._kinds = kinds
        self._tally = tally
        self._say = say
        self._times: list[tuple[float, float]] = []

    def strike_all(self, plan: Iterator[Planned], enough: Callable[[], bool]) -> None:
        """Carry out the plan until there is enough."""
        self._world.wait_for(tuple(job.name for job in self._world.jobs))
        self._say("all jobs run")
        for planned in plan:
            if enough():
                return
            self._strike(planned)

    def end(self) -> None:
        """Let the jobs come to their end, compare, and measure."""
        world, verdict = self._world, self._tally.verdict
        self._say("to the end of the input")
        world.finish()
        states = dict(world.query("SELECT transactional_id, status FROM kafka_transaction_state"))
        verdict.at_rest(
            world.watched().ends_at_rest(_REST_DEADLINE_S),
            {job.name: states.get(job.name, "missing") for job in world.jobs},
        )
        for job in world.jobs:
            verdict.compared(job.name, job.compare())
            verdict.verified(job.name, job.verify(), says=job.verify_says)
        for job in world.jobs:
            self._tally.gave_up += job.gave_up
        self._measure(list(world.watch.standstills))

    def _strike(self, planned: Planned) -> None:
        kind, world = self._kinds[planned.kind], self._world
        for attempt in range(1, TRIES_MAX + 1):
            world.wait_for(kind.jobs)
            self._tell_news()
            begun_s = time.monotonic()
            try:
                kills = kind.strike(world, planned)
            except AssertionError as error:
                raise BrokenError(f"{planned}: {error}\n{world.account()}") from error
            except MissedError as missed:
                self._say(f"{planned}: missed, {missed}")
                if attempt == TRIES_MAX:
                    self._tally.missed.append(f"{planned}: {missed}")
                continue
            for job in world.jobs:
                if job.name in kind.jobs:
                    job.disturbed()
            ended_s = time.monotonic()
            self._times.append((begun_s, ended_s))
            self._tally.faults[planned.kind] += 1
            self._tally.kills[planned.kind] += kills
            self._say(f"{planned}: {ended_s - begun_s:.1f} s")
            return

    def _tell_news(self) -> None:
        for job in self._world.jobs:
            while job.news:
                self._say(job.news.pop(0))

    def _measure(self, standstills: list[Standstill]) -> None:
        tally = self._tally
        for job in self._world.jobs:
            for one in _restarts(job):
                tally.restarts.append(one)
                blocked = blocked_s(one, standstills)
                if blocked is not None:
                    tally.blocked.append(blocked)
                    if blocked > one.took_s:
                        tally.verdict.complaints.append(f"readers were blocked for {blocked:.3f} s by {one}")
        deaths = [(job.name, at_s) for job in self._world.jobs for at_s in job.struck_s.values()]
        tally.blocked_otherwise += blocked_without_death_s(self._times, standstills, deaths)


def _restarts(job: ChaosJob) -> Iterator[Restart]:
    for number, struck_s in job.struck_s.items():
        if number + 1 < len(job.drivers):
            found = restart(job.name, struck_s, job.drivers[number + 1].events())
            if found is not None:
                yield found
