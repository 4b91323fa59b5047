"""State store of the dual-write recipe (KIP-939): the row that ties a Kafka transaction to data in PostgreSQL.

A writer that sends records to Kafka and rows to a database keeps one state row for each transactional id. The database
transaction with the rows also writes ``producerId:epoch`` of the Kafka transaction into the state row, so its COMMIT
decides for both. After a crash the row tells whether Kafka's half must be committed, or resent.

::

    store = SqlStateStore("postgresql://job@localhost/shop")
    store.prepare_schema()
    row = store.claim(transactional_id="orders", cluster_id="…", query_id=None, run_id="1")
    # Recovery: row.status shows the next step in Kafka; mark_done, mark_owed or mark_initialized notes it.
    with store.deciding("orders", row.generation) as transaction:
        transaction.connection.execute(…)  # the rows
        transaction.decide(Decision(prepared="7:1", expected=row.prepared_transaction_state, …))
    # COMMIT was carried out. Now end Kafka's transaction, and note it:
    store.mark_done("orders", row.generation, settled="7:1")

The package covers the row, the rules for changing it, and commits with an unknown outcome. It has no Kafka client, and
serves any writer: its errors say what is wrong, and the writer adds the commands that mend it.

Reading order: ``model`` (the row, its legal transitions), ``claim`` and ``moves`` (the statements that change it),
``history`` (reading rows, and the copies from which a lost row is rebuilt), ``actions`` (who did what, and why),
``state_store`` (the contract of a store), ``deciding`` (the transaction that writes data and row together, the store's
own or the caller's), ``sessions`` (showing, finding and ending drivers), ``survey`` (all sinks at one look), ``store``
(the implementation for PostgreSQL). ``schema`` and ``preparing`` make the tables. ``connections``, ``sqlstate`` and
``watchdog`` are the lowest layer: connections, error codes, bounded waits.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jdbc_state.actions import ActionLine, Actor
    from jdbc_state.errors import DualWriteError
    from jdbc_state.model import (
        DECIDED,
        DONE,
        NONE,
        OWED,
        TRANSITIONS,
        Decision,
        HistoryLine,
        KeptRecords,
        StateRow,
        Transition,
    )
    from jdbc_state.preparing import SchemaReport
    from jdbc_state.schema import ddl
    from jdbc_state.sessions import application_name
    from jdbc_state.settings import StoreSettings
    from jdbc_state.state_store import DecidingTransaction, StateStore
    from jdbc_state.store import SqlStateStore

__all__ = [
    "DECIDED",
    "DONE",
    "NONE",
    "OWED",
    "TRANSITIONS",
    "ActionLine",
    "Actor",
    "DecidingTransaction",
    "Decision",
    "DualWriteError",
    "HistoryLine",
    "KeptRecords",
    "SchemaReport",
    "SqlStateStore",
    "StateRow",
    "StateStore",
    "StoreSettings",
    "Transition",
    "application_name",
    "ddl",
]

# Loaded on demand: importing only `jdbc_state.errors` does not load SQLAlchemy.
_HOMES = {
    "ActionLine": "actions",
    "Actor": "actions",
    "DecidingTransaction": "state_store",
    "DualWriteError": "errors",
    "SchemaReport": "preparing",
    "ddl": "schema",
    "application_name": "sessions",
    "StoreSettings": "settings",
    "StateStore": "state_store",
    "SqlStateStore": "store",
}


if not TYPE_CHECKING:  # type checkers would otherwise accept every name

    def __getattr__(name: str) -> object:
        if name not in __all__:
            message = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(message)
        return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'model')}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
