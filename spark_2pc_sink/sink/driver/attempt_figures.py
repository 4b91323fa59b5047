"""What the newest attempt at a batch has written, for the report of the batch and for its line in the history."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from spark_2pc_sink.sink.report import BatchReport
from spark_2pc_sink.sink.written_rows import NOTHING_WRITTEN, WrittenRows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jdbc_state import StateRow
    from spark_2pc_sink.recipe.replay_decision import Placement
    from spark_2pc_sink.sink.contract.batch_work import ProducedBatch


@dataclass(frozen=True)
class AttemptFigures:
    """Figures of one attempt.

    Attributes:
        produced: the outcome of its tasks; None before they have ended.
        written: what the tables have made of its rows.
    """

    produced: ProducedBatch | None = None
    written: WrittenRows = NOTHING_WRITTEN

    def report(self, row: StateRow, batch_id: int, placement: Placement, *, attempts: int) -> BatchReport:
        """The report of the batch.

        Args:
            row: as the batch has left it.
            batch_id: Spark's id.
            placement: of the batch.
            attempts: transactions begun, 0 for a batch that was skipped.
        """
        report = BatchReport(
            transactional_id=row.transactional_id,
            batch_id=batch_id,
            placement=placement,
            row_count=row.row_count if attempts else 0,
            record_count=row.record_count if attempts else 0,
            rows_deleted=self.written.deleted,
            rows_left_out=self.written.left_out,
            attempts=attempts,
            prepared=row.prepared_transaction_state if row.record_count else "",
        )
        if self.produced is None:
            return report
        counted = self.produced
        return replace(report, record_bytes=counted.record_bytes, outputs=counted.outputs, bad_rows=counted.bad_rows)

    def for_history(self, step_seconds: Mapping[str, float]) -> dict[str, Any]:
        """For the batch's line in the history.

        Args:
            step_seconds: how long each step has taken; written to the millisecond.
        """
        steps = {name: round(seconds, 3) for name, seconds in step_seconds.items()}
        times = {"seconds": round(sum(steps.values()), 3), "step_seconds": steps} if steps else {}
        if self.produced is None:
            return {"record_bytes": 0, **times}
        bad_rows = {"bad_rows": self.produced.bad_rows} if self.produced.bad_rows else {}
        outputs = {"outputs": dict(self.produced.outputs)} if self.produced.outputs else {}
        return {"record_bytes": self.produced.record_bytes, **outputs, **bad_rows, **times}
