"""The differential fuzzer: random sequences of requests against two servers, compared answer by answer.

    FUZZ_SEED=7 FUZZ_SEQUENCES=2000 make test TESTS=tests/conformance/test_fuzz.py    # others, and more of them
    FUZZ_SEED=123 FUZZ_SEQUENCES=1 make test TESTS=tests/conformance/test_fuzz.py     # one sequence again

A difference is printed with its seed and the shortest sequence that still shows it.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from tests.conformance.lockstep import PARTITIONS, TOPIC, TOPIC_PARTITIONS, Difference, Lockstep, Side, Step, draw
from tests.conformance.raw_client import RawClient
from tests.conformance.servers import coordinator_epoch, find_coordinators, make_topics

#: Sequences that run at the same time, on partitions of their own: while one waits, another is asked.
WORKERS: Final = 4
#: More are no news: the first ones tell what is wrong.
_FOUND_MAX: Final = 5


@dataclass(frozen=True)
class Finding:
    """A sequence on which two servers part.

    Args:
        steps: the shortest that was found.
    """

    seed: int
    steps: list[Step]
    difference: Difference

    def __str__(self) -> str:
        lines = [
            f"seed {self.seed}: the servers differ at {self.difference}",
            f"shortest sequence ({len(self.steps)}):",
        ]
        lines += [f"  {each}," for each in self.steps]
        again = f"FUZZ_SEED={self.seed} FUZZ_SEQUENCES=1 make test TESTS=tests/conformance/test_fuzz.py"
        return "\n".join([*lines, f"to repeat: {again}"])


@dataclass
class Outcome:
    """The result of a run."""

    sequences: int
    requests: int
    seconds: float
    findings: list[Finding]

    def __str__(self) -> str:
        rate = self.sequences / self.seconds
        return (
            f"{self.sequences} sequences, {self.requests} requests to each server, {len(self.findings)} differences, "
            f"{self.seconds:.1f} s ({rate:.1f} sequences/s)"
        )


class Fuzzer:
    """Two servers with a topic for the sequences."""

    def __init__(self, left: str, right: str, *, level: int = 2) -> None:
        self._level = level
        self._bootstraps = (left, right)
        self._mark = f"fuzz-{secrets.token_hex(3)}"
        epochs = []
        for bootstrap in self._bootstraps:
            with RawClient(bootstrap) as client:
                make_topics(client, {TOPIC: TOPIC_PARTITIONS})
                find_coordinators(client)
                epochs.append(coordinator_epoch(client, (TOPIC, 0)))
        self._epochs = tuple(epochs)

    def run(self, seed: int, sequences: int, *, say: Callable[[str], None] = print) -> Outcome:
        """Run the sequences of so many seeds from ``seed`` on; stop early when enough differences are found."""
        start = time.monotonic()
        findings: list[Finding] = []
        seeds = iter(range(seed, seed + sequences))

        def work(worker: int) -> tuple[int, int]:
            done, servers = 0, self._lockstep(worker)
            own = range(worker, TOPIC_PARTITIONS // PARTITIONS, WORKERS)
            for each in seeds:
                if len(findings) >= _FOUND_MAX:
                    break
                place = own[done % len(own)] * PARTITIONS
                steps = draw(each, level=self._level)
                difference = servers.run(steps, place)
                done += 1
                if difference is not None:
                    findings.append(shorten(servers, Finding(each, steps, difference), place))
                    say(str(findings[-1]))
            return done, servers.requests

        with ThreadPoolExecutor(WORKERS) as pool:
            counts = list(pool.map(work, range(WORKERS)))
        return Outcome(
            sum(done for done, _ in counts), sum(count for _, count in counts), time.monotonic() - start, findings
        )

    def _lockstep(self, worker: int) -> Lockstep:
        left, right = (
            Side(RawClient(bootstrap), epoch) for bootstrap, epoch in zip(self._bootstraps, self._epochs, strict=True)
        )
        return Lockstep(left, right, f"{self._mark}-{worker}")


def shorten(servers: Lockstep, finding: Finding, place: int) -> Finding:
    """Leave out whatever the difference does not need: halves first, then single steps (delta debugging)."""
    steps, difference = finding.steps[: finding.difference.index + 1], finding.difference
    size = max(1, len(steps) // 2)
    while size:
        start, shorter = 0, False
        while start < len(steps):
            fewer = steps[:start] + steps[start + size :]
            found = servers.run(fewer, place)
            if found is None:
                start += size
            else:
                steps, difference, shorter = fewer[: found.index + 1], found, True
        if not shorter or size > 1:
            size //= 2
    return Finding(finding.seed, list(steps), difference)
