"""The placement of a batch beside the state row, where batches before it may be missing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from jdbc_state.sink_log import sink_log
from spark_2pc_sink.errors import ConfigurationError, HaltError
from spark_2pc_sink.recipe.handed_over import missing_batches, place_beyond
from spark_2pc_sink.recipe.replay_decision import Placement, place_batch, place_by_hand
from spark_2pc_sink.recipe.resolve import Halt, RowStatus

if TYPE_CHECKING:
    from collections.abc import Callable

    from jdbc_state import StateRow, StateStore
    from spark_2pc_sink.recipe.handed_over import RunRecord
    from spark_2pc_sink.recovery.lost_commits import LostCommits


#: All lines of a sink: each is some hundred bytes, and ``history_batches`` bounds them.
_LINES_MAX: Final = 2**31 - 1


class BatchPlacement:
    """Places the batches of one run of one query.

    Args:
        store: the state rows.
        losses: what a person has named as lost, and how to find out what is.
        look_back: what Spark shows of batches that did not come.
        explicit_batch_ids: a person gives the batches their ids, which then only have to ascend.

    Attributes:
        written: the last batch that this run has written or skipped: those after it are all of this run.
    """

    def __init__(
        self,
        store: StateStore,
        losses: LostCommits,
        look_back: Callable[[range], RunRecord],
        *,
        explicit_batch_ids: bool = False,
    ) -> None:
        self._store = store
        self._losses = losses
        self._look_back = look_back
        self._explicit_batch_ids = explicit_batch_ids
        self.written: int | None = None
        #: By its id what the history has of a batch; filled when the first one comes that the row has passed.
        self._lines: dict[int, StateRow] = {}

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
        if self._explicit_batch_ids:
            return row, self._place_by_hand(row, batch_id)
        placed = _place_beside(row, batch_id)
        if isinstance(placed, Halt):
            row, placed = self._beyond_missing(row, batch_id, placed)
        if isinstance(placed, Halt) and placed.lacking:
            row = self._losses.pass_gap(row, batch_id, _halted(row, placed))
            placed = _place_beside(row, batch_id)
        if isinstance(placed, Halt):
            raise _halted(row, placed)
        return row, placed

    def as_written(self, row: StateRow, batch_id: int) -> StateRow:
        """The row as a skipped batch has left it: its line in the history, where others were written since.

        Args:
            row: under the newest claim.
            batch_id: of a batch for which `place` has said ``SKIP``.
        """
        return row if row.batch_id == batch_id else self._lines[batch_id]

    def _place_by_hand(self, row: StateRow, batch_id: int) -> Placement:
        passed = row.batch_id is not None and batch_id < row.batch_id
        if passed and batch_id not in self._lines:
            # The newest line of a batch, which comes first, says what became of it.
            for line in reversed(self._store.read_history(row.transactional_id, last=_LINES_MAX)):
                if line.row.batch_id is not None:
                    self._lines[line.row.batch_id] = line.row
        noted = passed and batch_id in self._lines
        placed = place_by_hand(status=RowStatus(row.status), row_batch_id=row.batch_id, batch_id=batch_id, noted=noted)
        if isinstance(placed, Halt):
            raise _halted(row, placed)
        if placed is None:
            raise ConfigurationError(
                option="batch_id",
                value=batch_id,
                rule=f"ids ascend: the last one was {row.batch_id}, and the history has no batch {batch_id}",
                remedy=f"if it was never written, give it a number above {row.batch_id}; if the history is too short "
                "for it (history_batches), leave it out",
            )
        return placed

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
        database_side=f"the state row of {row.transactional_id!r} has no batch yet"
        if row.batch_id is None
        else f"batch {row.batch_id}, {row.status}",
        kafka_side="nothing in doubt",
        reason=halt.reason,
        remedies=halt.remedies,
    )
