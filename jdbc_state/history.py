"""Statements that read state rows, and those for their history: a copy after each batch.

A line is a copy of the row under the row's ``decision`` number, written in the statement that changed the row.
Operations that add to the batches (a decision, a batch without records, an adoption) take the next number; the outcome
of a batch is noted in its own line. So the newest line of a sink always equals its row, and a lost row can be rebuilt
from it (docs/design/state.md). Counter-example without: the driver is killed between the decision and EndTxn, a person
deletes the row, and an adopting driver aborts the transaction that has no row, and writes the batch a second time into
a table that has it.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB, insert

from jdbc_state.model import HistoryLine, StateRow
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
    row: sa.CTE,
    tables: StateTables,
    *,
    event: str | sa.ColumnElement[Any],
    keep: int | None = None,
    figures: sa.ColumnElement[Any] | None = None,
) -> sa.Select[Any]:
    """Return a changed row, if any, and write its line; ``keep`` are left (None: all). None keeps a line's figures."""
    history = tables.history
    names = [column.name for column in tables.state.columns]
    event = sa.literal(event) if isinstance(event, str) else event
    values = {name: row.c[name] for name in names} | ({} if figures is None else {FIGURES: figures})
    # Without the other columns' defaults: a history without the figures column lacks these.
    added = insert(history).from_select([*values, "event"], sa.select(*values.values(), event), include_defaults=False)
    key = set(history.primary_key.columns.keys())
    noted = added.on_conflict_do_update(
        index_elements=list(history.primary_key.columns),
        set_={name: added.excluded[name] for name in values if name not in key},
    )
    written = sa.select(row).add_cte(noted.cte("noted"))
    if keep is None:
        return written
    number = sa.select(row.c.decision).scalar_subquery()
    trimmed = sa.delete(history).where(
        history.c.transactional_id == sa.select(row.c.transactional_id).scalar_subquery(),
        history.c.decision <= number - keep,
        number % trim_step(keep) == 0,
    )
    return written.add_cte(trimmed.cte("trimmed"))


def all_rows(table: sa.Table, transactional_id: str | None = None) -> sa.Select[Any]:
    """Every row of a table by transactional id, or those of one sink; for :func:`row_of`."""
    found = sa.select(*row_columns(table)).order_by(table.c.transactional_id)
    return found if transactional_id is None else found.where(table.c.transactional_id == transactional_id)


def lost_rows(tables: StateTables, transactional_id: str | None = None, *, state_exists: bool = True) -> sa.Select[Any]:
    """The newest line of each sink that has lines and no row; for :func:`row_of`."""
    history, state, others = tables.history, tables.state, tables.history.alias()
    newest = sa.select(sa.func.max(others.c.decision)).where(others.c.transactional_id == history.c.transactional_id)
    lines = all_rows(history, transactional_id).where(history.c.decision == newest.scalar_subquery())
    row = sa.select(state.c.transactional_id).where(state.c.transactional_id == history.c.transactional_id)
    return lines.where(~row.exists()) if state_exists else lines


def newest_lines(tables: StateTables, transactional_id: str | None, *, last: int) -> sa.Select[Any]:
    """The newest lines, the newest first: of one sink by number, of all by their last change; for :func:`line_of`."""
    history = tables.history
    # The history may lack the column, because no job of this version has run yet.
    noted = sa.func.to_jsonb(history.table_valued()).op("->")(FIGURES)
    figures = sa.func.coalesce(noted, sa.func.jsonb_build_object(), type_=JSONB).label(FIGURES)
    lines = sa.select(history.c.event, figures, *row_columns(history)).limit(last)
    if transactional_id is None:
        return lines.order_by(_changed_at(history).desc())
    return lines.where(history.c.transactional_id == transactional_id).order_by(history.c.decision.desc())


def row_columns(source: sa.FromClause) -> tuple[sa.ColumnElement[Any], ...]:
    """Columns for :func:`row_of`: the row's columns, and its ages by the database's clock."""
    ages = {"age_s": _changed_at(source), "decided_age_s": source.c.decided_at}
    return (
        *(source.c[each.name] for each in fields(StateRow) if each.name in source.c),
        *(sa.func.extract("epoch", sa.func.clock_timestamp() - since).label(name) for name, since in ages.items()),
    )


def row_of(answer: Any) -> StateRow:
    """A StateRow from SQLAlchemy's row with :func:`row_columns`; other columns are ignored."""
    found = answer._mapping  # noqa: SLF001 - SQLAlchemy's public name, underscored so as not to hide a column
    values = {each.name: found[each.name] for each in fields(StateRow) if each.name in found}
    values["age_s"] = float(values["age_s"])
    values["decided_age_s"] = None if values["decided_age_s"] is None else float(values["decided_age_s"])
    values["kafka_offsets"] = {name: (first, last) for name, (first, last) in values["kafka_offsets"].items()}
    return StateRow(**values)


def line_of(answer: Any) -> HistoryLine:
    return HistoryLine(answer.event, row_of(answer), answer.figures)


def read_row(
    connection: sa.Connection, state: sa.Table, transactional_id: str, *, lock: bool = False
) -> StateRow | None:
    found = all_rows(state, transactional_id)
    answer = connection.execute(found.with_for_update() if lock else found).one_or_none()
    return None if answer is None else row_of(answer)


def _changed_at(row: sa.FromClause) -> sa.ColumnElement[Any]:
    return sa.func.greatest(row.c.claimed_at, row.c.decided_at, row.c.settled_at)
