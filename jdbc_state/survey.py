"""Survey: every sink's state row, the lost rows, and which drivers are alive, read over one connection.

An invalid row is named, and does not hide the others: it may have been written by hand, or by a later version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

from sqlalchemy import Connection, Select, Table, text

from jdbc_state.connections import behind_pooler, driver_connection
from jdbc_state.history import all_rows, lost_rows, row_of
from jdbc_state.model import StateRow
from jdbc_state.schema import StateTables, quoted
from jdbc_state.sessions import DriverSession, Liveness, driver_sessions, session_of

#: Another table may have the history's name.
_THERE = text(
    "SELECT to_regclass(:state) IS NOT NULL, count(*) = 2 FROM pg_attribute WHERE attrelid = to_regclass(:history) "
    "AND attname IN ('decision', 'prepared_transaction_state') AND NOT attisdropped"
)
_CHARACTERS_MAX = 80


@dataclass(frozen=True)
class UnreadableRow:
    """An invalid row, or an invalid newest line of a lost row."""

    transactional_id: str
    problem: str


@dataclass(frozen=True, kw_only=True)
class Survey:
    table_exists: bool
    rows: tuple[StateRow, ...] = ()
    #: The newest line of each sink with lines in the history and no row; see `StateRow.rebuilt_from`.
    lost: tuple[StateRow, ...] = ()
    unreadable: tuple[UnreadableRow, ...] = ()
    drivers: Mapping[str, Liveness] = field(default_factory=dict)


def survey(connection: Connection, tables: StateTables, transactional_id: str | None) -> Survey:
    """Read it; the number of queries does not depend on the number of sinks."""
    names = {"state": quoted(tables.state), "history": quoted(tables.history)}
    state_there, has_history = connection.execute(_THERE, names).one()
    rows = _read(connection, all_rows(tables.state, transactional_id)) if state_there else []
    lines = lost_rows(tables, transactional_id, state_exists=state_there)
    lost = _read(connection, lines) if has_history else []
    good = tuple(row for row in rows if isinstance(row, StateRow))
    return Survey(
        table_exists=state_there,
        rows=good,
        lost=tuple(replace(line, rebuilt_from=line.decision) for line in lost if isinstance(line, StateRow)),
        unreadable=tuple(each for each in [*rows, *lost] if isinstance(each, UnreadableRow)),
        drivers=find_drivers(connection, tables.state, good),
    )


def find_drivers(connection: Connection, state: Table, rows: Sequence[StateRow]) -> dict[str, Liveness]:
    """Whether the driver with the claim of each row, or with a newer one, is alive; by transactional id."""
    table = quoted(state)
    # The command line holds its claim for as long as it runs, and has no session.
    sessions = driver_sessions(connection, table=table) if any(row.run_id is not None for row in rows) else []
    hidden = cache(partial(_why_hidden, connection))
    return {row.transactional_id: _liveness(row, sessions, table, hidden) for row in rows}


def _liveness(row: StateRow, sessions: list[DriverSession], table: str, hidden: Callable[[], str]) -> Liveness:
    if row.run_id is None:
        return Liveness(alive=False, detail=f"claim {row.generation} was made by a command")
    seen = session_of(sessions, table, row.transactional_id, row.generation, row.run_id)
    if seen is not None:
        detail = f"{seen}; claim {row.generation}, made at {row.claimed_at}"
        return Liveness(alive=True, detail=detail, session=seen)
    why = hidden()
    if why:
        return Liveness(alive=None, detail=why)
    return Liveness(alive=False, detail=f"no database session of claim {row.generation}")


def _why_hidden(connection: Connection) -> str:
    """Why a live driver may be invisible; '' if it would be visible."""
    if connection.scalar(text("SELECT pg_is_in_recovery()")):
        return "this is a standby; sessions of drivers are visible only on the primary"
    if behind_pooler(driver_connection(connection)):
        return "behind a pooler, a driver is visible only during its transactions"
    return ""


def _read(connection: Connection, found: Select[Any]) -> list[StateRow | UnreadableRow]:
    read: list[StateRow | UnreadableRow] = []
    for answer in connection.execute(found):
        problem = problem_of(answer.kafka_offsets, answer.topic_ids)
        read.append(UnreadableRow(answer.transactional_id, problem) if problem else row_of(answer))
    return read


def problem_of(kafka_offsets: object, topic_ids: object) -> str:
    """The problem of the two columns whose content the database's types do not check; '' for none."""
    ranges: Iterable[Any] = kafka_offsets.values() if isinstance(kafka_offsets, dict) else [None]
    if not all(isinstance(each, list) and [type(offset) for offset in each] == [int, int] for each in ranges):
        return f'kafka_offsets {_short(kafka_offsets)} must be an object of "topic-partition": [first, last]'
    if not isinstance(topic_ids, dict) or not all(isinstance(value, str) for value in topic_ids.values()):
        return f'topic_ids {_short(topic_ids)} must be an object of "topic": "id"'
    return ""


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= _CHARACTERS_MAX else f"{shown[:_CHARACTERS_MAX]}…"
