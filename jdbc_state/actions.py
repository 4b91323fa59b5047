"""Log of what drivers and people did to a sink, one line each: who, when, why.

A line is written by the statement whose effect it records: a driver's claim, the outcome of its recovery, or a person's
decision. So every decision has a line, and a refused claim has none. What is carried out in Kafka alone, an ``abort``
by a recovery and a person's ``force_terminate``, has its line written BEFORE. docs/design/state.md has the reasons.
"""

from __future__ import annotations

import getpass
import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.sql.dml import ReturningInsert

from jdbc_state.schema import StateTables

CLAIM: Final = "claim"
ADOPT: Final = "adopt"
COMMIT: Final = "commit"
ABORT: Final = "abort"
NOTE_DONE: Final = "note_done"
NOTE_OWED: Final = "note_owed"
OPEN_TRANSACTION: Final = "open_transaction"
ACCEPT_REPLAY: Final = "accept_replay"
DROP: Final = "drop"
ACCEPT_LOSS: Final = "accept_loss"
FORCE_TERMINATE: Final = "force_terminate"
ACTIONS: Final = {
    CLAIM: "a driver or a command took the row over; `rebuilt_from` if it rebuilt a lost row",
    ADOPT: "an operator gave the row to another query or Kafka cluster; also a claim",
    COMMIT: "a recovery committed the decided transaction in Kafka",
    ABORT: "a recovery is about to abort an undecided transaction",
    NOTE_DONE: "a recovery found the transaction committed, and noted it",
    NOTE_OWED: "a recovery found the transaction aborted, and noted that its records must be sent again",
    OPEN_TRANSACTION: "an operator said how an open transaction ends, after row and history were lost",
    ACCEPT_REPLAY: "an operator allowed Spark's replay of a batch to be sent with any content",
    DROP: "an operator gave up the Kafka half of a batch",
    ACCEPT_LOSS: "an operator let the sink continue without batches that Kafka has and this database lost",
    FORCE_TERMINATE: "an operator had the coordinator abort an id's open transaction; a second line has the outcome",
}
#: Actions that drivers and recoveries do automatically. Only their lines are trimmed.
ROUTINE: Final = (CLAIM, COMMIT, ABORT, NOTE_DONE, NOTE_OWED)
#: The key of a claim's detail for the layout of its sink.
LAYOUT: Final = "layout"


@dataclass(frozen=True, kw_only=True)
class Actor:
    """Identity of a store's user; the database adds its role and the time.

    Args:
        os_user: user of the process.
        host: host of the process.
        program: name of the process.
        reason: why, in the person's words; None if no person was asked.
    """

    os_user: str
    host: str
    program: str
    reason: str | None = None

    @classmethod
    def of_this_process(cls, program: str | None = None, reason: str | None = None) -> Actor:
        """Identify this process, on this host; the program is named after its script or module."""
        try:
            os_user = getpass.getuser()
        except (KeyError, OSError):
            # A container may run under a user id without a name.
            os_user = str(os.getuid())
        return cls(os_user=os_user, host=socket.gethostname(), program=program or _program(), reason=reason)


def _program() -> str:
    """The module of ``python -m``, without the common part; otherwise the name of the script."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None:
        return str(spec.name).removesuffix(".__main__")
    return Path(sys.argv[0]).name or "python"


@dataclass(frozen=True, kw_only=True)
class ActionLine:
    """One line of the log.

    Attributes:
        number: orders lines of the same instant.
        transactional_id: id of the sink; for `FORCE_TERMINATE` any id.
        at: time by the database's clock.
        action: one of `ACTIONS`.
        batch_id: the row's batch after the action; None if it has none, or there is no row.
        generation: generation of the claim; None for actions that need no claim.
        role: the database role that logged in (session_user).
        os_user, host, program, reason: see `Actor`.
        detail: details, for people and programs: ``did`` is a sentence, ``layout`` the layout of a claim.
    """

    number: int
    transactional_id: str
    at: datetime
    action: str
    batch_id: int | None
    generation: int | None
    role: str
    os_user: str
    host: str
    program: str
    reason: str | None
    detail: Mapping[str, Any] = field(default_factory=dict, hash=False)


class ActionLines:
    """SQL statements for the action log of one store, with the same actor in every line."""

    def __init__(self, tables: StateTables, actor: Actor) -> None:
        self._tables = tables
        self._actor = actor

    def line(
        self, row: sa.FromClause, *, action: str | sa.ColumnElement[str], detail: sa.ColumnElement[Any]
    ) -> ReturningInsert[Any]:
        """Insert the line of a row that was changed or exists; no line if there is no row."""
        table = self._tables.actions
        written: dict[str, sa.ColumnElement[Any]] = {
            "transactional_id": row.c.transactional_id,
            "at": sa.func.clock_timestamp(),
            "action": sa.cast(sa.literal(action) if isinstance(action, str) else action, sa.Text),
            "batch_id": row.c.batch_id,
            "generation": row.c.generation,
            "role": sa.cast(sa.func.session_user(), sa.Text),
            **{name: sa.cast(sa.literal(value), sa.Text) for name, value in vars(self._actor).items()},
            "detail": sa.cast(detail, JSONB),
        }
        return sa.insert(table).from_select(list(written), sa.select(*written.values())).returning(table.c.number)

    def line_alone(
        self, transactional_id: str, generation: int | None, action: str, detail: Mapping[str, Any]
    ) -> ReturningInsert[Any]:
        """Insert the line of an action that changes no row; under a claim only if ``generation`` is the newest."""
        if generation is None:
            name, absent = sa.cast(sa.literal(transactional_id), sa.Text), sa.cast(sa.null(), sa.BigInteger)
            row = sa.select(name.label("transactional_id"), absent.label("batch_id"), absent.label("generation"))
        else:
            state = self._tables.state
            row = sa.select(state).where(state.c.transactional_id == transactional_id, state.c.generation == generation)
        return self.line(row.subquery(), action=action, detail=sa.literal(dict(detail), JSONB))

    def trim(self, row: sa.FromClause) -> sa.Delete:
        """Remove the oldest lines of drivers, if ``row`` has a row; ``history_batches`` remain besides the new one."""
        # As many with a layout as without: however often a command recovers the sink, its last job's layout is kept.
        table, keep = self._tables.actions, self._tables.settings.history_batches
        mine = table.c.transactional_id == sa.select(row.c.transactional_id).scalar_subquery()
        newest_first = sa.func.row_number().over(
            partition_by=table.c.detail.has_key(LAYOUT), order_by=[table.c.at.desc(), table.c.number.desc()]
        )
        routine = sa.select(table.c.number, newest_first.label("nth")).where(mine, table.c.action.in_(ROUTINE))
        counted = routine.subquery()
        return sa.delete(table).where(mine, table.c.number.in_(sa.select(counted.c.number).where(counted.c.nth > keep)))

    def newest(self, transactional_id: str | None, *, last: int, since: datetime | None = None) -> sa.Select[Any]:
        """The newest lines of one sink, or of all, the newest first."""
        table = self._tables.actions
        found = sa.select(table).order_by(table.c.at.desc(), table.c.number.desc()).limit(last)
        if transactional_id is not None:
            found = found.where(table.c.transactional_id == transactional_id)
        return found if since is None else found.where(table.c.at >= since)
