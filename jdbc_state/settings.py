"""Settings of a store: names of its tables, number of lines it keeps, and time-outs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal


def in_python(step: Literal["make", "migrate"], names: Mapping[str, str]) -> str:
    """How a person makes or migrates the tables with this package alone."""
    if step == "make":
        return (
            f"run the statements of jdbc_state.ddl(settings, role={names['role']!r}) with a role that may create tables"
        )
    return f"as {names['role']}: call migrate() of a SqlStateStore for {names['where']}; it changes no row"


@dataclass(frozen=True, kw_only=True)
class StoreSettings:
    """Names and time-outs of one store. Its writers and tools have to agree about the names.

    Args:
        state_schema: schema of all tables, unquoted.
        state_table: table of state rows. With the suffix ``_actions``, the table of what drivers and people did.
        history_table: table of the history; used if ``history_batches`` is above 0. '': the name of the state table
            with the suffix ``_history``, so that each state table has its own.
        history_batches: history lines kept for each transactional id, up to a tenth more before they are trimmed; and
            the same number of its drivers' actions. 0 keeps neither history nor actions.
        keep_records: create the table of kept records too, the name of the state table with the suffix ``_records``:
            for writers whose batches are not replayed.
        connect_timeout_s: one attempt to connect, in seconds; libpq's minimum is 2.
        connect_deadline_ms: how long a database that was reachable before may be down.
        claim_lock_timeout_ms: how long a claim waits for a row lock before it checks who holds it.
        claim_deadline_ms: when a claim gives up.
        lock_timeout_ms: longest wait for a lock in the deciding transaction.
        statement_timeout_ms, idle_in_transaction_timeout_ms: longest statement there, and pause between two.
        commit_timeout_ms: longest wait for the answer to a COMMIT, or to any other single request of the store.
        password: called for the password of each new connection, if passwords change; None: use the URL's, or libpq's
            own sources (PGPASSWORD, ~/.pgpass, a service file).
        require_tls: refuse connections without TLS to another machine. If False, the log warns of them.
        schema_help: words the remedy of a missing or old table, as `in_python` does; a writer with a command line names
            its command.
        accept_database: the name of a database that is not PostgreSQL and is used nevertheless; None for none.
    """

    state_schema: str = "public"
    state_table: str = "kafka_transaction_state"
    history_table: str = ""
    history_batches: int = 1_000
    keep_records: bool = False
    connect_timeout_s: int = 10
    connect_deadline_ms: int = 30_000
    claim_lock_timeout_ms: int = 2_000
    claim_deadline_ms: int = 30_000
    lock_timeout_ms: int = 30_000
    statement_timeout_ms: int = 600_000
    idle_in_transaction_timeout_ms: int = 60_000
    commit_timeout_ms: int = 60_000
    password: Callable[[], str] | None = field(default=None, repr=False)
    require_tls: bool = False
    accept_database: str | None = None
    schema_help: Callable[[Literal["make", "migrate"], Mapping[str, str]], str] = field(default=in_python, repr=False)

    def __post_init__(self) -> None:
        if not self.history_table:
            object.__setattr__(self, "history_table", f"{self.state_table}_history")

    @property
    def actions_table(self) -> str:
        return f"{self.state_table}_actions"

    @property
    def records_table(self) -> str:
        return f"{self.state_table}_records"
