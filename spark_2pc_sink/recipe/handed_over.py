"""Skipped batches: the job's function did not call the sink. They are allowed if they had no rows, otherwise a halt.

Spark counts every batch, even without rows, and functions often skip those. Spark reports whether such a batch had
rows; this module decides from that report.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from spark_2pc_sink.errors import HaltCause
from spark_2pc_sink.recipe.replay_decision import Placement, pass_over_by_name
from spark_2pc_sink.recipe.resolve import Halt, RowStatus


@dataclass(frozen=True)
class RunRecord:
    """Spark's report on batches for which the sink was not called.

    Attributes:
        finished: batches that the current run of the query has finished.
        empty: those of them that really had no rows, not only none that were read.
    """

    finished: frozenset[int] = frozenset()
    empty: frozenset[int] = frozenset()


#: Used if Spark reports nothing.
NOTHING_SHOWN: Final = RunRecord()


def missing_batches(*, status: RowStatus, row_batch_id: int | None, batch_id: int) -> range:
    """The batches between that of the row and the one received; empty for an owed batch or a replay.

    Args:
        status: status of the state row.
        row_batch_id: the last batch in the row, None before the first.
        batch_id: the batch received.
    """
    first = 0 if row_batch_id is None else row_batch_id + 1
    return range(first, first if status is RowStatus.OWED else max(first, batch_id))


def place_beyond(missing: range, record: RunRecord, halt: Halt) -> Placement | Halt:
    """Decide what to do with a batch that follows missing ones.

    Args:
        missing: result of `missing_batches`, at least one.
        record: Spark's report on them.
        halt: why the batch cannot be placed, according to the state row.
    """
    batch_id = missing.stop
    doubtful = [batch for batch in missing if batch not in record.empty]
    if not doubtful:
        return Placement.RUN
    if not record.finished.issuperset(missing):
        # A restored database looks the same, and earlier runs were not observed.
        earlier = f"{halt.reason}; or your function did not call the sink for batch {doubtful[0]} in an earlier run"
        return replace(halt, reason=earlier)
    return Halt(
        HaltCause.NOT_HANDED_OVER,
        f"your function did not call the sink for batch {doubtful[0]}, or went on after an error that the sink raised "
        "in it. Spark has finished that batch in this run, and does not show that it had no rows",
        (
            "call the sink for every batch, as it takes empty ones, and let its errors end the query",
            f"if the batches had no rows, or may be left out on both sides: {pass_over_by_name(missing[0], batch_id)}",
        ),
        lacking=True,
    )
