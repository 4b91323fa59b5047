"""Moves of a state row as SQL: one conditional UPDATE each, with its lines in the same statement.

``WHERE transactional_id = … AND generation = …`` is lock, check and write in one, at every isolation level: a driver
without the newest claim matches no row, and then writes no line either.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from jdbc_state.actions import ActionLines
from jdbc_state.history import EVENT_OF, NOTED, RESENT, row_columns, with_line
from jdbc_state.model import DECIDE, OWED, Move, legal_before, status_after
from jdbc_state.schema import StateTables

#: A repeat of one of these, after a lost answer, does not take a new number.
_REPEATED = ("take_empty_batch", "accept_loss")
#: Parameters; those of the values have a prefix, as SQLAlchemy reserves the columns' names.
_ID, _GENERATION, _EXPECTED, _VALUE = "of_id", "of_generation", "of_decision", "new_"
_ACTION, _DETAIL, _FIGURES = "of_action", "of_detail", "of_figures"


class Moves:
    """SQL statements of one store, each built once: building takes longer than the server's execution."""

    def __init__(self, tables: StateTables, actions: ActionLines) -> None:
        self.tables = tables
        self._actions = actions
        #: Number of history lines to keep; 0 to write none, and no actions.
        self.keep: int = tables.settings.history_batches
        #: Whether the history has the column; False until it was checked.
        self.has_figures = False
        self._made: dict[tuple[object, ...], Any] = {}

    def statement(self, move: Move) -> tuple[sa.Executable, dict[str, object]]:
        """A statement that returns the row, or no row if it changed nothing; and its parameters."""
        parameters = _parameters(move)
        if move.action and self.keep:
            parameters |= {_ACTION: move.action, _DETAIL: dict(move.detail or {})}
        if move.figures is not None and self.keep and self.has_figures:
            parameters[_FIGURES] = dict(move.figures)
        key: tuple[object, ...] = (move.operation, *parameters)
        if key not in self._made:
            self._made[key] = self._make(move, with_figures=_FIGURES in parameters)
        return self._made[key], parameters

    def update(self, move: Move, before: tuple[str, ...]) -> tuple[sa.Update, dict[str, object]]:
        """The change of the row alone, which writes no line and returns no row; and its parameters."""
        parameters = _parameters(move)
        key = (move.operation, before, *parameters)
        if key not in self._made:
            self._made[key] = self._update(move, before)
        return self._made[key], parameters

    def _make(self, move: Move, *, with_figures: bool) -> sa.Executable:
        state, operation = self.tables.state, move.operation
        moved = self._update(move, legal_before(operation)).returning(*row_columns(state))
        if not self.keep:
            return moved
        keep = self.keep if operation in EVENT_OF else None
        row = moved.cte("changed")
        figures = sa.bindparam(_FIGURES, type_=JSONB) if with_figures else None
        statement = with_line(row, self.tables, event=self._event(operation), keep=keep, figures=figures)
        if not move.action:
            return statement
        action, detail = sa.bindparam(_ACTION, type_=sa.Text), sa.bindparam(_DETAIL, type_=JSONB)
        return statement.add_cte(self._actions.line(row, action=action, detail=detail).cte("told"))

    def _update(self, move: Move, before: tuple[str, ...]) -> sa.Update:
        state, operation = self.tables.state, move.operation
        new = {name: sa.bindparam(_VALUE + name, type_=state.c[name].type) for name in move.values}
        fits = [
            state.c.transactional_id == sa.bindparam(_ID),
            state.c.generation == sa.bindparam(_GENERATION),
            # Not IN, whose text SQLAlchemy builds for each execution.
            sa.or_(*(state.c.status == status for status in before)),
        ]
        if move.expected is not None:
            fits.append(state.c.prepared_transaction_state == sa.bindparam(_EXPECTED))
        written: dict[str, Any] = {"status": status_after(operation), **new}
        now, number = sa.func.clock_timestamp(), state.c.decision
        if operation in (DECIDE, "accept_open"):
            written |= {"decided_at": now, "settled_at": sa.null(), "decision": number + 1}
        elif operation != "mark_initialized":
            written["settled_at"] = now
        if operation in _REPEATED:
            is_new = state.c.batch_id.is_distinct_from(new["batch_id"])
            written["decision"] = sa.case((is_new, number + 1), else_=number)
        return sa.update(state).where(*fits).values(written)

    def _event(self, operation: str) -> str | sa.ColumnElement[Any]:
        if operation == DECIDE:
            # The row as it was when the statement began. Had it changed since, the move would meet none.
            state = self.tables.state
            before = sa.select(state.c.status).where(state.c.transactional_id == sa.bindparam(_ID)).scalar_subquery()
            return sa.case((before == OWED, sa.literal(RESENT)), else_=sa.literal(EVENT_OF[DECIDE]))
        return EVENT_OF.get(operation, NOTED)


def _parameters(move: Move) -> dict[str, object]:
    parameters: dict[str, object] = {_VALUE + name: value for name, value in move.values.items()}
    parameters |= {_ID: move.transactional_id, _GENERATION: move.generation}
    if move.expected is not None:
        parameters[_EXPECTED] = move.expected
    return parameters
