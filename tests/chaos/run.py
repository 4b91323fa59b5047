"""One run: faults by a plan until the time or the number is reached, then the comparison and the verdict."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from spark_2pc_sink import VerifyReport
from spark_2pc_sink.testing import MultisetDifference
from spark_2pc_sink.verification.report import Verdict
from tests.chaos.faults import Kind
from tests.chaos.jobs import BrokenError, MissedError
from tests.chaos.plan import Planned
from tests.chaos.world import Ends, Partition, World


@dataclass
class Tally:
    """What happened in one or several runs, and how both sides are at the end.

    Attributes:
        kills: processes that it ended with SIGKILL, a group or a server as one.
        gave_up: the errors of drivers that ended without being killed, and were started again.
        lost: records and rows of the input that are missing on a side.
        twice: those that are there more often than in the input.
        complaints: everything that is wrong, as sentences; what is lost and twice too.
    """

    faults: Counter[str] = field(default_factory=Counter)
    kills: Counter[str] = field(default_factory=Counter)
    missed: list[str] = field(default_factory=list)
    gave_up: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    twice: int = 0
    complaints: list[str] = field(default_factory=list)
    verdicts: list[str] = field(default_factory=list)

    @property
    def tried(self) -> int:
        return self.faults.total() + len(self.missed)

    @property
    def good(self) -> bool:
        """True when everything that was done took effect, and nothing is wrong."""
        return not self.missed and not self.complaints

    def compared(self, job: str, comparison: Mapping[str, MultisetDifference]) -> None:
        for output, difference in comparison.items():
            self.lost += difference.missing.total()
            self.twice += difference.duplicated.total()
            if difference:
                self.complaints.append(f"{job}, {output}: {difference}")
            if not difference.expected:
                self.complaints.append(f"{job}, {output}: the input is empty, so the comparison proves nothing")

    def verified(self, job: str, report: VerifyReport, *, says: Verdict = "same") -> None:
        """Add what `spark_2pc_sink.verify` says of a job, which does not know its input.

        Args:
            says: what it says when nothing is wrong; without "same" it does not compare the table.
        """
        if not report.known or report.verdict != says:
            self.complaints.append(f"{job}, verify: {report}")
        elif not (report.records and report.batches and (report.rows or says != "same")):
            self.complaints.append(f"{job}, verify: nothing was compared: {report}")
        self.verdicts.append(str(report))

    def at_rest(self, ends: Mapping[Partition, Ends], rows: Mapping[str, str]) -> None:
        """Add where partitions end and what the state rows say.

        Args:
            rows: status of the state row by transactional id.
        """
        self.complaints += _open(ends)
        self.complaints += [
            f"the state row of {name} is {status!r}" for name, status in rows.items() if status != "done"
        ]


def _open(ends: Mapping[Partition, Ends]) -> Iterator[str]:
    for (topic, number), end in ends.items():
        if end.stable != end.high:
            yield f"{topic}-{number}: open transaction (last stable offset {end.stable}, high watermark {end.high})"


#: A fault whose target has just exited by itself is tried again.
TRIES_MAX = 3
#: The broker answers EndTxn before the end markers are written; on a busy machine that takes a while.
_REST_DEADLINE_S = 30.0


class Run:
    def __init__(self, world: World, kinds: dict[str, Kind], tally: Tally, say: Callable[[str], None]) -> None:
        self._world = world
        self._kinds = kinds
        self._tally = tally
        self._say = say

    def strike_all(self, plan: Iterator[Planned], enough: Callable[[], bool]) -> None:
        self._world.wait_for(tuple(job.name for job in self._world.jobs))
        self._say("all jobs are running")
        for planned in plan:
            if enough():
                return
            self._strike(planned)

    def end(self) -> None:
        world, tally = self._world, self._tally
        self._say("faults are over; waiting for the jobs to finish their input")
        world.finish()
        states = dict(world.query("SELECT transactional_id, status FROM kafka_transaction_state"))
        tally.at_rest(
            world.ends_at_rest(_REST_DEADLINE_S),
            {job.name: states.get(job.name, "missing") for job in world.jobs},
        )
        for job in world.jobs:
            tally.compared(job.name, job.compare())
            tally.verified(job.name, job.verify(), says=job.verify_says)
            tally.gave_up += job.gave_up

    def _strike(self, planned: Planned) -> None:
        kind, world = self._kinds[planned.kind], self._world
        for attempt in range(1, TRIES_MAX + 1):
            world.wait_for(kind.jobs)
            for job in world.jobs:
                while job.news:
                    self._say(job.news.pop(0))
            begun_s = time.monotonic()
            try:
                kills = kind.strike(world, planned)
            except AssertionError as error:
                raise BrokenError(f"{planned}: {error}\n{world.account()}") from error
            except MissedError as missed:
                self._say(f"{planned}: no effect, {missed}")
                if attempt == TRIES_MAX:
                    self._tally.missed.append(f"{planned}: {missed}")
                continue
            for job in world.jobs:
                if job.name in kind.jobs:
                    job.disturbed()
            self._tally.faults[planned.kind] += 1
            self._tally.kills[planned.kind] += kills
            self._say(f"{planned}: {time.monotonic() - begun_s:.1f} s")
            return
