"""A clock of tests."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class FakeClock:
    """Time that passes only when somebody waits, or when a test says so."""

    now: float = 0.0

    def now_s(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += max(seconds, 0.001)
