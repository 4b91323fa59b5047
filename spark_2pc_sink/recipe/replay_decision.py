"""The placement of a batch: its id and the state row decide whether it is run, skipped, resent, or refused.

Spark calls ``foreachBatch`` with ids 0, 1, 2, … of one query, and after a crash calls again with an id that it has
not recorded as finished. So the only valid ids are the row's own (a replay) and the one after it. Any other id means
that a checkpoint or a database was replaced, which cannot be repaired automatically.
"""

from __future__ import annotations

from enum import Enum

from spark_2pc_sink.errors import HaltCause
from spark_2pc_sink.ids import BatchRange
from spark_2pc_sink.recipe.remedies import drop
from spark_2pc_sink.recipe.resolve import Halt, RowStatus


class Placement(Enum):
    """What to do with a batch."""

    RUN = "write it to both sides"
    SKIP = "both sides have it already"
    RESEND = "the database has it; only the Kafka half is written"


_CHANGED = (
    "if transactional_id, state_schema, state_table or database is another than in this query's last run: change it "
    "back, the row is where it was"
)
_RESTORE = "restore the checkpoint, or the database, that belongs to the other one"
_NEW_QUERY = (
    "if it is lost: a new checkpoint, and a new query_name if the sink has one, with a source that begins after what "
    "both sides have (startingOffsets or the like), and adopt=True on the sink (once)"
)
_WRITE_AGAIN = (
    "to write everything again: empty topic and table first; then a new checkpoint, and a new query_name if the sink "
    "has one, and adopt=True on the sink (once)"
)
#: The choices if a query begins with batch 0 again: keep the data of both sides, or write everything again.
FROM_THE_START = (_NEW_QUERY, _WRITE_AGAIN)


def place_batch(*, status: RowStatus, row_batch_id: int | None, batch_id: int) -> Placement | Halt:
    """Decide what to do with a batch.

    Args:
        status: status of the claimed state row after recovery; never ``DECIDED``, which recovery settles.
        row_batch_id: the last batch in the row, None before the first.
        batch_id: the id that Spark passed, 0 or more.

    Returns:
        The placement, or why there is none: the id is neither a replay nor the next batch. No flag allows that, as it
        would allow the next such batch too. Batches that the row lacks are skipped by name (`recipe.lost_batches`); a
        checkpoint older than the row must be replaced by a new one.

    Raises:
        ValueError: the row is ``DECIDED``; run recovery first.
    """
    if status is RowStatus.DECIDED:
        message = "a decided row must be recovered before a batch is placed beside it"
        raise ValueError(message)
    if status is RowStatus.OWED:
        return _place_beside_owed(row_batch_id, batch_id)
    if row_batch_id is not None and batch_id == row_batch_id:
        return Placement.SKIP
    expected = 0 if row_batch_id is None else row_batch_id + 1
    if batch_id == expected:
        return Placement.RUN
    return _not_the_first(batch_id) if row_batch_id is None else _gap(row_batch_id, batch_id)


def place_by_hand(
    *, status: RowStatus, row_batch_id: int | None, batch_id: int, noted: bool
) -> Placement | Halt | None:
    """Place a batch whose id was given by a person: ids ascend, and may skip numbers.

    Args:
        status: status of the claimed state row after recovery; never ``DECIDED``, which recovery settles.
        row_batch_id: the last batch in the row, None before the first.
        batch_id: the id of the batch received, 0 or more.
        noted: the history has a batch of this id, before that of the row.

    Returns:
        The placement; a halt for an owed batch; None for an id that the row has passed and the history lacks: whether
        it was written is unknown.

    Raises:
        ValueError: the row is ``DECIDED``; run recovery first.
    """
    if status is RowStatus.DECIDED:
        message = "a decided row must be recovered before a batch is placed beside it"
        raise ValueError(message)
    if noted:
        return Placement.SKIP
    if status is RowStatus.OWED:
        return _place_beside_owed(row_batch_id, batch_id)
    if row_batch_id is None or batch_id > row_batch_id:
        return Placement.RUN
    return Placement.SKIP if batch_id == row_batch_id else None


def _not_the_first(batch_id: int) -> Halt:
    reason = f"the first batch is {batch_id}, and the state row knows none of the batches before it"
    remedies = (_CHANGED, _RESTORE, pass_over_by_name(0, batch_id))
    return Halt(HaltCause.NOT_THE_FIRST_BATCH, reason, remedies, lacking=True)


def _gap(row_batch_id: int, batch_id: int) -> Halt:
    reason = f"batch {batch_id} follows batch {row_batch_id} in the state row: it is neither its replay nor the next"
    if batch_id > row_batch_id:
        remedies = (_RESTORE, pass_over_by_name(row_batch_id + 1, batch_id))
        return Halt(HaltCause.GAP, f"{reason}; the row is older than the checkpoint", remedies, lacking=True)
    if batch_id == 0:
        restarted = (
            f"batch ids of this query start at 0 again, and the state row has batch {row_batch_id}: a full refresh of "
            "a pipeline, a new checkpoint under the same query_name, a checkpoint that was emptied, or an old one"
        )
        return Halt(HaltCause.BATCHES_RESTARTED, restarted, (_RESTORE, *FROM_THE_START))
    return Halt(HaltCause.GAP, f"{reason}; the checkpoint is older than the row", (_RESTORE, _NEW_QUERY))


def pass_over_by_name(first: int, batch_id: int) -> str:
    """The last resort: a person names the batches that this sink is not to write any more."""
    before, with_it = BatchRange(first, batch_id - 1), BatchRange(first, batch_id)
    return (
        f"adopt=True and accept_loss={str(before)!r} on the sink (once): what came before stays on both sides as it "
        f"is, and batch {batch_id} is written to both; accept_loss={str(with_it)!r} where both sides have batch "
        f"{batch_id} too, which is then skipped"
    )


def _place_beside_owed(row_batch_id: int | None, batch_id: int) -> Placement | Halt:
    if batch_id == row_batch_id:
        return Placement.RESEND
    owed = "a batch of another query" if row_batch_id is None else f"batch {row_batch_id}"
    return Halt(
        HaltCause.OTHER_BATCH_OWED,
        f"batch {batch_id} came, while Kafka is still owed {owed}",
        (_RESTORE, drop(row_batch_id)),
    )
