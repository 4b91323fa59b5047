"""Small batches: whether the driver collects and encodes a batch itself, or tasks do.

A batch of a few rows takes longer to share out than to write. So the driver collects it by one job of one task, and
then encodes it, without Python workers. The next batch's size is unknown until it is
read, so assume it resembles the last. A wrong guess is cheap: at most SMALL_ROWS_MAX rows are collected, and nothing is
sent before all have arrived. Before the first batch of a run nothing is known; where its rows come straight from the
source (`first_batch`), FIRST_ROWS_MAX of them are tried.

A job of few rows that takes long has its work before them (a large scan, a large state), which one task would do
alone, or it waits for cores that others use. So the batch behind it is shared out. Where that takes as long, cores are
what is short, and tasks, which need more of them, are no remedy.
"""

from __future__ import annotations

from typing import Final

#: Rows that the driver takes by itself; more are shared out.
SMALL_ROWS_MAX: Final = 20_000
#: The same of a batch before which there was none: a query may begin with all that its source has.
FIRST_ROWS_MAX: Final = 1_000
#: The same in bytes of Arrow columns: the driver holds them all.
SMALL_BYTES_MAX: Final = 16 * 1024 * 1024
#: A job that takes longer with few rows is compared with one that is shared out.
SMALL_S_MAX: Final = 1.0
#: After a batch that was slow or large for one task, so many batches are shared out before one is collected again; and
#: so many are collected, whatever they take, where sharing out was no quicker.
PATIENCE_BATCHES: Final = 20


class SmallBatches:
    """Remembers what the last batches of a run took. One object serves one run."""

    def __init__(self) -> None:
        self._small = False
        self._wait = 0
        self._first = False
        # Batches that are collected, whatever they take; and what the last one took that was.
        self._trusted = 0
        self._collected_s: float | None = None

    def try_first(self) -> None:
        """No batch was written yet; see whether the first one is small."""
        self._small = self._first = True

    @property
    def rows_max(self) -> int:
        """How many rows of the next batch the driver takes by itself."""
        return FIRST_ROWS_MAX if self._first else SMALL_ROWS_MAX

    @property
    def expected(self) -> bool:
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
        few, slow = rows <= SMALL_ROWS_MAX and arrow_bytes <= SMALL_BYTES_MAX, seconds > SMALL_S_MAX
        # A first batch is slow for other reasons, too: the virtual machine is young.
        first, self._first = self._first, False
        if not collected:
            no_quicker = self._collected_s is not None and seconds >= self._collected_s
            if few and slow and no_quicker:
                self._wait, self._trusted = 0, PATIENCE_BATCHES
            self._small = few and (not slow or no_quicker)
        elif first:
            self._small = few
        else:
            self._collected_s = seconds
            self._small = few and (not slow or self._trusted > 0)
            self._trusted = max(0, self._trusted - 1)
            if not self._small:
                self._wait = PATIENCE_BATCHES

    def note_too_large(self) -> None:
        """There were more rows than the driver takes, or they could not be collected."""
        self._small, self._wait = False, 0 if self._first else PATIENCE_BATCHES
        self._first = False
