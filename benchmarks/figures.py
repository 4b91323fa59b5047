"""Figures of repeated measurements: quantiles, medians, spreads. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise


@dataclass(frozen=True)
class Spread:
    """The middle and the ends of some figures.

    Attributes:
        median: of all.
        low: the smallest.
        high: the largest.
        count: how many there are.
    """

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of at least one value."""
        return cls(statistics.median(values), min(values), max(values), len(values))

    def json(self) -> dict[str, float]:
        """As a plain mapping, for results."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f}, n={self.count})"


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` of all values do not exceed ("nearest rank").

    Args:
        values: at least one.
        share: above 0 and at most 1; 0.99 for p99.
    """
    if not values or not 0 < share <= 1:
        raise ValueError(f"a quantile of {len(values)} values at {share}: it takes values, and a share in (0, 1]")
    return sorted(values)[math.ceil(len(values) * share) - 1]


def slope(first: tuple[float, float], second: tuple[float, float]) -> float:
    """How much y grows for each x between two points."""
    return (second[1] - first[1]) / (second[0] - first[0])


def falls(values: Sequence[float]) -> list[float]:
    """Of each step in a curve, the share that is left of the value before it; 1 where it rises."""
    return [min(1.0, later / earlier) for earlier, later in pairwise(values)]
