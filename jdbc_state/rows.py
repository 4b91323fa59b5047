"""Statements that read state rows and lines of their history, and what they return."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from sqlalchemy import ColumnElement, Connection, FromClause, Select, Table, func, select
from sqlalchemy.dialects.postgresql import JSONB

from jdbc_state.model import HistoryLine, StateRow
from jdbc_state.schema import FIGURES, StateTables


def all_rows(table: Table, transactional_id: str | None = None) -> Select[Any]:
    """Every row of a table by transactional id, or those of one sink; for :func:`row_of`."""
    found = select(*row_columns(table)).order_by(table.c.transactional_id)
    return found if transactional_id is None else found.where(table.c.transactional_id == transactional_id)


def lost_rows(tables: StateTables, transactional_id: str | None = None, *, state_exists: bool = True) -> Select[Any]:
    """The newest line of each sink that has lines and no row; for :func:`row_of`."""
    history, state, others = tables.history, tables.state, tables.history.alias()
    newest = select(func.max(others.c.decision)).where(others.c.transactional_id == history.c.transactional_id)
    lines = all_rows(history, transactional_id).where(history.c.decision == newest.scalar_subquery())
    row = select(state.c.transactional_id).where(state.c.transactional_id == history.c.transactional_id)
    return lines.where(~row.exists()) if state_exists else lines


def newest_lines(tables: StateTables, transactional_id: str | None, *, last: int) -> Select[Any]:
    """The newest lines, the newest first: of one sink by number, of all by their last change; for :func:`line_of`."""
    history = tables.history
    # The history may lack the column, because no job of this version has run yet.
    noted = func.to_jsonb(history.table_valued()).op("->")(FIGURES)
    figures = func.coalesce(noted, func.jsonb_build_object(), type_=JSONB).label(FIGURES)
    lines = select(history.c.event, figures, *row_columns(history)).limit(last)
    if transactional_id is None:
        return lines.order_by(_changed_at(history).desc())
    return lines.where(history.c.transactional_id == transactional_id).order_by(history.c.decision.desc())


def row_columns(source: FromClause) -> tuple[ColumnElement[Any], ...]:
    """Columns for :func:`row_of`: the row's columns, and its ages by the database's clock."""
    ages = {"age_s": _changed_at(source), "decided_age_s": source.c.decided_at}
    return (
        *(source.c[each.name] for each in fields(StateRow) if each.name in source.c),
        *(func.extract("epoch", func.clock_timestamp() - since).label(name) for name, since in ages.items()),
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


def read_row(connection: Connection, state: Table, transactional_id: str, *, lock: bool = False) -> StateRow | None:
    found = all_rows(state, transactional_id)
    answer = connection.execute(found.with_for_update() if lock else found).one_or_none()
    return None if answer is None else row_of(answer)


def _changed_at(row: FromClause) -> ColumnElement[Any]:
    return func.greatest(row.c.claimed_at, row.c.decided_at, row.c.settled_at)
