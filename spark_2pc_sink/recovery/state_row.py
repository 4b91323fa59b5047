"""State rows as recovery reads them: the part that decides, and a line for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_2pc_sink.ids import PreparedTxnState
from spark_2pc_sink.recipe.resolve import RowStatus, RowView

if TYPE_CHECKING:
    from jdbc_state import StateRow


def view_of(row: StateRow) -> RowView:
    """The part of a state row that `resolve` decides by."""
    return RowView(
        status=RowStatus(row.status),
        prepared=PreparedTxnState(row.prepared_transaction_state),
        settled=PreparedTxnState(row.settled),
        cluster_id=row.cluster_id,
    )


def shown(row: StateRow) -> str:
    """The row in one line: its batch, its status and its pairs."""
    batch = "no batch" if row.batch_id is None else f"batch {row.batch_id}"
    return f"{batch}, {view_of(row)}"
