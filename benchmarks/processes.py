"""CPU time and memory of everything that a benchmark runs: driver, JVM, Python workers, broker, PostgreSQL.

All of them are descendants of this process. A process that has ended is counted by its parent, once that has waited
for it (``cutime`` and ``cstime`` of proc(5)). Spark's Python daemon waits for no worker (it ignores SIGCHLD), so what a
parent has not counted is kept from when the process was last seen: no sum falls when backends and workers come and go.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType

import psutil

#: Looks at the process table until two looks agree, so that nobody ends between the two halves of one.
_LOOKS_MAX = 10
#: Often enough for a batch of some seconds; a look takes some milliseconds of one core.
_SAMPLE_INTERVAL_S = 0.2
#: Spark's JVM forks one daemon, which forks the workers; all of them carry one of these modules in their command.
_WORKER_MODULES = ("pyspark.daemon", "pyspark.worker")


@dataclass(frozen=True)
class ProcessFacts:
    """One process at one moment.

    Attributes:
        pid: its id.
        parent: the id of its parent.
        cpu_s: its own CPU seconds, user and system.
        gone_cpu_s: those of the children that it has waited for.
        rss_bytes: resident memory.
        command: its command line.
    """

    pid: int
    parent: int
    cpu_s: float
    gone_cpu_s: float
    rss_bytes: int
    command: str


def kinds_of(processes: Mapping[int, ProcessFacts], servers: Mapping[int, str], driver: int) -> dict[int, str]:
    """What each process is: ``driver``, ``spark`` (the JVM), ``workers``, or as a server among its ancestors is named.

    Args:
        processes: by pid.
        servers: names of the servers, by the pid of the process that was started.
        driver: the pid of the Python process that drives Spark.
    """

    def kind(pid: int) -> str:
        found = processes[pid]
        if pid in servers:
            return servers[pid]
        if any(module in found.command for module in _WORKER_MODULES):
            return "workers"
        if pid == driver:
            return "driver"
        above = kind(found.parent) if found.parent in processes else "spark"
        return "spark" if above == "driver" else above

    return {pid: kind(pid) for pid in processes}


def not_waited_for(before: Mapping[int, ProcessFacts], after: Mapping[int, ProcessFacts]) -> dict[int, float]:
    """CPU seconds of processes that have ended between two looks, and that no ancestor has counted since.

    Args:
        before: processes by pid.
        after: the same tree, later.

    Returns:
        by the pid of the ancestor that should have counted them; those that have counted everything are absent.
    """
    missing: dict[int, float] = {}
    for facts in before.values():
        if facts.pid in after:
            continue
        above = facts.parent
        while above in before and above not in after:
            above = before[above].parent
        missing[above] = missing.get(above, 0.0) + facts.cpu_s + facts.gone_cpu_s
    for pid in missing:
        if pid in after and pid in before:
            missing[pid] -= after[pid].gone_cpu_s - before[pid].gone_cpu_s
    return {pid: seconds for pid, seconds in missing.items() if seconds > 0}


class ProcessTree:
    """This process and all its descendants.

    Args:
        servers: names by pid, of servers that were started.
    """

    def __init__(self, servers: Mapping[int, str]) -> None:
        #: As they were given.
        self.servers: dict[int, str] = dict(servers)
        self._root = psutil.Process()
        self._last: dict[int, ProcessFacts] = {}
        self._not_waited_for: dict[str, float] = {}

    def look(self) -> dict[int, ProcessFacts]:
        """The facts of every process, by pid."""
        found = self._look_once()
        for _ in range(_LOOKS_MAX):
            before, found = found, self._look_once()
            if found.keys() == before.keys():
                break
        return found

    def _look_once(self) -> dict[int, ProcessFacts]:
        processes = [self._root, *self._root.children(recursive=True)]
        return {facts.pid: facts for facts in map(_facts, processes) if facts is not None}

    def cpu_s(self) -> dict[str, float]:
        """CPU seconds so far, by kind of process."""
        found = self.look()
        kinds = kinds_of(found, self.servers, self._root.pid)
        for pid, seconds in not_waited_for(self._last, found).items():
            # As in kinds_of: below somebody who is not known here is Spark.
            kind = kinds.get(pid, "spark")
            self._not_waited_for[kind] = self._not_waited_for.get(kind, 0.0) + seconds
        self._last = found
        sums = dict(self._not_waited_for)
        for pid, facts in found.items():
            sums[kinds[pid]] = sums.get(kinds[pid], 0.0) + facts.cpu_s + facts.gone_cpu_s
        return sums

    def rss_bytes(self) -> dict[str, int]:
        """The resident memory of the largest process of each kind."""
        found = self._look_once()
        kinds = kinds_of(found, self.servers, self._root.pid)
        largest: dict[str, int] = {}
        for pid, facts in found.items():
            largest[kinds[pid]] = max(largest.get(kinds[pid], 0), facts.rss_bytes)
        return largest


@dataclass
class PeakMemory:
    """Watches memory while a block runs; ``peaks`` has the largest process of each kind at its worst, in bytes."""

    tree: ProcessTree
    peaks: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="peak-memory", daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(_SAMPLE_INTERVAL_S):
            for kind, size in self.tree.rss_bytes().items():
                self.peaks[kind] = max(self.peaks.get(kind, 0), size)


def _facts(process: psutil.Process) -> ProcessFacts | None:
    """None for a process that has just ended."""
    try:
        with process.oneshot():
            times = process.cpu_times()
            return ProcessFacts(
                pid=process.pid,
                parent=process.ppid(),
                cpu_s=times.user + times.system,
                gone_cpu_s=times.children_user + times.children_system,
                rss_bytes=process.memory_info().rss,
                command=" ".join(process.cmdline()),
            )
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return None


def per_million(cpu_s: Mapping[str, float], rows: int) -> dict[str, float]:
    """CPU seconds per million rows, by kind and for ``all``."""
    shares = {kind: seconds / rows * 1e6 for kind, seconds in cpu_s.items()}
    return {**shares, "all": sum(shares.values())}


def spent(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """CPU seconds between two looks, by kind."""
    return {kind: seconds - before.get(kind, 0.0) for kind, seconds in after.items()}
