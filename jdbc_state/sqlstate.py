"""PostgreSQL's error codes (SQLSTATE) as errors of this package: which are retriable, and what a message may show."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg2
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from jdbc_state.errors import StateStoreError

#: SQLSTATEs, and classes of them, after which the same batch may succeed when it is run again: serialization failure,
#: deadlock, lock timeout, an idle session ended, operator intervention; connection, resources. Not 57014
#: (query_canceled: a statement timeout, or a person): repeating the statement would take as long again.
_RETRIABLE_CODES = frozenset({"40001", "40P01", "55P03", "25P03", "57P01", "57P02", "57P03", "57P05"})
_RETRIABLE_CLASSES = ("08", "53")
#: The connection ended without an answer: connection_failure, a code that libpq does not provide.
CONNECTION_FAILURE = "08006"

#: A lock was not available in time.
LOCK_NOT_AVAILABLE = "55P03"
#: The server ends the session: admin_shutdown (also of one backend), crash_shutdown, idle_session_timeout.
_ENDED_SESSIONS = frozenset({"57P01", "57P02", "57P05"})

#: A privilege is missing. PostgreSQL names the object and not the privilege.
INSUFFICIENT_PRIVILEGE = "42501"
_GRANT = (
    ". Have its owner grant the role what it needs: SELECT, INSERT and UPDATE on the state table, DELETE too on the "
    "history table, SELECT, INSERT and DELETE on the table of actions, and USAGE on the schema of every table, also of "
    "the target tables. If a state table is missing: CREATE on its schema, or create it with a role that has that. "
    "docs/permissions.md lists everything"
)
#: The server does not accept writes: mostly a standby, after a failover that the URL does not follow; or it is
#: configured so, as providers do when the disk is nearly full.
READ_ONLY = "25006"
_PRIMARY = (
    ". Name the primary in the URL; or all servers, as in postgresql://job@/shop?host=a:5432&host=b:5432&"
    "target_session_attrs=read-write, which finds it after a failover too. If this is the primary, "
    "default_transaction_read_only is set on the role, the database or the server: have it reset, or use another role"
)
_REMEDIES = {INSUFFICIENT_PRIVILEGE: _GRANT, READ_ONLY: _PRIMARY}
#: The server function that finds a row violating a policy; its code is the same as for a missing privilege.
AGAINST_POLICY = "ExecWithCheckOptions"
_POLICIES = (
    ". The policies of row-level security on this table apply to the role: have its owner run ALTER TABLE … DISABLE "
    "ROW LEVEL SECURITY, or an administrator ALTER ROLE … BYPASSRLS"
)


def _original(error: BaseException) -> BaseException:
    """The driver's error, of which SQLAlchemy makes its own."""
    return error.orig if isinstance(error, DBAPIError) and error.orig is not None else error


def sqlstate_of(error: BaseException) -> str:
    """PostgreSQL's code of an error of psycopg2 or SQLAlchemy, '' for any other.

    A broken connection has no code of its own; it counts as 08006.
    """
    original = _original(error)
    if not isinstance(original, psycopg2.Error):
        return ""
    if original.pgcode:
        return str(original.pgcode)
    broken = isinstance(original, (psycopg2.OperationalError, psycopg2.InterfaceError))
    # libpq reports a reset or a lost SSL link in the middle of a result as a plain DatabaseError.
    return CONNECTION_FAILURE if broken or type(original) is psycopg2.DatabaseError else ""


def is_retriable(sqlstate: str) -> bool:
    """True when the same batch may succeed if it is run again."""
    return sqlstate in _RETRIABLE_CODES or sqlstate.startswith(_RETRIABLE_CLASSES)


def is_cut(sqlstate: str) -> bool:
    """True if the connection ended: the last statement may have been carried out, and another connection may work."""
    return sqlstate.startswith("08") or sqlstate in _ENDED_SESSIONS


def describe(error: BaseException) -> str:
    """PostgreSQL's own words in one line: code, message, detail and hint. Never the statement or its values."""
    original = _original(error)
    diagnosis = getattr(original, "diag", None)
    primary = getattr(diagnosis, "message_primary", None) or str(original) or type(original).__name__
    parts = [primary, getattr(diagnosis, "message_detail", None), getattr(diagnosis, "message_hint", None)]
    code = getattr(original, "pgcode", None)
    said = "; ".join(" ".join(part.split()) for part in parts if part)
    return f"{said} (SQLSTATE {code})" if code else said


def store_error(operation: str, error: BaseException) -> StateStoreError:
    sqlstate = sqlstate_of(error)
    source = getattr(getattr(_original(error), "diag", None), "source_function", None)
    remedy = _POLICIES if source == AGAINST_POLICY else _REMEDIES.get(sqlstate, "")
    return StateStoreError(
        operation=operation, detail=describe(error) + remedy, sqlstate=sqlstate, retriable=is_retriable(sqlstate)
    )


@contextmanager
def translated(operation: str) -> Iterator[None]:
    try:
        yield
    except (psycopg2.Error, SQLAlchemyError) as error:
        raise store_error(operation, error) from error
