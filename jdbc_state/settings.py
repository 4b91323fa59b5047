"""Settings of a store: names of its tables, how many lines it keeps, and how long it may wait."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

_HISTORY_SUFFIX = "_history"
_ACTIONS_SUFFIX = "_actions"
_RECORDS_SUFFIX = "_records"


@dataclass(frozen=True, kw_only=True)
class StoreSettings:
    """Names and time-outs of one store.

    The defaults are those of `spark_2pc_sink.DualWriteSink`, whose options say why they are what they are: tools for
    one then find the rows of the other.

    Args:
        state_schema: schema of all tables, as the catalogue spells it.
        state_table: table of state rows. With ``_actions`` behind it, the table of what drivers and people did.
        history_table: table of the history; used with ``history_batches`` above 0. '': the name of the state table with
            ``_history`` behind it, so that no two state tables share one.
        history_batches: lines of the history kept for each transactional id, up to a tenth more before they are
            trimmed; and so many of what its drivers did. 0 keeps none, and no actions either.
        keep_records: make the table of kept records too, the name of the state table with ``_records`` behind it: for
            writers whose batches nobody replays.
        connect_timeout_s: one attempt to connect, in seconds; libpq takes no less than 2.
        connect_deadline_ms: how long a database that has answered before may take to come back.
        claim_lock_timeout_ms: how long a claim waits for a row lock before it looks who holds it.
        claim_deadline_ms: when a claim gives up.
        lock_timeout_ms: longest wait for a lock in the deciding transaction.
        statement_timeout_ms: longest statement there.
        idle_in_transaction_timeout_ms: longest pause between two statements there.
        commit_timeout_ms: longest wait for the answer to a COMMIT, or to any other single request of the store.
        password: called for the password of each new connection, where passwords change; None: that of the URL, or
            what libpq finds by itself (PGPASSWORD, ~/.pgpass, a service file).
        require_tls: refuse connections to another machine that have no TLS. Without, the log warns of them.
        accept_database: the name of a database that is not PostgreSQL and is used all the same; None for none.
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

    def __post_init__(self) -> None:
        if not self.history_table:
            object.__setattr__(self, "history_table", self.state_table + _HISTORY_SUFFIX)

    @property
    def actions_table(self) -> str:
        """Table of what drivers and people did."""
        return self.state_table + _ACTIONS_SUFFIX

    @property
    def records_table(self) -> str:
        """Table of kept records; used with ``keep_records``."""
        return self.state_table + _RECORDS_SUFFIX
