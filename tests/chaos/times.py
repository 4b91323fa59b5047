"""How long a restart takes, and how long readers of committed records stand still.

A *restart* is measured for each driver that was killed, or stopped for good: from the first call of the next driver's
recovery until that has settled the transaction which was left, and taken a fresh pair. A batch that recovery finds to
be owed counts as settled when its resend is done. What comes before the first call (the start of Python, of Java, of
Spark) is not the sink's.

*Readers blocked* is, for the same restarts, how long after that first call the last stable offset of a partition still
stood where it was, with records behind it: what a reader with isolation.level=read_committed waits for the sink. It
must never be longer than the restart itself. What counts is the last look that still saw the standstill (`watch`).

Where no driver died, the time in which the last stable offset stood still is counted from the end of the fault:
before it the broker was dead, or nobody could reach it.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.chaos.watch import Standstill

#: What recovery says of a batch that Kafka has lost and Spark will replay.
_OWED = "noted that Kafka is owed"


@dataclass(frozen=True)
class Restart:
    """One restart after a kill; times of the machine's monotonic clock.

    Attributes:
        job: its name.
        struck_s: when the driver before was killed.
        recovering_s: the first call of recovery.
        settled_s: when nothing of the driver before was in doubt any more.
    """

    job: str
    struck_s: float
    recovering_s: float
    settled_s: float

    @property
    def took_s(self) -> float:
        """From the first call to settled."""
        return self.settled_s - self.recovering_s


def restart(job: str, struck_s: float, events: Sequence[Mapping[str, Any]]) -> Restart | None:
    """Read a restart out of a driver's journal; None if it did not get so far."""
    recovering = _first(events, "recovering")
    recovered = _first(events, "recovered")
    if recovering is None or recovered is None:
        return None
    settled: Mapping[str, Any] | None = recovered
    if any(str(action).startswith(_OWED) for action in recovered["actions"]):
        settled = next((event for event in events if event.get("step") == "NOTE"), None)
    return None if settled is None else Restart(job, struck_s, recovering["at_s"], settled["at_s"])


def blocked_s(one: Restart, standstills: Iterable[Standstill]) -> float | None:
    """How long readers still stood after the restart's first call; None when they did not stand then."""
    found = [
        still.last_seen_s - one.recovering_s
        for still in standstills
        if _of(still, one.job) and still.since_s <= one.recovering_s <= still.last_seen_s
    ]
    return max(found, default=None)


def blocked_without_death_s(
    faults: Iterable[tuple[float, float]], standstills: Sequence[Standstill], deaths: Sequence[tuple[str, float]]
) -> Iterator[float]:
    """How long readers stood after each fault's end, where no driver of their topic died meanwhile.

    Args:
        faults: begin and end of each.
        standstills: all.
        deaths: job and time.
    """
    for begun_s, ended_s in faults:
        found = [
            still.last_seen_s - ended_s
            for still in standstills
            if still.since_s <= ended_s <= still.last_seen_s
            and not any(
                _of(still, job) and min(begun_s, still.since_s) <= at_s <= still.last_seen_s for job, at_s in deaths
            )
        ]
        if found:
            yield max(found)


def summary(what: str, seconds: Sequence[float]) -> str:
    """One line: how many, the median, the maximum."""
    if not seconds:
        return f"{what}: none"
    middle, most = statistics.median(seconds) * 1000, max(seconds) * 1000
    return f"{what}: n={len(seconds)} p50={middle:.0f} ms max={most:.0f} ms"


def _of(still: Standstill, job: str) -> bool:
    """A job's topics are its own name, and names that begin with it and a dot."""
    return still.topic.partition(".")[0] == job


def _first(events: Sequence[Mapping[str, Any]], name: str) -> Mapping[str, Any] | None:
    return next((event for event in events if event["event"] == name), None)
