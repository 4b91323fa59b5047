"""The placement of a batch relative to the state row, and the check that a replay is the batch that both sides have."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from jdbc_state import StateRow, StateStore
from jdbc_state.sink_log import sink_log
from spark_2pc_sink.choices import Facts, HaltCause, HaltError
from spark_2pc_sink.options.settings import refused
from spark_2pc_sink.recipe.placement import Placement, missing_batches, place_batch, place_beyond, place_explicit_id
from spark_2pc_sink.recipe.resolve import Halt, RowStatus
from spark_2pc_sink.recovery.diagnosis import LostCommits
from spark_2pc_sink.sink.driver.batch_values import Replay, RunOfQuery


def check_resend(row: StateRow, replay: Replay, *, accept_replay: int | None) -> str:
    """A resend must be the batch that the database has; returns what a person has accepted, '' if it is the same."""
    return _check(
        row,
        replay,
        accept_replay,
        accepted=f"sends batch {row.batch_id} to Kafka as it is now",
        cause=HaltCause.RESEND_DIFFERS,
        kafka_side=f"its records were aborted there, and what Spark replays now is {replay}",
        reason="the replay of the owed batch differs from the batch in the database",
        facts=Facts(batch=row.batch_id),
    )


def check_skip(row: StateRow, replay: Replay, *, accept_replay: int | None) -> str:
    """A skipped batch must be the one that both sides have; otherwise rows on neither side would be lost silently.

    Spark reuses a batch id if its checkpoint was set back by one batch, possibly with different rows. A job may call
    the sink twice for one batch, with a part of the rows each time. And rows that both sides have may be replayed
    differently: the sink's expressions were changed while it was down, or they depend on the order in which Spark
    processes rows, as first(), collect_list() and floating-point sums do.
    """
    return _check(
        row,
        replay,
        accept_replay,
        accepted=f"leaves out batch {row.batch_id} as it is now",
        cause=HaltCause.REPLAY_DIFFERS,
        kafka_side=f"it has the same batch, and what Spark has under this id now is {replay}",
        reason="both sides have a batch of this id, and this one is different: the checkpoint was set "
        "back or emptied (as by a full refresh), the source or an expression has changed, rows depend on the order in "
        "which Spark meets them, or the sink was called twice for one batch",
        facts=Facts(batch=row.batch_id, known=frozenset({"first batch"}) if row.batch_id == 0 else frozenset()),
    )


def _check(row: StateRow, replay: Replay, accept_replay: int | None, *, accepted: str, **halt: Any) -> str:
    """Accept the batch of the row, and with a warning one that a person has named; halt at any other."""
    recorded = Replay(row.record_count, row.digest)
    # An empty digest of records was accepted by a person, so any replay passes.
    if replay == recorded or (recorded.digest == "" and recorded.record_count > 0):
        return ""
    if accept_replay is None or accept_replay != row.batch_id:
        database_side = f"batch {row.batch_id} with {recorded}"
        raise HaltError(transactional_id=row.transactional_id, database_side=database_side, **halt)
    did = f"accept_replay={row.batch_id} {accepted}, with {replay}; the database has it with {recorded}"
    sink_log(__name__, row.transactional_id).warning("%s", did)
    return did


#: All history lines of a sink: each is some hundred bytes, and ``history_batches`` bounds them.
_LINES_MAX: Final = 2**31 - 1


class BatchPlacement:
    """Places the batches of one run of one query."""

    def __init__(self, store: StateStore, losses: LostCommits, run: RunOfQuery) -> None:
        self._store = store
        self._losses = losses
        self._run = run
        #: Last batch that this run has written or skipped: all later ones belong to this run.
        self.written: int | None = None
        #: The history of batches by id; loaded at the first batch that the row has passed.
        self._lines: dict[int, StateRow] = {}

    def place(self, row: StateRow, batch_id: int) -> tuple[StateRow, Placement]:
        """Decide how to process a batch; a HaltError if a person has to decide.

        Returns the row, advanced past batches in between that have no rows or that a person has named, and the
        placement relative to it. A ConfigurationError if the named losses are not the missing batches.
        """
        if self._run.explicit_batch_ids:
            return row, self._place_explicit_id(row, batch_id)
        placed = _placed(row, batch_id)
        if isinstance(placed, Halt):
            row, placed = self._beyond_missing(row, batch_id, placed)
        if isinstance(placed, Halt) and placed.lacking:
            row = self._losses.pass_gap(row, batch_id, _halted(row, placed))
            placed = _placed(row, batch_id)
        if isinstance(placed, Halt):
            raise _halted(row, placed)
        return row, placed

    def as_written(self, row: StateRow, batch_id: int) -> StateRow:
        """The row as a skipped batch left it: its history line, if later batches were written."""
        return row if row.batch_id == batch_id else self._lines[batch_id]

    def _place_explicit_id(self, row: StateRow, batch_id: int) -> Placement:
        passed = row.batch_id is not None and batch_id < row.batch_id
        if passed and batch_id not in self._lines:
            # The newest line of a batch comes first and has its final state.
            for line in reversed(self._store.read_history(row.transactional_id, last=_LINES_MAX)):
                if line.row.batch_id is not None:
                    self._lines[line.row.batch_id] = line.row
        noted = passed and batch_id in self._lines
        status = RowStatus(row.status)
        placed = place_explicit_id(status=status, row_batch_id=row.batch_id, batch_id=batch_id, noted=noted)
        if isinstance(placed, Halt):
            raise _halted(row, placed)
        if placed is None:
            rule = f"ids must ascend: the last one was {row.batch_id}, and the history has no batch {batch_id}"
            remedy = (
                f"if it was never written, give it a number above {row.batch_id}; if the history is too short "
                "for it (history_batches), leave it out"
            )
            raise refused("batch_id", batch_id, rule, remedy)
        return placed

    def _beyond_missing(self, row: StateRow, batch_id: int, halt: Halt) -> tuple[StateRow, Placement | Halt]:
        """If only batches without rows are missing before this one, it is the next."""
        missing = missing_batches(status=RowStatus(row.status), row_batch_id=row.batch_id, batch_id=batch_id)
        # With a row older than what this driver has written, the database has lost data.
        if not missing or (self.written is not None and self.written != row.batch_id):
            return row, halt
        record = self._run.skipped_batches(missing)
        if self.written is not None:
            record = replace(record, finished=frozenset(missing))
        placed = place_beyond(missing, record, halt)
        if isinstance(placed, Halt):
            return row, placed
        sink_log(__name__, row.transactional_id).info(
            "batches %d to %d did not reach the sink, and had no rows: batch %d is the next",
            missing[0],
            missing[-1],
            batch_id,
        )
        # Spark shows this in the present run only. Recorded, it holds for the next one too.
        noted = self._store.take_empty_batch(
            row.transactional_id, row.generation, missing[-1], row.prepared_transaction_state
        )
        self.written = missing[-1]
        return noted, placed


def _placed(row: StateRow, batch_id: int) -> Placement | Halt:
    return place_batch(status=RowStatus(row.status), row_batch_id=row.batch_id, batch_id=batch_id)


def _halted(row: StateRow, halt: Halt) -> HaltError:
    database_side = f"batch {row.batch_id}, {row.status}"
    if row.batch_id is None:
        database_side = f"the state row of {row.transactional_id!r} has no batch yet"
    return HaltError(
        transactional_id=row.transactional_id,
        cause=halt.cause,
        database_side=database_side,
        kafka_side="nothing in doubt",
        reason=halt.reason,
        facts=halt.facts,
    )
