"""Joined decision: the state row, written into a transaction that the caller has begun and will commit.

A service writes its rows in its own session, so the decision must be made in that session. It is the same statement as
in a deciding transaction (`jdbc_state.deciding`), with two additions:

* the note that Kafka has committed the previous decision. A service may decide a thousand times a second, and a COMMIT
  for each note would double that. Until the next decision the row says ``decided``, which is out of date; recovery
  finds out by asking Kafka;
* the records of the decision, if Kafka may abort them after it (`KeptRecords`). A service's transactions are not
  replayed, so records that Kafka then lacks are resent from here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    CursorResult,
    Executable,
    Select,
    Update,
    bindparam,
    func,
    literal_column,
    select,
    true,
)
from sqlalchemy.dialects.postgresql import insert

from jdbc_state.claim import row_columns, row_of
from jdbc_state.connections import DURABLE_LEVEL
from jdbc_state.model import DECIDE, Decision, Move, StateRow, legal_before
from jdbc_state.moves import Moves
from jdbc_state.schema import StateTables
from jdbc_state.sessions import application_name
from jdbc_state.settings import StoreSettings

_MARK_DONE = "mark_done"
_KEPT = "kept_"
_NAME = "session_name"


@dataclass(frozen=True)
class KeptRecords:
    """The records of one decision, until Kafka is known to have committed them.

    Attributes:
        batch_id: batch id of the decision, which identifies them if they were sent with another producer id and epoch.
        partitions: ``topic-partition`` of each record batch.
        batches: the concatenated record batches; each contains its length.
    """

    batch_id: int
    partitions: Sequence[str]
    batches: bytes


class JoinedDecisions:
    def __init__(self, tables: StateTables, moves: Moves, settings: StoreSettings) -> None:
        self._tables = tables
        self._moves = moves
        self._settings = settings
        self._made: dict[tuple[Executable, bool], Executable] = {}

    def decide(
        self,
        connection: Connection,
        transactional_id: str,
        generation: int,
        decision: Decision,
        *,
        settled: str | None,
        kept: KeptRecords | None,
    ) -> None:
        move = Move(DECIDE, transactional_id, generation, decision.columns(), expected=decision.expected)
        if not self._moves.keeps_lines and self._is_moved_at_once(connection, move, kept, noted=settled is not None):
            return
        if settled is not None:
            self._move(connection, Move(_MARK_DONE, transactional_id, generation, {"settled": settled}), None)
        self._move(connection, move, kept)

    def _is_moved_at_once(self, connection: Connection, move: Move, kept: KeptRecords | None, *, noted: bool) -> bool:
        """Note and decide in one change of the row; False if it matched no row: separate moves then tell why.

        The decision overwrites everything that the note writes to the row; only its allowed start status differs.
        A history would have a line for the note.
        """
        before = legal_before(_MARK_DONE if noted else DECIDE)
        plain, parameters = self._moves.update(move, before)
        return self._execute(connection, plain, parameters, move, kept).first() is not None

    def _move(self, connection: Connection, move: Move, kept: KeptRecords | None) -> None:
        plain, parameters = self._moves.statement(move)
        if self._execute(connection, plain, parameters, move, kept).first() is None:
            move.refused_by(self._read(connection, move.transactional_id))

    def _execute(
        self,
        connection: Connection,
        plain: Executable,
        parameters: dict[str, object],
        move: Move,
        kept: KeptRecords | None,
    ) -> CursorResult[Any]:
        key = (plain, kept is not None)
        if key not in self._made:
            self._made[key] = self._with_settings(plain, kept=kept is not None)
        parameters[_NAME] = application_name(move.transactional_id, move.generation)
        if kept is not None:
            parameters |= {_KEPT + "id": move.transactional_id, _KEPT + "batch_id": kept.batch_id}
            parameters |= {_KEPT + "partitions": list(kept.partitions), _KEPT + "batches": kept.batches}
        return connection.execute(self._made[key], parameters)

    def _with_settings(self, plain: Any, *, kept: bool) -> Executable:
        statement: Select[Any] | Update = plain
        columns = self._settings_of_transaction()
        more = statement.add_columns if isinstance(statement, Select) else statement.returning
        statement = more(*columns)
        return statement.add_cte(self._keep().cte("kept")) if kept else statement

    def _settings_of_transaction(self) -> list[ColumnElement[Any]]:
        """The settings of a deciding transaction, from here to its end: a newer claim finds it by its name.

        Other limits, for the caller's own statements, are left to the caller.
        """
        idle_ms = self._settings.idle_in_transaction_timeout_ms
        # Literals, as each bound value of a statement costs the sender a microsecond.
        local: dict[str, ColumnElement[Any]] = {
            "application_name": bindparam(_NAME),
            "synchronous_commit": literal_column(DURABLE_LEVEL),
            "idle_in_transaction_session_timeout": literal_column(f"'{idle_ms:d}'"),
        }
        return [func.set_config(literal_column(f"'{name}'"), value, true()) for name, value in local.items()]

    def _keep(self) -> Any:
        table = self._tables.records
        values = {
            "transactional_id": bindparam(_KEPT + "id"),
            "batch_id": bindparam(_KEPT + "batch_id"),
            "partitions": bindparam(_KEPT + "partitions", type_=table.c.partitions.type),
            "batches": bindparam(_KEPT + "batches", type_=table.c.batches.type),
        }
        added = insert(table).values(values)
        newer = {name: added.excluded[name] for name in values if name != "transactional_id"}
        return added.on_conflict_do_update(index_elements=[table.c.transactional_id], set_=newer).returning(
            table.c.transactional_id
        )

    def _read(self, connection: Connection, transactional_id: str) -> StateRow | None:
        state = self._tables.state
        # Locked: above READ COMMITTED the caller's transaction sees the row as of its first statement. If it
        # has changed since, PostgreSQL reports a serialization failure, where the old row would indicate lost commits.
        found = select(*row_columns(state)).where(state.c.transactional_id == transactional_id).with_for_update()
        answer = connection.execute(found).one_or_none()
        return None if answer is None else row_of(answer)
