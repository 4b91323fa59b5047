"""Claim of a state row as one SQL statement: it checks the owner, increments the generation, and returns the row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB, insert

from jdbc_state.actions import ADOPT, CLAIM, LAYOUT, ActionLines
from jdbc_state.errors import ClaimRefusedError
from jdbc_state.history import ADOPTED, CLAIMED, row_columns, with_line
from jdbc_state.model import DECIDED, DONE, NONE, StateRow, claim_lost_error
from jdbc_state.schema import StateTables

#: The claim's own time takes its place.
_NEVER = datetime.fromtimestamp(0, timezone.utc)


@dataclass(frozen=True, kw_only=True)
class Claimant:
    """Claimant and row; see ``StateStore.claim`` for the meaning."""

    transactional_id: str
    cluster_id: str
    query_id: str | None
    run_id: str | None
    adopt: bool = False
    expected_generation: int | None = None
    layout: Mapping[str, Any] | None = None

    @property
    def action(self) -> str:
        return ADOPT if self.adopt else CLAIM

    @property
    def detail(self) -> dict[str, Any]:
        known = {"query_id": self.query_id, "run_id": self.run_id, "cluster_id": self.cluster_id, LAYOUT: self.layout}
        return {name: value for name, value in known.items() if value is not None}

    def check(self, row: StateRow | None) -> None:
        """Raise the reason for which the claim's WHERE clause refuses."""
        if row is not None:
            self._check_owner(row)
        expected = self.expected_generation
        if expected is None or (row is not None and row.generation == expected):
            return
        # A later one of the same run, whose answer was lost.
        own = row is not None and self.run_id is not None and (row.query_id, row.run_id) == (self.query_id, self.run_id)
        if row is None or row.generation < expected or not own:
            raise claim_lost_error(self.transactional_id, expected, row)

    def _check_owner(self, row: StateRow) -> None:
        name, decided = row.transactional_id, row.status == DECIDED
        # Adopting from another cluster would forget a decision.
        if row.cluster_id not in (None, self.cluster_id) and (decided or not self.adopt):
            found, what = str(row.cluster_id), "Kafka cluster"
            raise ClaimRefusedError(
                transactional_id=name, what=what, expected=self.cluster_id, found=found, decided=decided
            )
        if self.query_id is not None and row.query_id not in (None, self.query_id) and not self.adopt:
            found = str(row.query_id)
            raise ClaimRefusedError(transactional_id=name, what="query", expected=self.query_id, found=found)


def carried_out(claimant: Claimant, row: StateRow | None, *, named: int | None) -> StateRow | None:
    """Return the row if a claim without an answer was carried out; None if it was not, or not yet.

    The claim named generation ``named``, None if there was no row. If another driver has claimed the row since, before
    or after this one, SupersededError is raised. Claims of the command line are indistinguishable, so one is never
    taken for another: the next one takes the next generation.
    """
    if row is None or row.generation <= (named or 0) or row.run_id == claimant.run_id is None:
        return None
    if (row.run_id, row.cluster_id) == (claimant.run_id, claimant.cluster_id):
        return row
    raise claim_lost_error(claimant.transactional_id, (named or 0) + 1, row)


def claim_statement(
    tables: StateTables, claimant: Claimant, actions: ActionLines, *, generation: int | None, has_history: bool
) -> sa.Select[Any]:
    """The claim. It returns no row if it changed nothing, as when ``generation`` (None for no row) is not the row's."""
    state = tables.state
    newest = _newest(tables, claimant.transactional_id, has_history=has_history)
    row = _claim(state, claimant, generation, newest)
    # This reads the table as it was before the claim.
    there = sa.select(state.c.generation).where(state.c.transactional_id == claimant.transactional_id).exists()
    line = sa.select(newest.c.decision).where(newest.c.generation > 0).scalar_subquery()
    rebuilt_from = sa.case((there, sa.null()), else_=line)
    if tables.settings.history_batches:
        written = with_line(row, tables, event=ADOPTED if claimant.adopt else CLAIMED)
        rebuilt = sa.func.jsonb_strip_nulls(sa.func.jsonb_build_object("rebuilt_from", rebuilt_from))
        detail = sa.cast(sa.literal(claimant.detail, JSONB), JSONB).concat(rebuilt)
        written = written.add_cte(
            actions.line(row, action=claimant.action, detail=detail).cte("told"), actions.trim(row).cte("old_actions")
        )
    else:
        written = sa.select(row)
        if has_history:
            # Lines left from other settings would become older than the row.
            mine = tables.history.c.transactional_id == sa.select(row.c.transactional_id).scalar_subquery()
            written = written.add_cte(sa.delete(tables.history).where(mine).cte("forgotten"))
    return written.add_columns(rebuilt_from.label("rebuilt_from"))


def _newest(tables: StateTables, transactional_id: str, *, has_history: bool) -> sa.CTE:
    """What a claim takes over if there is no row: the newest history line; without one, an empty row of no claim."""
    history, columns = tables.history, tables.state.columns
    empty = StateRow(transactional_id=transactional_id, generation=0, claimed_at=_NEVER)
    values = (sa.cast(sa.literal(getattr(empty, each.name), each.type), each.type).label(each.name) for each in columns)
    found = [sa.select(*values)]
    if has_history:
        mine = history.c.transactional_id == transactional_id
        lines = sa.select(*(history.c[each.name] for each in columns)).where(mine)
        found.append(lines.order_by(history.c.decision.desc()).limit(1))
    return sa.union_all(*found).order_by(sa.desc("generation")).limit(1).cte("newest")


def _claim(state: sa.Table, claimant: Claimant, generation: int | None, newest: sa.CTE) -> sa.CTE:
    """Take the row over; if there is none, make it of its newest history line, or of an empty row."""
    number = sa.select(newest.c.decision).scalar_subquery()
    taken_over = _taken_over(state, claimant, number)
    as_read = sa.false() if generation is None else state.c.generation == generation
    allowed = sa.and_(as_read, _allowed(state, claimant), _expected(state, claimant))
    mine = state.c.transactional_id == claimant.transactional_id
    columns = row_columns(state)
    if claimant.expected_generation is not None:
        # A driver with a claim has a row. If the row is gone, that driver must not create a new one.
        return sa.update(state).where(mine, allowed).values(taken_over).returning(*columns).cte("changed")
    made = {column.name: newest.c[column.name] for column in state.columns} | _taken_over(newest, claimant, number)
    # An existing row is judged separately, below.
    makeable = sa.or_(_allowed(newest, claimant), sa.select(state.c.generation).where(mine).exists())
    added = insert(state).from_select(list(made), sa.select(*made.values()).where(makeable))
    key = [state.c.transactional_id]
    claimed = added.on_conflict_do_update(index_elements=key, set_=taken_over, where=allowed)
    return claimed.returning(*columns).cte("changed")


def _is_other(owner: sa.ColumnElement[Any], own: str | None) -> sa.ColumnElement[bool]:
    return sa.false() if own is None else sa.and_(owner.is_not(None), owner != own)


def _allowed(row: sa.FromClause, claimant: Claimant) -> sa.ColumnElement[bool]:
    """`Claimant.check` as SQL; the tests run both on the same cases."""
    other_cluster = _is_other(row.c.cluster_id, claimant.cluster_id)
    if claimant.adopt:
        return sa.or_(~other_cluster, row.c.status != DECIDED)
    return sa.and_(~other_cluster, ~_is_other(row.c.query_id, claimant.query_id))


def _expected(state: sa.Table, claimant: Claimant) -> sa.ColumnElement[bool]:
    expected = claimant.expected_generation
    if expected is None:
        return sa.true()
    is_it = state.c.generation == expected
    if claimant.run_id is None:
        return is_it
    same_query = state.c.query_id.is_not_distinct_from(sa.literal(claimant.query_id))
    own = sa.and_(state.c.generation > expected, state.c.run_id == claimant.run_id, same_query)
    return sa.or_(is_it, own)


def _taken_over(row: sa.FromClause, claimant: Claimant, newest: sa.ColumnElement[int]) -> dict[str, Any]:
    """Values that a claim writes into an existing row, or into one rebuilt from a line."""
    moved = _is_other(row.c.cluster_id, claimant.cluster_id)
    other_query = _is_other(row.c.query_id, claimant.query_id)
    # A line with other batches is left unchanged; and lines newer than the row, for example after an older row was
    # restored, do not become the newest again.
    anew = sa.or_(moved, other_query, row.c.decision < newest)
    return {
        "generation": row.c.generation + 1,
        "query_id": row.c.query_id if claimant.query_id is None else sa.literal(claimant.query_id),
        "run_id": sa.literal(claimant.run_id),
        "cluster_id": sa.literal(claimant.cluster_id),
        "claimed_at": sa.func.clock_timestamp(),
        # Another query counts its batches from 0: the number of the last one would look like a replay.
        "batch_id": sa.case((other_query, sa.null()), else_=row.c.batch_id),
        # Producer ids, epochs and offsets of another cluster mean other transactions here, or none.
        "status": sa.case((sa.and_(moved, row.c.status == DONE), NONE), else_=row.c.status),
        "prepared_transaction_state": sa.case((moved, ""), else_=row.c.prepared_transaction_state),
        "settled": sa.case((moved, ""), else_=row.c.settled),
        "kafka_offsets": sa.case((moved, sa.func.jsonb_build_object()), else_=row.c.kafka_offsets),
        "topic_ids": sa.case((moved, sa.func.jsonb_build_object()), else_=row.c.topic_ids),
        "decision": sa.case((anew, sa.func.greatest(row.c.decision, newest) + 1), else_=row.c.decision),
    }
