"""The bisection: which of many rows are refused, where a try says only that one of them is.

Pure: what a try does is up to the caller. A try of rows that are all taken keeps them, as a savepoint does that is
released; a try that is refused leaves no trace.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Refusal = TypeVar("Refusal")


def find_refused(count: int, attempt: Callable[[int, int], Refusal | None], *, most: int) -> list[tuple[int, Refusal]]:
    """Try all rows, halves of what is refused, and so on; each row that is taken is kept once.

    One bad row among n costs at most 3n rows of tries: those of the whole, of its halves, and of the halves on the way
    to it.

    Args:
        count: the rows, numbered from 0.
        attempt: tries the rows from its first argument to below its second; None where all were taken and kept, else
            the refusal, and nothing of them was kept.
        most: look no further when more than so many are refused.

    Returns:
        The rows that are refused by themselves on top of those before them, in order, and why.
    """
    search = _Search(attempt, most)
    search.over(0, count, refused=False)
    return search.found


def try_again(
    refused: list[tuple[int, Refusal]], attempt: Callable[[int, int], Refusal | None]
) -> list[tuple[int, Refusal]]:
    """Try refused rows once more, each on top of all that were kept since, until no more of them is taken.

    A row may refer to one that came behind it.

    Args:
        refused: from `find_refused`.
        attempt: the same.
    """
    while refused:
        again = ((row, attempt(row, row + 1)) for row, _ in refused)
        still = [(row, refusal) for row, refusal in again if refusal is not None]
        if len(still) == len(refused):
            return still
        refused = still
    return refused


class _Search(Generic[Refusal]):
    def __init__(self, attempt: Callable[[int, int], Refusal | None], most: int) -> None:
        self._attempt = attempt
        self._most = most
        self.found: list[tuple[int, Refusal]] = []

    def over(self, start: int, stop: int, *, refused: bool) -> bool:
        """Search in a range.

        Args:
            start: its first row.
            stop: the row behind its last.
            refused: the range is known to be refused, on top of what is kept: it need not be tried as a whole.

        Returns:
            True where all of it was kept.
        """
        if start == stop or len(self.found) > self._most:
            return True
        single = stop - start == 1
        # One row alone is always tried: the refusal of a range that it was a part of may name another.
        if single or not refused:
            refusal = self._attempt(start, stop)
            if refusal is None:
                return True
            if single:
                self.found.append((start, refusal))
                return False
        middle = (start + stop) // 2
        kept = self.over(start, middle, refused=False)
        # Where the first half was kept, the whole was refused for the second.
        self.over(middle, stop, refused=kept)
        return False
