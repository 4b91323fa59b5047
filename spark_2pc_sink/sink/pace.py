"""How many tasks the next batch gets.

A batch of a few rows takes longer to share out than to write: one task that reads, encodes and sends it needs no
shuffle, and one Python worker. Whether the next batch is such a one, nobody knows before it is read, so it is guessed
from the last, and a guess is never wrong at more than a small cost: a task that turns out to have many rows gives up
before it has sent any.
"""

from __future__ import annotations

from typing import Final

#: Rows that one task takes by itself; more are shared out.
ONE_TASK_ROWS_MAX: Final = 20_000
#: The same in bytes of Arrow columns: the task holds them all before it sends the first.
ONE_TASK_BYTES_MAX: Final = 16 * 1024 * 1024
#: A job that takes longer with few rows has its work before them (a large scan, a large state), which one task would
#: do alone: it is never given to one task.
ONE_TASK_S_MAX: Final = 0.5
#: After a batch that was slow or large in one task, so many batches are shared out before one task is tried again.
PATIENCE_BATCHES: Final = 20


class Pace:
    """Remembers what the last batches of a run took. One object serves one run."""

    def __init__(self) -> None:
        self._small = False
        self._wait = 0

    @property
    def one_task(self) -> bool:
        """True where one task is likely to be the fastest way."""
        return self._small and self._wait == 0

    def note(self, *, rows: int, seconds: float, one_task: bool) -> None:
        """A batch was written.

        Args:
            rows: how many it had.
            seconds: what its job took.
            one_task: whether one task did it.
        """
        self._wait = max(0, self._wait - 1)
        self._small = rows <= ONE_TASK_ROWS_MAX and seconds <= ONE_TASK_S_MAX
        if one_task and not self._small:
            self._wait = PATIENCE_BATCHES

    def note_too_large(self) -> None:
        """One task was given more rows than it takes."""
        self._small, self._wait = False, PATIENCE_BATCHES
