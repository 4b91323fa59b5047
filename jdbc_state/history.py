"""History of a state row: a copy after each batch, written in the statement that changed the row.

A line is a copy of the row under the row's ``decision`` number. Operations that add to the batches (a decision, a batch
without records, an adoption) take the next number; the outcome of a batch is noted in its own line. So the newest line
of a sink always equals its row, and a lost row can be rebuilt from it (docs/design/state.md). Counter-example without:
the driver is killed between the decision and EndTxn, a person deletes the row, and an adopting driver aborts the
transaction that has no row, and writes the batch a second time into a table that has it.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import CTE, ColumnElement, Select, delete, literal, select
from sqlalchemy.dialects.postgresql import insert

from jdbc_state.schema import FIGURES, StateTables

CLAIMED: Final = "claimed"
ADOPTED: Final = "adopted"
DECIDED: Final = "decided"
RESENT: Final = "resent"
EMPTY: Final = "empty"
PASSED: Final = "passed"
ACCEPTED: Final = "accepted"
NOTED: Final = "noted"
#: Events that write a line.
EVENTS: Final = {
    CLAIMED: "the first claim of a row without a line: the row is new, older than the history, or was restored",
    ADOPTED: "an operator gave the row to another query or Kafka cluster",
    DECIDED: "a batch was decided: its line was written in the transaction with its rows",
    RESENT: "a batch that Kafka had lost was decided again, with another producer id and epoch",
    EMPTY: "a batch without records",
    PASSED: "an operator let the sink continue without batches that Kafka has and this database lost",
    ACCEPTED: "an operator found the rows of an open transaction in the table, after row and history were lost",
    NOTED: "the outcome of a batch was noted, and its line was missing",
}
#: The store's operations that add a line, and its event; ``decide`` is a resend if Kafka lacks the batch.
EVENT_OF: Final = {"decide": DECIDED, "take_empty_batch": EMPTY, "accept_open": ACCEPTED, "accept_loss": PASSED}
#: Lines are trimmed when there are a tenth more than the limit: not with every batch, and never many at a time.
_TRIM_SHARE: Final = 10


def trim_step(keep: int) -> int:
    """Number of lines written per trim, for a limit of ``keep``."""
    return max(1, keep // _TRIM_SHARE)


def with_line(
    row: CTE,
    tables: StateTables,
    *,
    event: str | ColumnElement[Any],
    keep: int | None = None,
    figures: ColumnElement[Any] | None = None,
) -> Select[Any]:
    """A statement that returns a changed row and also writes its line; if there is no row it writes none.

    It leaves ``keep`` lines; None trims none. Without ``figures`` an existing line keeps its own.
    """
    history = tables.history
    names = [column.name for column in tables.state.columns]
    event = literal(event) if isinstance(event, str) else event
    values = {name: row.c[name] for name in names} | ({} if figures is None else {FIGURES: figures})
    # Without the other columns' defaults: a history without the figures column lacks these.
    added = insert(history).from_select([*values, "event"], select(*values.values(), event), include_defaults=False)
    key = set(history.primary_key.columns.keys())
    noted = added.on_conflict_do_update(
        index_elements=list(history.primary_key.columns),
        set_={name: added.excluded[name] for name in values if name not in key},
    )
    written = select(row).add_cte(noted.cte("noted"))
    if keep is None:
        return written
    number = select(row.c.decision).scalar_subquery()
    trimmed = delete(history).where(
        history.c.transactional_id == select(row.c.transactional_id).scalar_subquery(),
        history.c.decision <= number - keep,
        number % trim_step(keep) == 0,
    )
    return written.add_cte(trimmed.cte("trimmed"))


def without_lines(row: CTE, tables: StateTables) -> Select[Any]:
    history = tables.history
    mine = history.c.transactional_id == select(row.c.transactional_id).scalar_subquery()
    return select(row).add_cte(delete(history).where(mine).cte("forgotten"))
