"""How much a benchmark does: in full, or quickly."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Scale:
    """What the command line asked for.

    Attributes:
        quick: ratios in minutes; False for all repetitions.
        rows: in each batch of the benchmarks that compare throughput; None for the benchmark's own number.
    """

    quick: bool
    rows: int | None = None

    def pick(self, *, full: T, quick: T) -> T:
        """One of two values."""
        return quick if self.quick else full

    def batch_rows(self, default: int) -> int:
        """Rows of a batch."""
        return self.rows or default


def measure(name: str, quick: bool, rows: int | None) -> Any:  # noqa: FBT001 - called with keywords, from JSON
    """Run one benchmark, in the process that was started for it."""
    return importlib.import_module(f"benchmarks.{name}").measure(Scale(quick=quick, rows=rows))
