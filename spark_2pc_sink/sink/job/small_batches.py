"""Who writes the next batch: tasks, or the driver itself.

A batch of a few rows takes longer to share out than to write: the driver collects it by one job of one task, and then
encodes and sends it, without a shuffle and without Python workers. Whether the next batch is such a one, nobody knows
before it is read, so it is guessed from the last, and a guess is never wrong at more than a small cost: no more rows
than a small batch may have are collected, and nothing is sent before all are there.
"""

from __future__ import annotations

from typing import Final

#: Rows that the driver takes by itself; more are shared out.
SMALL_ROWS_MAX: Final = 20_000
#: The same in bytes of Arrow columns: the driver holds them all.
SMALL_BYTES_MAX: Final = 16 * 1024 * 1024
#: A job that takes longer with few rows has its work before them (a large scan, a large state), which one task would
#: do alone: it is shared out.
SMALL_S_MAX: Final = 1.0
#: After a batch that was slow or large for one task, so many batches are shared out before one is collected again.
PATIENCE_BATCHES: Final = 20


class Pace:
    """Remembers what the last batches of a run took. One object serves one run."""

    def __init__(self) -> None:
        self._small = False
        self._wait = 0

    @property
    def small(self) -> bool:
        """True where the next batch is likely to be small."""
        return self._small and self._wait == 0

    def note(self, *, rows: int, arrow_bytes: int, seconds: float, collected: bool) -> None:
        """A batch was written.

        Args:
            rows: how many it had.
            arrow_bytes: what they weighed.
            seconds: what its job took.
            collected: whether the driver did it.
        """
        self._wait = max(0, self._wait - 1)
        self._small = rows <= SMALL_ROWS_MAX and arrow_bytes <= SMALL_BYTES_MAX and seconds <= SMALL_S_MAX
        if collected and not self._small:
            self._wait = PATIENCE_BATCHES

    def note_too_large(self) -> None:
        """There were more rows than the driver takes, or they could not be collected."""
        self._small, self._wait = False, PATIENCE_BATCHES
