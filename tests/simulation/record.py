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

    @property
    def place(self) -> tuple[int, int, int]:
        """Which row it is, whatever evaluation it comes from."""
        return (self.batch_id, self.partition, self.number)
