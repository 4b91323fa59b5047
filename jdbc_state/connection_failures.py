"""Errors for failed connections to the database, with a remedy by libpq's message.

Before a session has begun there is no SQLSTATE, only a text. Texts that are not in English get no remedy.
"""

from __future__ import annotations

import os
import re
from typing import Final

from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError

from jdbc_state.errors import DatabaseRefusedError, DatabaseUnreachableError
from jdbc_state.sqlstate import describe

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
    original = error.orig if isinstance(error, DBAPIError) else error
    if not str(original):
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
    """The class of error for a failure, and its remedy; '' if none is known."""
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
