"""How long drivers took to be back, and readers stood: a thread that looks at the partitions, and what it has seen."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

#: What recovery says of a batch that Kafka has lost and Spark will replay.
_OWED = "noted that Kafka is owed"


@dataclass(frozen=True)
class Restart:
    """One restart after a kill; times of the machine's monotonic clock.

    Attributes:
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
    """How long readers stood after each fault's end, where no driver of their topic died meanwhile."""
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


_PERIOD_S = 0.05
_REQUEST_DEADLINE_S = 2.0
_STOP_DEADLINE_S = 20.0
#: A partition: its topic and its number.
Partition = tuple[str, int]


@dataclass(frozen=True)
class Ends:
    """Where a partition ends for the two kinds of readers."""

    stable: int
    high: int


@dataclass(frozen=True)
class Standstill:
    """A time in which records waited in a partition and the last stable offset did not move.

    Attributes:
        since_s: when the first look ended that saw it, on the machine's monotonic clock: it had begun by then.
        last_seen_s: when the last look began that still saw it: the true end is not before that.
    """

    topic: str
    since_s: float
    last_seen_s: float


class Watch:
    """A thread that looks some twenty times a second, past all proxies; a context manager."""

    def __init__(self, bootstrap: str, partitions: Sequence[Partition]) -> None:
        self._settings: dict[str, str | int | float | bool] = {
            "bootstrap.servers": bootstrap,
            "log_level": 0,
            "socket.timeout.ms": 2_000,
        }
        self._admin = AdminClient(self._settings)
        self._partitions = partitions
        self._open: dict[Partition, tuple[int, float, float]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        #: All that have ended.
        self.standstills: list[Standstill] = []

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(_STOP_DEADLINE_S)

    def ends(self) -> dict[Partition, Ends]:
        try:
            return self._both_ends()
        except (KafkaException, TimeoutError):
            # Killed, paused or starting, or the machine stalled. The client keeps the leader epochs that it has seen
            # before, and would go on being refused with them.
            self._admin = AdminClient(self._settings)
            raise

    def ends_at_rest(self, deadline_s: float) -> dict[Partition, Ends]:
        """Where the partitions end when nothing is written any more; as they are, when a transaction stays open.

        Args:
            deadline_s: seconds for open transactions to end, and for a broker that does not answer to answer again.
        """
        end_s = time.monotonic() + deadline_s
        while True:
            late = time.monotonic() >= end_s
            try:
                ends = self.ends()
            except (KafkaException, TimeoutError):
                if late:
                    raise
            else:
                if late or all(end.stable == end.high for end in ends.values()):
                    return ends
            time.sleep(_PERIOD_S)

    def _both_ends(self) -> dict[Partition, Ends]:
        # The stable end first: a transaction that begins between the two makes a standstill that has begun when the
        # second answer is there, and not before.
        stable = self._ask(IsolationLevel.READ_COMMITTED)
        high = self._ask(IsolationLevel.READ_UNCOMMITTED)
        return {partition: Ends(stable[partition], high[partition]) for partition in self._partitions}

    def observe(self, begun_s: float, ended_s: float, ends: dict[Partition, Ends]) -> None:
        """Record what was seen between ``begun_s`` and ``ended_s``."""
        for partition, end in ends.items():
            before = self._open.get(partition)
            if before is not None and (before[0] != end.stable or end.high <= end.stable):
                self.standstills.append(Standstill(partition[0], before[1], before[2]))
                del self._open[partition]
                before = None
            if end.high > end.stable:
                since_s = ended_s if before is None else before[1]
                self._open[partition] = (end.stable, since_s, begun_s)

    def _run(self) -> None:
        while not self._stop.wait(_PERIOD_S):
            begun_s = time.monotonic()
            try:
                ends = self.ends()
            except (KafkaException, TimeoutError):
                # No reader can read then; that time belongs to the fault.
                continue
            self.observe(begun_s, time.monotonic(), ends)

    def _ask(self, isolation: IsolationLevel) -> dict[Partition, int]:
        latest: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        wanted = {TopicPartition(*partition): latest for partition in self._partitions}
        answers = self._admin.list_offsets(wanted, isolation_level=isolation, request_timeout=_REQUEST_DEADLINE_S)
        return {
            (at.topic, at.partition): answer.result(_REQUEST_DEADLINE_S * 2).offset for at, answer in answers.items()
        }
