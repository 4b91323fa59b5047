"""The placement of a batch beside the state row, where batches before it may be missing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from jdbc_state.sink_log import sink_log
from spark_2pc_sink.errors import HaltError
from spark_2pc_sink.recipe.handed_over import missing_batches, place_beyond
from spark_2pc_sink.recipe.replay_decision import Placement, place_batch
from spark_2pc_sink.recipe.resolve import Halt, RowStatus

if TYPE_CHECKING:
    from collections.abc import Callable

    from jdbc_state import StateRow, StateStore
    from spark_2pc_sink.recipe.handed_over import RunRecord
    from spark_2pc_sink.recovery.lost_commits import LostCommits


class BatchPlacement:
    """Places the batches of one run of one query.

    Args:
        store: the state rows.
        losses: what a person has named as lost, and how to find out what is.
        look_back: what Spark shows of batches that did not come.

    Attributes:
        written: the last batch that this run has written or skipped: those after it are all of this run.
    """

    def __init__(self, store: StateStore, losses: LostCommits, look_back: Callable[[range], RunRecord]) -> None:
        self._store = store
        self._losses = losses
        self._look_back = look_back
        self.written: int | None = None

    def place(self, row: StateRow, batch_id: int) -> tuple[StateRow, Placement]:
        """Say what to do with a batch.

        Args:
            row: under the newest claim.
            batch_id: Spark's id of the batch.

        Returns:
            The row, which has moved on where batches without rows lie between, or batches that a person has named; and
            the placement beside it.

        Raises:
            HaltError: a person has to decide.
            ConfigurationError: what was named as lost is not what is missing.
        """
        placed = _place_beside(row, batch_id)
        if isinstance(placed, Halt):
            row, placed = self._beyond_missing(row, batch_id, placed)
        if isinstance(placed, Halt) and placed.lacking:
            row = self._losses.pass_gap(row, batch_id, _halted(row, placed))
            placed = _place_beside(row, batch_id)
        if isinstance(placed, Halt):
            raise _halted(row, placed)
        return row, placed

    def _beyond_missing(self, row: StateRow, batch_id: int, halt: Halt) -> tuple[StateRow, Placement | Halt]:
        """Where only batches without rows are missing before this one, it is the next."""
        missing = missing_batches(status=RowStatus(row.status), row_batch_id=row.batch_id, batch_id=batch_id)
        # With a row older than what this driver has written, the database has lost something.
        if not missing or (self.written is not None and self.written != row.batch_id):
            return row, halt
        record = self._look_back(missing)
        if self.written is not None:
            record = replace(record, finished=frozenset(missing))
        placed = place_beyond(missing, record, halt)
        if isinstance(placed, Halt):
            return row, placed
        sink_log(__name__, row.transactional_id).info(
            "batches %d to %d were not handed over, and had no rows: batch %d is the next",
            missing[0],
            missing[-1],
            batch_id,
        )
        # Spark shows this in the present run only. Noted, it holds for the next one too.
        noted = self._store.take_empty_batch(
            row.transactional_id, row.generation, missing[-1], row.prepared_transaction_state
        )
        self.written = missing[-1]
        return noted, placed


def _place_beside(row: StateRow, batch_id: int) -> Placement | Halt:
    return place_batch(status=RowStatus(row.status), row_batch_id=row.batch_id, batch_id=batch_id)


def _halted(row: StateRow, halt: Halt) -> HaltError:
    return HaltError(
        transactional_id=row.transactional_id,
        cause=halt.cause,
        database_side=f"batch {row.batch_id}, {row.status}",
        kafka_side="nothing in doubt",
        reason=halt.reason,
        remedies=halt.remedies,
    )
