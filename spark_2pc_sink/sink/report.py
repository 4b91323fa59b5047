"""The report of a batch that both sides have, and the tables' counts of its rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from spark_2pc_sink.plural import counted
from spark_2pc_sink.recipe.placement import Placement


@dataclass(frozen=True, kw_only=True)
class WrittenRows:
    """Counts of rows; those of several tables can be added."""

    #: All rows of the batch, including those that delete a row.
    given: int
    written: int
    #: Existing rows removed by ``delete_when``.
    deleted: int = 0
    #: Rows that were not applied to the table, as configured: other rows of their key in the batch had a greater order,
    #: their key already existed (``insert_ignore``), or the existing row stays (``upsert_where``, late rows).
    left_out: int = 0

    def __add__(self, other: WrittenRows) -> WrittenRows:
        return WrittenRows(
            given=self.given + other.given,
            written=self.written + other.written,
            deleted=self.deleted + other.deleted,
            left_out=self.left_out + other.left_out,
        )


#: Counts of an attempt without work for the table.
NOTHING_WRITTEN: Final = WrittenRows(given=0, written=0)


@dataclass(frozen=True, kw_only=True)
class BatchReport:
    """The result of a batch, reported when both sides have it.

    Attributes:
        transactional_id: the sink's id.
        batch_id: Spark's id.
        placement: ``RUN`` if written, ``SKIP`` if already done, or ``RESEND`` if written to Kafka only.
        row_count: rows for the table, 0 when skipped; with upsert_order_by including superseded ones.
        record_count: records in Kafka, including those of the dead-letter topic, 0 when skipped; fewer than rows if
            superseded ones are left out.
        outputs: rows or records of each output, by its text, such as ``Rows('orders')``, and of the dead-letter topic
            as ``DeadLetters('bad-orders')``; empty when skipped.
        rows_deleted: existing rows removed by ``delete_when``.
        rows_left_out: rows that were not applied to the table, as configured: superseded by others of their key in the
            batch, with an existing key under ``mode="insert_ignore"``, or rejected in favour of the existing row by
            ``upsert_where`` or late rows.
        record_bytes: compressed bytes of the record batches sent; 0 when skipped.
        bad_rows: rows that went only to the dead letters; 0 when skipped.
        attempts: number of transactions begun for it in this call.
        prepared: ``producerId:epoch`` of the Kafka transaction that contains the records; '' when there are none.
        seconds: duration of the call; without recovery at a start, but including recovery after a failed attempt.
        step_seconds: the same by steps, as in ``{"produce": 0.8, …}`` with the names of `recipe.steps.Step` in
            lower case. Each is the time since the previously reached step; so after a failed attempt ``recover``
            includes all of it since its last step.
        source_lag: records in the query's Kafka sources, when Spark planned the previous batch, beyond what that batch
            read. None if Spark does not show it: for the first batch of a run, for other sources, for a backfill, and
            with ``query_name`` on Spark Connect. Transaction markers are counted as records.
        event_delay_s: age of the newest event of the previous batch when the query had finished it. None as above, and
            for a query without a watermark.
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
