"""Time as an argument: everything that waits is given a clock, so that simulations run without waiting."""

from __future__ import annotations

import time
from typing import Final, Protocol

#: Leaders, coordinators and end markers take less. A longer wait is logged with its reason.
QUIET_S: Final = 5.0
#: Seconds after which a continuing wait is logged again.
_TOLD_EVERY_S: Final = 10.0


def now_ms() -> int:
    """Milliseconds since 1970, by this machine's clock."""
    return time.time_ns() // 1_000_000


def steady_ms() -> int:
    """Milliseconds since an arbitrary point; unaffected by changes of the machine's clock."""
    return time.monotonic_ns() // 1_000_000


class Clock(Protocol):
    """A monotonic clock that can also wait."""

    def now_s(self) -> float:
        """Seconds since an arbitrary point; never decreases."""

    def sleep(self, seconds: float) -> None:
        """Wait for ``seconds``."""


class SystemClock:
    """The machine's monotonic clock."""

    def now_s(self) -> float:
        """Seconds of ``time.monotonic()``."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Block the calling thread for ``seconds``."""
        time.sleep(seconds)


class Deadline:
    """When an operation gives up; until then its pauses double from ``backoff_ms`` to ``backoff_ms_max``."""

    def __init__(self, clock: Clock, limit_ms: int, *, backoff_ms: int = 20, backoff_ms_max: int = 1000) -> None:
        self.limit_ms = limit_ms
        self._clock = clock
        self._end_s = clock.now_s() + limit_ms / 1000
        self._pause_s = backoff_ms / 1000
        self._pause_s_max = backoff_ms_max / 1000
        self._long_at_s = clock.now_s() + QUIET_S

    @property
    def remaining_s(self) -> float:
        """Seconds left, never below 0."""
        return max(0.0, self._end_s - self._clock.now_s())

    @property
    def passed(self) -> bool:
        """True when no time is left."""
        return self.remaining_s == 0.0

    def is_due_for_log(self) -> bool:
        """True for the first call after `QUIET_S`, and then every ten seconds: time to log the reason of the wait."""
        long = self._clock.now_s() >= self._long_at_s
        if long:
            self._long_at_s = self._clock.now_s() + _TOLD_EVERY_S
        return long

    def pause(self) -> None:
        """Wait a little longer than the last time, but not past the deadline."""
        self._clock.sleep(min(self._pause_s, self.remaining_s))
        self._pause_s = min(self._pause_s * 2, self._pause_s_max)
