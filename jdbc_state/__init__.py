"""What a database remembers of a Kafka transaction that belongs to its data: the store of KIP-939's dual-write recipe.

One row for each transactional id says which transaction (``producerId:epoch``) was decided together with the data,
and whether Kafka has followed. This package knows the row, who may change it, and what a COMMIT can leave unknown. It
knows nothing of Kafka's protocol and nothing of Spark, and can serve other writers.

Reading order: ``model`` (the row, its legal moves, the contract of a store), ``claim`` (one statement that takes a row
over), ``history`` (what is left of a row that is lost), ``store_base`` (what both stores share), ``deciding`` (the
transaction that writes data and row together), ``sessions`` (ending what an older driver has open), ``store`` (all of
it on PostgreSQL), ``memory`` (the same contract without a database). ``schema``, ``versions`` and ``preparing`` make
the tables. ``database``, ``failures`` and ``watchdog`` are the floor under all: connections, errors, waits that end.
"""

from jdbc_state.memory import MemoryStateStore
from jdbc_state.model import (
    DECIDED,
    DONE,
    NONE,
    OWED,
    TRANSITIONS,
    AcceptedLoss,
    DecidingTransaction,
    Decision,
    HistoryLine,
    StateRow,
    StateStore,
    Transition,
)
from jdbc_state.preparing import SchemaReport
from jdbc_state.schema import ddl
from jdbc_state.sessions import application_name
from jdbc_state.settings import StoreSettings
from jdbc_state.store import SqlStateStore

__all__ = [
    "DECIDED",
    "DONE",
    "NONE",
    "OWED",
    "TRANSITIONS",
    "AcceptedLoss",
    "DecidingTransaction",
    "Decision",
    "HistoryLine",
    "MemoryStateStore",
    "SchemaReport",
    "SqlStateStore",
    "StateRow",
    "StateStore",
    "StoreSettings",
    "Transition",
    "application_name",
    "ddl",
]
