"""Drivers' database sessions: how they are named and found, and how those of older drivers are ended.

A driver with a claim is visible by a separate idle session (`presence`): ``2pc@<id>:<sink>:<generation>``, where <sink>
is a hash of its state table and id, as an idle session holds no lock that would tell its state table. The deciding
transaction has ``2pc:<id>:<generation>`` as its application_name while it is open (SET LOCAL, so it also works through
a connection pooler). A newer claim finds such transactions in pg_stat_activity and ends them: otherwise a driver that
is paused inside COPY would hold its locks and unique keys until its statement times out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import Connection, text

from jdbc_state.schema import StateTables, quoted

#: NAMEDATALEN - 1: PostgreSQL cuts a longer application_name off.
APPLICATION_NAME_BYTES_MAX = 63
_PREFIX = "2pc:"
#: Any 64-bit generation.
_GENERATION_DIGITS_MAX = 19
#: Leaves room for the prefix, a colon, and any generation.
_ID_BYTES_MAX = APPLICATION_NAME_BYTES_MAX - len(_PREFIX) - len(":") - _GENERATION_DIGITS_MAX
#: Prefix of the replacement for an id that does not fit. Ids that start with it are hashed too, so names are unique.
_HASHED = "#"
_HASH_BYTES = 16
_PRESENCE_PREFIX = "2pc@"
_SINK_DIGITS = 12
_RUN_DIGITS = 32
_SHOWN_ID_MAX = APPLICATION_NAME_BYTES_MAX - len(_PRESENCE_PREFIX) - _SINK_DIGITS - len("::") - _GENERATION_DIGITS_MAX


def application_name_prefix(transactional_id: str) -> str:
    """``2pc:<id>:``, or ``2pc:#<hash>:`` for an id that PostgreSQL would cut off or rewrite (beyond ASCII)."""
    fits = transactional_id.isascii() and transactional_id.isprintable() and len(transactional_id) <= _ID_BYTES_MAX
    if fits and not transactional_id.startswith(_HASHED):
        return f"{_PREFIX}{transactional_id}:"
    digest = hashlib.blake2b(transactional_id.encode(), digest_size=_HASH_BYTES).hexdigest()
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
    run = hashlib.sha256(f"{table}\0{run_id}".encode()).hexdigest()[:_RUN_DIGITS]
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
    """One session of the database."""

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
    asked = {
        "prefix": application_name_prefix(transactional_id),
        "table": quoted(tables.state),
        "history": quoted(tables.history),
        "generation": below_generation,
        "wait_ms": wait_ms,
    }
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
