"""How a store is set up. No time-out has a default here: whoever opens the store says how long it may wait."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class StoreSettings:
    """Names and time-outs of one store.

    Args:
        state_schema: schema of both tables, as the catalogue spells it.
        state_table: table of state rows.
        history_table: table of the history; used with ``history_batches`` above 0.
        history_batches: lines of the history kept for each transactional id, up to a tenth more before they are
            trimmed; 0 keeps none.
        connect_timeout_s: one attempt to connect, in seconds; libpq takes no less than 2.
        connect_deadline_ms: how long a database that has answered before may take to come back.
        claim_lock_timeout_ms: how long a claim waits for a row lock before it looks who holds it.
        claim_deadline_ms: when a claim gives up.
        lock_timeout_ms: longest wait for a lock in the deciding transaction.
        statement_timeout_ms: longest statement there.
        idle_in_transaction_timeout_ms: longest pause between two statements there.
        commit_timeout_ms: longest wait for the answer to a COMMIT, or to any other single request of the store.
    """

    state_schema: str
    state_table: str
    history_table: str
    history_batches: int
    connect_timeout_s: int
    connect_deadline_ms: int
    claim_lock_timeout_ms: int
    claim_deadline_ms: int
    lock_timeout_ms: int
    statement_timeout_ms: int
    idle_in_transaction_timeout_ms: int
    commit_timeout_ms: int
