"""The written rows of a batch: what a table has made of the rows that were given to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, kw_only=True)
class WrittenRows:
    """Counts of rows; those of several tables can be added.

    Attributes:
        given: all rows of the batch, those that delete a row too.
        written: inserted or updated.
        deleted: rows that the table had, and that ``delete_when`` has removed.
        left_out: rows of which the table has taken nothing, as it was told: other rows of their key in the batch came
            first by the order, their key was there already (``insert_ignore``), or the row that was there stays
            (``upsert_where``, late rows).
    """

    given: int
    written: int
    deleted: int = 0
    left_out: int = 0

    def __add__(self, other: WrittenRows) -> WrittenRows:
        return WrittenRows(
            given=self.given + other.given,
            written=self.written + other.written,
            deleted=self.deleted + other.deleted,
            left_out=self.left_out + other.left_out,
        )


#: Of an attempt in which the table has nothing to do.
NOTHING_WRITTEN: Final = WrittenRows(given=0, written=0)
