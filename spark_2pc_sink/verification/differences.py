"""The differences of one verification: all of them counted, the first of each kind kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from spark_2pc_sink.verification.report import Difference, DifferenceKind, NotChecked

#: What is not checked where nothing of a table is.
THE_TABLE: Final = "the table"


class Differences:
    """Takes what the checks find.

    Args:
        kept_max: of each kind so many are kept, of each table by itself.
    """

    def __init__(self, kept_max: int) -> None:
        self.kept_max = kept_max
        self.counts: Counter[DifferenceKind] = Counter()
        self.kept: list[Difference] = []
        self.not_checked: list[NotChecked] = []
        self._table: str | None = None
        self._counts: Counter[tuple[str | None, DifferenceKind]] = Counter()

    @contextmanager
    def about(self, table: str | None) -> Iterator[None]:
        """Let all that is found in a block be of one of several tables, by its name; None where there is one."""
        self._table = table
        try:
            yield
        finally:
            self._table = None

    def add(self, difference: Difference) -> None:
        """Count a difference, and keep it while there are few of its kind."""
        if self.wanted(difference.kind):
            self.kept.append(replace(difference, table=self._table))
        self.count(difference.kind, 1)

    def wanted(self, kind: DifferenceKind) -> int:
        """How many more of this kind would be kept."""
        return max(self.kept_max - self._counts[self._table, kind], 0)

    def count(self, kind: DifferenceKind, more: int) -> None:
        """Count differences that are not kept."""
        if more:
            self.counts[kind] += more
            self._counts[self._table, kind] += more

    def skip(self, what: str, why: str, remedy: str = "") -> None:
        """Note a part that is not compared, once; see `NotChecked`."""
        if self._table is not None:
            what = f"table {self._table}" if what == THE_TABLE else f"{what} (table {self._table})"
        part = NotChecked(what, why, remedy)
        if part not in self.not_checked:
            self.not_checked.append(part)
