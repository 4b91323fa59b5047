"""A row of a simulated job, on either side."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Record:
    """One row of a batch; the same value is its row in the table.

    Args:
        version: counts the evaluations by Spark, where they differ.
    """

    batch_id: int
    partition: int
    number: int
    version: int = 0
