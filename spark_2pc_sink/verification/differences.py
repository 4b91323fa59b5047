"""The differences of one verification: all of them counted, the first of each kind kept."""

from __future__ import annotations

from collections import Counter

from spark_2pc_sink.verification.report import Difference, DifferenceKind, NotChecked


class Differences:
    """Takes what the checks find.

    Args:
        kept_max: of each kind so many are kept.
    """

    def __init__(self, kept_max: int) -> None:
        self.kept_max = kept_max
        self.counts: Counter[DifferenceKind] = Counter()
        self.kept: list[Difference] = []
        self.not_checked: list[NotChecked] = []

    def add(self, difference: Difference) -> None:
        """Count a difference, and keep it while there are few of its kind."""
        if self.wanted(difference.kind):
            self.kept.append(difference)
        self.counts[difference.kind] += 1

    def wanted(self, kind: DifferenceKind) -> int:
        """How many more of this kind would be kept."""
        return max(self.kept_max - self.counts[kind], 0)

    def count(self, kind: DifferenceKind, more: int) -> None:
        """Count differences that are not kept."""
        if more:
            self.counts[kind] += more

    def skip(self, what: str, why: str) -> None:
        """Note a part that is not compared, once."""
        part = NotChecked(what, why)
        if part not in self.not_checked:
            self.not_checked.append(part)
