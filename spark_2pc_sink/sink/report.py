"""The report of a batch that both sides have, and what its tables have made of the rows that were given to them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from spark_2pc_sink.plural import counted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_2pc_sink.recipe.replay_decision import Placement


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


@dataclass(frozen=True, kw_only=True)
class BatchReport:
    """The result of a batch, reported when both sides have it.

    Attributes:
        transactional_id: the sink's id.
        batch_id: Spark's id.
        placement: ``RUN`` as written, ``SKIP`` as done before, or ``RESEND`` as written to Kafka only.
        row_count: rows for the table, 0 when skipped; with upsert_order_by also those that others supersede.
        record_count: records in Kafka, with those of the dead-letter topic, 0 when skipped; fewer than rows where
            superseded ones are left out.
        outputs: rows or records of each output, by its text, such as ``Rows('orders')``, and of the dead-letter topic
            as ``DeadLetters('bad-orders')``; empty when skipped.
        rows_deleted: rows that the table had, and that ``delete_when`` has removed.
        rows_left_out: rows of which the table has taken nothing, as it was told: those that others of their key in the
            batch supersede, those whose key was there already with ``mode="insert_ignore"``, and those in whose favour
            ``upsert_where`` or late rows have not decided.
        record_bytes: of the record batches that were sent, compressed; 0 when skipped.
        bad_rows: rows that went to the dead letters, and to no other place; 0 when skipped.
        attempts: how many transactions were begun for it in this call.
        prepared: ``producerId:epoch`` of the Kafka transaction that has the records; '' when there are none.
        seconds: what the call took; without the recovery of a start, with those after a failed attempt.
        step_seconds: the same by steps, as in ``{"produce": 0.8, …}`` with the names of `recipe.steps.Step` in
            lower case. Each is the time since the step that was reached before it; so ``recover`` has, where an attempt
            has failed, all of it since its last step.
        source_lag: records that Kafka sources of the query had, when Spark planned the batch before, beyond what it
            read for that. None where Spark does not show it: for the first batch of a run, for other sources, for a
            backfill, and with ``query_name`` on Spark Connect. Markers that end transactions are counted as records.
        event_delay_s: how old the newest event of the batch before was when the query had finished it. None as above,
            and for a query without a watermark.
    """

    transactional_id: str
    batch_id: int
    placement: Placement
    row_count: int = 0
    record_count: int = 0
    rows_deleted: int = 0
    rows_left_out: int = 0
    record_bytes: int = 0
    bad_rows: int = 0
    attempts: int = 0
    prepared: str = ""
    seconds: float = 0.0
    step_seconds: Mapping[str, float] = field(default_factory=dict)
    outputs: Mapping[str, int] = field(default_factory=dict)
    source_lag: int | None = None
    event_delay_s: float | None = None

    def __str__(self) -> str:
        """One line for a log."""
        steps = ", ".join(f"{name} {seconds:.3f}" for name, seconds in self.step_seconds.items())
        deleted = f" ({self.rows_deleted} deleted)" if self.rows_deleted else ""
        left_out = f" ({self.rows_left_out} left out)" if self.rows_left_out else ""
        bad = f" ({counted(self.bad_rows, 'bad row')})" if self.bad_rows else ""
        return (
            f"{self.transactional_id}: batch {self.batch_id}, {self.placement.name.lower()}: "
            f"{counted(self.row_count, 'row')}{deleted}{left_out}{bad}, "
            f"{counted(self.record_count, 'record')}, {counted(self.record_bytes, 'byte')}, "
            f"{counted(self.attempts, 'transaction')}, the last "
            f"{self.prepared or 'none'}, {self.seconds:.3f} s ({steps})"
        )
