"""PostgreSQL's error codes (SQLSTATE) and libpq's messages as errors of this package.

Which codes are retriable, and what a message may show. Before a session has begun there is no SQLSTATE, only a text of
libpq, by which `connection_error` finds a remedy. Texts that are not in English get none.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import psycopg2
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from jdbc_state.errors import DatabaseRefusedError, DatabaseUnreachableError, StateStoreError

#: SQLSTATEs, and classes of them, after which the same batch may succeed when it is run again: serialization failure,
#: deadlock, lock timeout, an idle session ended, operator intervention; connection, resources. Not 57014
#: (query_canceled: a statement timeout, or a person): repeating the statement would take as long again.
_RETRIABLE_CODES = frozenset({"40001", "40P01", "55P03", "25P03", "57P01", "57P02", "57P03", "57P05"})
_RETRIABLE_CLASSES = ("08", "53")
#: The connection ended without an answer: connection_failure, a code that libpq does not provide.
CONNECTION_FAILURE = "08006"

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
    """PostgreSQL's code of an error of psycopg2 or SQLAlchemy (08006 for a broken connection), '' for any other."""
    original = _original(error)
    if not isinstance(original, psycopg2.Error):
        return ""
    if original.pgcode:
        return str(original.pgcode)
    broken = isinstance(original, (psycopg2.OperationalError, psycopg2.InterfaceError))
    # libpq reports a reset or a lost SSL link in the middle of a result as a plain DatabaseError.
    return CONNECTION_FAILURE if broken or type(original) is psycopg2.DatabaseError else ""


def is_retriable(sqlstate: str) -> bool:
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


_ROLE: Final = r'(?:user|role) "(?P<role>[^"]*)"'
_WHERE: Final = r'host "(?P<host>[^"]*)", user "(?P<role>[^"]*)", database "(?P<database>[^"]*)"'
_IN_CONNECTION: Final = "connected to another database of the server, such as postgres"
# Template fields: {role} and {database} from the URL or else from the text; {q_role} and {q_database} quoted for SQL.
_REFUSED: Final = {
    rf"password authentication failed for {_ROLE}": (
        "Correct the password where it comes from: the URL (special characters encoded as %XX), database_password, "
        "password_command, PGPASSWORD or ~/.pgpass. Or have an administrator set it: ALTER ROLE {q_role} PASSWORD "
        "'<password>'. The server answers the same for a role that does not exist, has no password, or whose password "
        "has expired (VALID UNTIL)"
    ),
    "no password supplied": (
        "The server asks for a password: add it to the URL as in postgresql://{role}:<password>@host/database, or "
        "pass database_password or password_command, or set PGPASSWORD"
    ),
    rf"{_ROLE} does not exist": (
        "Name an existing role in the URL, as in postgresql://<role>:<password>@host/database, or have an "
        "administrator run CREATE ROLE {q_role} LOGIN PASSWORD '<password>'"
    ),
    rf"{_ROLE} is not permitted to log in": "Have an administrator run ALTER ROLE {q_role} LOGIN",
    r'database "(?P<database>.*)" does not exist': (
        f"Correct the database in the URL, or create it, {_IN_CONNECTION}: CREATE DATABASE {{q_database}}"
    ),
    r'permission denied for database "(?P<database>[^"]*)"': (
        "Have its owner run GRANT CONNECT ON DATABASE {q_database} TO {q_role}"
    ),
    r'database "(?P<database>[^"]*)" is not currently accepting connections': (
        f"Have an administrator, {_IN_CONNECTION}, run ALTER DATABASE {{q_database}} ALLOW_CONNECTIONS true"
    ),
    rf"(?:no pg_hba.conf entry|pg_hba.conf rejects connection) for {_WHERE}": (
        "Have an administrator put this line into the server's pg_hba.conf, before any line that rejects the "
        "connection, and run SELECT pg_reload_conf(): {hba_line}. If the server accepts only encrypted connections, "
        "add sslmode=require to the query of the URL"
    ),
    rf"\w+ authentication failed for {_ROLE}": (
        "The server's pg_hba.conf requires this login method for the role: use it, name a host in the URL if the "
        "connection is by a local socket, or have an administrator change the method there to scram-sha-256 and run "
        "SELECT pg_reload_conf()"
    ),
}
_UNREACHABLE: Final = {
    r'could not translate host name "(?P<host>[^"]*)"': (
        "Correct the host in the URL, or the name service of this machine, which cannot resolve it"
    ),
    "connection refused": (
        "Start the server, or correct host and port in the URL; from another machine, listen_addresses of the server "
        "must include its address"
    ),
    r"socket .* failed: no such file": (
        "The URL names no host, so a local socket was tried. Name the host, as in "
        "postgresql://{role}@localhost:5432/{database}, or start a server on this machine"
    ),
    "timeout expired|timed out": (
        "Correct host and port in the URL, or open the network path: there was no answer within connect_timeout_s"
    ),
    "no route to host|network is unreachable": "Correct the host in the URL, or the network of this machine",
    "does not support SSL, but SSL was required": (
        "Turn TLS on at the server (ssl = on, with ssl_cert_file and ssl_key_file), or, if the network is trusted, "
        "remove sslmode from the URL"
    ),
    'root certificate file "(?P<file>[^"]*)" does not exist': (
        "Name the certificate of the authority in the query of the URL: sslrootcert=<file>; or replace verify-ca or "
        "verify-full by sslmode=require, which encrypts without authenticating the server"
    ),
    "certificate verify failed": (
        "Name the certificate of the authority that signed the server's in the query of the URL: sslrootcert=<file>"
    ),
    "does not match host name": (
        "Name the server in the URL as its certificate does, or set sslmode=verify-ca in the query of the URL"
    ),
    'private key file "(?P<file>[^"]*)" (?:has group or world access|must be owned)': (
        "Let only its owner read it: chmod 600 {file}"
    ),
    "too many clients|too many connections|connection slots are reserved": (
        "End sessions that are idle, use a pooler, or have an administrator raise max_connections, or the CONNECTION "
        "LIMIT of role and database"
    ),
    "session is read-only|is in hot standby|session is not read-only|server is not in hot standby": (
        "No server in the URL matches target_session_attrs: add the other servers, or wait for the failover"
    ),
    "invalid (?:connection option|URI query parameter|dsn)|value: ": (
        "Remove it from the query of the URL, or correct it: only parameters of libpq are allowed"
    ),
    'definition of service "(?P<service>[^"]*)" not found': (
        "Define it in ~/.pg_service.conf or in the file that PGSERVICEFILE names, or name host and database in the URL"
    ),
}


def connection_error(operation: str, error: Exception, url: URL, *, retriable: bool) -> DatabaseUnreachableError:
    """The error for a connection that could not be made. Raise it without its cause, which may contain the password."""
    detail = describe(error)
    if not str(_original(error)):
        detail = f"{detail}; libpq gave no reason{_no_more_files()}"
    if url.password:
        detail = detail.replace(url.password, "***")
    kind, remedy = _kind_of(detail, url)
    return kind(operation=operation, detail=f"{detail}. {remedy}" if remedy else detail, retriable=retriable)


def _no_more_files() -> str:
    """Why libpq could not open a socket, if file descriptors ran out: libpq gives no reason then."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return f": {error.strerror}; raise the limit of open files (ulimit -n) of this process"
    return ""


def _kind_of(said: str, url: URL) -> tuple[type[DatabaseUnreachableError], str]:
    for kind, known in ((DatabaseRefusedError, _REFUSED), (DatabaseUnreachableError, _UNREACHABLE)):
        for pattern, remedy in known.items():
            found = re.search(pattern, said, re.IGNORECASE)
            if found is not None:
                return kind, remedy.format_map(_names(found.groupdict(), url))
    return DatabaseUnreachableError, ""


def _names(found: dict[str, str], url: URL) -> dict[str, str]:
    # The server's messages do not double quotation marks in names.
    given = {"role": url.username, "database": url.database}
    names = {"role": "<role>", "database": "<database>", "host": "", **found}
    names |= {name: value for name, value in given.items() if value}
    database, role, host = (_quoted(names["database"]), _quoted(names["role"]), names["host"])
    net = f"{host}/{128 if ':' in host else 32}"
    place = "local {0} {1}" if host in ("", "[local]") else "host {0} {1} {2}"
    line = f"{place.format(database, role, net)} scram-sha-256"
    return {**names, "q_role": role, "q_database": database, "hba_line": line}


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
