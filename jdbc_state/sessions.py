"""Drivers' database sessions: how they are named, shown and found, and how those of older drivers are ended.

A driver is in a database transaction for only part of its time. So a driver with a claim is visible by a separate idle
session (`Presence`): ``2pc@<id>:<sink>:<generation>``, where <sink> is a hash of its state table and id, as an idle
session holds no lock that would tell its state table. It is opened after the claim, reopened if it breaks, and ends
with the process. The deciding transaction has ``2pc:<id>:<generation>`` as its application_name while it is open (SET
LOCAL, so it also works through a connection pooler). A newer claim finds such transactions in pg_stat_activity and ends
them: otherwise a driver that is paused inside COPY would hold its locks and unique keys until its statement times out.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from contextvars import copy_context
from dataclasses import dataclass
from typing import Final

import psycopg2.extensions
from sqlalchemy import Connection, text

from jdbc_state.connections import KEPT_S_MAX, Database, backend_pid, behind_pooler, has_something_to_read
from jdbc_state.errors import DatabaseUnreachableError
from jdbc_state.schema import StateTables, quoted
from jdbc_state.sink_log import sink_log
from jdbc_state.sqlstate import describe
from jdbc_state.watchdog import Watchdog

#: NAMEDATALEN - 1: PostgreSQL cuts a longer application_name off.
APPLICATION_NAME_BYTES_MAX = 63
_PREFIX = "2pc:"
#: Any 64-bit generation.
_GENERATION_DIGITS_MAX = 19
#: Leaves room for the prefix, a colon, and any generation.
_ID_BYTES_MAX = APPLICATION_NAME_BYTES_MAX - len(_PREFIX) - len(":") - _GENERATION_DIGITS_MAX
#: Prefix of the replacement for an id that does not fit. Ids that start with it are hashed too, so names are unique.
_HASHED = "#"
_PRESENCE_PREFIX = "2pc@"
_SINK_DIGITS = 12
_SHOWN_ID_MAX = APPLICATION_NAME_BYTES_MAX - len(_PRESENCE_PREFIX) - _SINK_DIGITS - len("::") - _GENERATION_DIGITS_MAX


def application_name_prefix(transactional_id: str) -> str:
    """``2pc:<id>:``, or ``2pc:#<hash>:`` for an id that PostgreSQL would cut off or rewrite (beyond ASCII)."""
    fits = transactional_id.isascii() and transactional_id.isprintable() and len(transactional_id) <= _ID_BYTES_MAX
    if fits and not transactional_id.startswith(_HASHED):
        return f"{_PREFIX}{transactional_id}:"
    digest = hashlib.blake2b(transactional_id.encode(), digest_size=16).hexdigest()
    return f"{_PREFIX}{_HASHED}{digest}:"


def application_name(transactional_id: str, generation: int) -> str:
    """The name of the deciding transaction of one claim; at most 63 bytes of printable ASCII."""
    return f"{application_name_prefix(transactional_id)}{generation}"


def presence_prefix(table: str, transactional_id: str) -> str:
    """``2pc@<id>:<sink>:``; the id is for people and may be truncated, the sink identifies state table and id."""
    # PostgreSQL names cannot contain NUL.
    sink = hashlib.sha256(f"{table}\0{transactional_id}".encode()).hexdigest()[:_SINK_DIGITS]
    shown = transactional_id if transactional_id.isascii() and transactional_id.isprintable() else ""
    return f"{_PRESENCE_PREFIX}{shown[:_SHOWN_ID_MAX]}:{sink}:"


def presence_name(table: str, transactional_id: str, generation: int) -> str:
    """The name of the session that represents the driver with one claim; at most 63 bytes of printable ASCII."""
    return f"{presence_prefix(table, transactional_id)}{generation}"


def run_presence_name(table: str, run_id: str) -> str:
    """The name of the one session that represents a run with claims of many rows."""
    run = hashlib.sha256(f"{table}\0{run_id}".encode()).hexdigest()[:32]
    return f"{_PRESENCE_PREFIX}run:{run}"


@dataclass(frozen=True)
class DriverSession:
    """A session that shows that a driver is alive; ``name`` is its application_name, which identifies the driver."""

    pid: int
    role: str
    #: True if the connected role is not a member of that role, and so cannot see the address.
    hidden: bool
    #: Address of the driver's host, or of the pooler; '' for a local socket.
    address: str
    name: str = ""

    def __str__(self) -> str:
        address = "an address visible only to its role and pg_read_all_stats" if self.hidden else self.address
        return f"pid {self.pid} from {address or 'a local socket'}, role {self.role}"


@dataclass(frozen=True)
class Liveness:
    """Whether the driver with the newest claim is alive."""

    alive: bool | None
    detail: str
    session: DriverSession | None = None


@dataclass(frozen=True)
class Session:
    pid: int
    role: str
    name: str
    #: True: it was ended and is gone. False: it was told to end, and still exists. None: left alone, as another role's.
    ended: bool | None = None

    def __str__(self) -> str:
        return f"pid {self.pid} ({self.name or 'no application_name'}, role {self.role})"


# The name is parsed from the right, as the generation cannot contain the colon that an id can. The same id may be used
# with another state table of this database: a session that holds a lock on such a table is another sink's. (The history
# has such a column too. A deciding transaction first reads its row, which locks the table to its end.) Another role's
# sessions are not ended even if we may: any role may choose any application_name.
_END_OLDER = text(r"""
SELECT older.pid, older.usename, older.application_name,
       CASE WHEN older.usename = session_user THEN pg_terminate_backend(older.pid, :wait_ms) END AS ended
FROM (
    SELECT activity.pid, activity.usename, activity.application_name,
           substr(activity.application_name, length(:prefix) + 1) AS generation
    FROM pg_stat_activity AS activity
    WHERE activity.datname = current_database() AND activity.pid <> pg_backend_pid()
      AND left(activity.application_name, length(:prefix)) = :prefix
      AND NOT EXISTS (
          SELECT FROM pg_locks AS held JOIN pg_attribute AS attribute ON attribute.attrelid = held.relation
          WHERE held.pid = activity.pid AND held.locktype = 'relation' AND held.granted
            AND attribute.attname = 'prepared_transaction_state'
            AND held.relation IS DISTINCT FROM to_regclass(:table)
            AND held.relation IS DISTINCT FROM to_regclass(:history)
            AND held.database = (SELECT oid FROM pg_database WHERE datname = current_database())
            AND (SELECT relkind FROM pg_class WHERE oid = held.relation) IN ('r', 'p')
      )
) AS older
WHERE CASE WHEN older.generation ~ '^[0-9]{1,19}$'
           THEN CAST(older.generation AS numeric) < CAST(:generation AS numeric) ELSE false END
ORDER BY older.pid
""")

# Every role sees the names of all sessions, even if their addresses are hidden. The lock of a session in the deciding
# transaction tells which state table it uses, see above.
_DRIVERS = text("""
SELECT driver.pid, driver.usename, driver.backend_start IS NULL, coalesce(host(driver.client_addr), ''),
       driver.application_name
FROM pg_stat_activity AS driver
WHERE driver.datname = current_database() AND left(driver.application_name, 4) IN (:presence, :deciding)
  AND (left(driver.application_name, 4) = :presence OR EXISTS (
      SELECT FROM pg_locks AS held
      WHERE held.pid = driver.pid AND held.locktype = 'relation' AND held.granted
        AND held.relation = to_regclass(:table)
        AND held.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  ))
ORDER BY left(driver.application_name, 4) = :deciding, driver.pid
""")

_HOLDERS = text("""
SELECT DISTINCT activity.pid, activity.usename, activity.application_name
FROM pg_locks AS held JOIN pg_stat_activity AS activity USING (pid)
WHERE held.locktype = 'relation' AND held.granted AND held.relation = to_regclass(:table)
  AND held.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND held.mode NOT IN ('AccessShareLock') AND activity.pid <> pg_backend_pid()
ORDER BY activity.pid
""")


def end_older_sessions(
    connection: Connection, tables: StateTables, transactional_id: str, below_generation: int, *, wait_ms: int
) -> list[Session]:
    """End the deciding transactions of claims older than ``below_generation``, and report the outcome for each."""
    prefix, state, history = application_name_prefix(transactional_id), quoted(tables.state), quoted(tables.history)
    asked = {"prefix": prefix, "table": state, "history": history, "generation": below_generation, "wait_ms": wait_ms}
    return [Session(pid, role, name, ended) for pid, role, name, ended in connection.execute(_END_OLDER, asked)]


def lock_holders(connection: Connection, *, table: str) -> list[Session]:
    """Sessions that hold more than a reader's lock on ``table``: they may block a claim."""
    return [Session(pid, role, name) for pid, role, name in connection.execute(_HOLDERS, {"table": table})]


def driver_sessions(connection: Connection, *, table: str) -> list[DriverSession]:
    """The sessions that represent drivers: presence sessions, followed by deciding transactions."""
    answer = connection.execute(_DRIVERS, {"presence": _PRESENCE_PREFIX, "deciding": _PREFIX, "table": table})
    return [DriverSession(*found) for found in answer]


def session_of(
    sessions: Iterable[DriverSession], table: str, transactional_id: str, generation: int, run_id: str
) -> DriverSession | None:
    """A session of one driver: with this claim, or with a newer one; or of the run, which represents all its claims."""
    prefixes = (presence_prefix(table, transactional_id), application_name_prefix(transactional_id))
    of_run = run_presence_name(table, run_id)

    def shows(name: str) -> bool:
        claim = next((name.removeprefix(prefix) for prefix in prefixes if name.startswith(prefix)), "")
        is_number = claim.isascii() and claim.isdecimal() and len(claim) <= _GENERATION_DIGITS_MAX
        return name == of_run or (is_number and int(claim) >= generation)

    return next((each for each in sessions if shows(each.name)), None)


_log = sink_log(__name__)

#: How often the session is checked, in seconds. A broken session is missing for up to this long, plus the time to
#: reconnect.
CHECK_S: Final = 1.0
_OPERATION: Final = "heartbeat session of the driver"
#: Time limit of its requests, in milliseconds.
_STATEMENT_MS: Final = 5_000
#: The same for its last statement: shutdown must not wait long for a server that does not answer.
_CLOSE_MS: Final = 1_000
#: A pooler in transaction mode lends a session to the next client; in session mode it keeps it for its client. This is
#: how often two connections are asked which session they have.
_POOLER_ROUNDS: Final = 3
# It has no idle time-out; and the server too notices a dead client, after 25 s.
_NAMED: Final = """
SELECT set_config('application_name', %s, false), set_config('idle_session_timeout', '0', false),
       set_config('tcp_keepalives_idle', '10', false), set_config('tcp_keepalives_interval', '5', false),
       set_config('tcp_keepalives_count', '3', false), set_config('tcp_user_timeout', '25000', false)
"""


class Presence:
    """Shows a driver's newest claim in pg_stat_activity while ``shown_while()``, asked every `CHECK_S`. Thread-safe."""

    def __init__(self, database: Database, shown_while: Callable[[], bool]) -> None:
        self._database = database
        self._shown_while = shown_while
        self._changed = threading.Condition()
        # Name to be shown; '' for none.
        self._name = ""
        self._session: psycopg2.extensions.connection | None = None
        self._begun_s = 0.0
        self._thread: threading.Thread | None = None
        self._warned = False

    def show(self, name: str) -> None:
        """Show ``name`` from now on. Failure to open the session is not an error: a claim is valid without one."""
        with self._changed:
            self._name = name
            self._renew(name)
            if self._name and self._thread is None:
                # Copy the context, so that log lines carry the sink's id.
                context = copy_context()
                self._thread = threading.Thread(
                    target=context.run, args=(self._run,), name="jdbc_state presence", daemon=True
                )
                self._thread.start()

    def end(self) -> None:
        """End the session, if there is one. After this call it is no longer visible."""
        with self._changed:
            self._name = ""
            self._clear_name()
            self._drop()
            self._changed.notify_all()

    def _run(self) -> None:
        ended = ""
        while True:
            with self._changed:
                if ended == self._name:
                    self._name = ""
                else:
                    self._changed.wait(CHECK_S)
                name = self._name
                if not name:
                    self._drop()
                    self._thread = None
                    return
                if not self._is_usable():
                    self._renew(name)
            # Not while others wait for the lock: the answer may take any time.
            ended = "" if self._shown_while() else name

    def _is_usable(self) -> bool:
        """True while the session needs no check: the server, which would announce its end, has sent nothing."""
        # It is replaced as often as other connections are, so that after a failover it is seen at the new primary.
        session = self._session
        if session is None or session.closed or time.monotonic() - self._begun_s > KEPT_S_MAX:
            return False
        return not has_something_to_read(session)

    def _renew(self, name: str) -> None:
        """Show the name by a new session, and only then end the previous one."""
        try:
            session = self._database.session(_OPERATION)
            try:
                with Watchdog(session, _STATEMENT_MS):
                    lent = self._is_shared_by_pooler(session)
                    if not lent:
                        with session.cursor() as cursor:
                            cursor.execute(_NAMED, (name,))
            except BaseException:
                session.close()
                raise
        except (psycopg2.Error, DatabaseUnreachableError) as error:
            self._drop()
            if not self._warned:
                self._warned = True
                _log.warning("cannot open the heartbeat session; will retry: %s", describe(error))
            return
        self._drop()
        self._warned = False
        if lent:
            session.close()
            self._name = ""
            _log.info(
                "the database is behind a pooler in transaction mode: this driver is visible only during its "
                "transactions, so the age of its state row tells whether it is alive"
            )
        else:
            self._session, self._begun_s = session, time.monotonic()

    def _is_shared_by_pooler(self, session: psycopg2.extensions.connection) -> bool:
        """True behind a pooler in transaction mode: its sessions do not keep the names of idle clients."""
        if not behind_pooler(session):
            return False
        with closing(self._database.session(_OPERATION)) as other:
            return any(backend_pid(session) == backend_pid(other) for _ in range(_POOLER_ROUNDS))

    def _clear_name(self) -> None:
        """Clear the name, as a server still shows a session for some moments after its client has ended."""
        session = self._session
        if session is None or session.closed:
            return
        try:
            with Watchdog(session, _CLOSE_MS), session.cursor() as cursor:
                cursor.execute("SET application_name = ''")
        except psycopg2.Error as error:
            _log.info("could not clear application_name of the heartbeat session: %s", describe(error))

    def _drop(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None
