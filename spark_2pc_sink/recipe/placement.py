"""The placement of a batch: its id and the state row decide whether it is run, skipped, resent, or refused.

Spark calls ``foreachBatch`` with ids 0, 1, 2, … of one query, and after a crash calls again with an id that it has
not recorded as finished. So the only valid ids are the row's own (a replay) and the one after it. Any other id means
that a checkpoint or a database was replaced, which cannot be repaired automatically; or that a function has not called
the sink for batches without rows, which `place_beyond` decides from Spark's report.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from spark_2pc_sink.choices import Facts, HaltCause
from spark_2pc_sink.choices.choice import Fact
from spark_2pc_sink.ids import BatchRange
from spark_2pc_sink.recipe.resolve import Halt, RowStatus


class Placement(Enum):
    """What to do with a batch."""

    RUN = "write it to both sides"
    SKIP = "both sides have it already"
    RESEND = "the database has it; only the Kafka half is written"


def place_batch(*, status: RowStatus, row_batch_id: int | None, batch_id: int) -> Placement | Halt:
    """Decide what to do with a batch, by the claimed row after recovery and the id that Spark passed.

    Returns:
        The placement, or why there is none: the id is neither a replay nor the next batch. No flag allows that, as it
        would allow the next such batch too. Batches that the row lacks are skipped by name (`recipe.lost_batches`); a
        checkpoint older than the row must be replaced by a new one.
    """
    assert status is not RowStatus.DECIDED, "a decided row must be recovered before a batch is placed beside it"
    if status is RowStatus.OWED:
        return _place_with_owed(row_batch_id, batch_id)
    if row_batch_id is not None and batch_id == row_batch_id:
        return Placement.SKIP
    expected = 0 if row_batch_id is None else row_batch_id + 1
    if batch_id == expected:
        return Placement.RUN
    if row_batch_id is not None:
        return _gap(row_batch_id, batch_id)
    reason = f"the first batch is {batch_id}, and the state row has none of the batches before it"
    return Halt(HaltCause.NOT_THE_FIRST_BATCH, reason, _passing_over(0, batch_id), lacking=True)


def place_explicit_id(
    *, status: RowStatus, row_batch_id: int | None, batch_id: int, noted: bool
) -> Placement | Halt | None:
    """Place a person's batch id: ascending, perhaps with gaps. None: the row is past it, and the history lacks it."""
    assert status is not RowStatus.DECIDED, "a decided row must be recovered before a batch is placed beside it"
    if noted:
        return Placement.SKIP
    if status is RowStatus.OWED:
        return _place_with_owed(row_batch_id, batch_id)
    if row_batch_id is None or batch_id > row_batch_id:
        return Placement.RUN
    return Placement.SKIP if batch_id == row_batch_id else None


def _gap(row_batch_id: int, batch_id: int) -> Halt:
    reason = f"batch {batch_id} follows batch {row_batch_id} in the state row: it is neither its replay nor the next"
    if batch_id > row_batch_id:
        facts = _passing_over(row_batch_id + 1, batch_id, "row older")
        return Halt(HaltCause.GAP, f"{reason}; the row is older than the checkpoint", facts, lacking=True)
    if batch_id == 0:
        restarted = (
            f"batch ids of this query start at 0 again, and the state row has batch {row_batch_id}: a full refresh of "
            "a pipeline, a new checkpoint under the same query_name, a checkpoint that was emptied, or an old one"
        )
        return Halt(HaltCause.BATCHES_RESTARTED, restarted)
    facts = Facts(known=frozenset({"checkpoint older"}))
    return Halt(HaltCause.GAP, f"{reason}; the checkpoint is older than the row", facts)


def _passing_over(first: int, batch_id: int, *known: Fact) -> Facts:
    """The last resort: a person names the batches that this sink is not to write any more."""
    before, with_it = BatchRange(first, batch_id - 1), BatchRange(first, batch_id)
    more = (
        f" (batch {batch_id} is then written to both sides; accept_loss={str(with_it)!r} if both sides have batch "
        f"{batch_id} too, which is then skipped)"
    )
    return Facts(known=frozenset(known), batches=str(before), more={"pass_over": more})


def _place_with_owed(row_batch_id: int | None, batch_id: int) -> Placement | Halt:
    if batch_id == row_batch_id:
        return Placement.RESEND
    owed = "a batch of another query" if row_batch_id is None else f"batch {row_batch_id}"
    reason = f"batch {batch_id} was received, while Kafka is still owed {owed}"
    return Halt(HaltCause.OTHER_BATCH_OWED, reason, Facts(batch=row_batch_id))


@dataclass(frozen=True)
class RunRecord:
    """Spark's report on batches for which the sink was not called."""

    finished: frozenset[int] = frozenset()
    #: Those of them that really had no rows, not only none that were read.
    empty: frozenset[int] = frozenset()


#: Used if Spark reports nothing.
NOTHING_SHOWN: Final = RunRecord()


def missing_batches(*, status: RowStatus, row_batch_id: int | None, batch_id: int) -> range:
    """The batches between that of the row and the one received; empty for an owed batch or a replay."""
    first = 0 if row_batch_id is None else row_batch_id + 1
    return range(first, first if status is RowStatus.OWED else max(first, batch_id))


def place_beyond(missing: range, record: RunRecord, halt: Halt) -> Placement | Halt:
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
        f"your function did not call the sink for batch {doubtful[0]}, or continued after an error that the sink "
        "raised in it. Spark has finished that batch in this run, and does not show that it had no rows",
        _passing_over(missing[0], batch_id),
        lacking=True,
    )
