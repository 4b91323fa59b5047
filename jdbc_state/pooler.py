"""Connection poolers: detect one between client and server, and its mode."""

from __future__ import annotations

import psycopg2
import psycopg2.extensions


def backend_pid(session: psycopg2.extensions.connection) -> int:
    """The server's process id of the session, which a pooler may change between transactions."""
    with session.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        [(pid,)] = cursor.fetchall()
    return int(pid)


def behind_pooler(session: psycopg2.extensions.connection) -> bool:
    """True if there is a pooler: it gives its clients other process ids than the server's."""
    return bool(backend_pid(session) != session.info.backend_pid)


def takes_transactions(session: psycopg2.extensions.connection) -> bool:
    """False behind a pooler in statement mode, which closes the connection of a client that begins a transaction."""
    if not behind_pooler(session):
        return True
    try:
        with session.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute("ROLLBACK")
    except psycopg2.OperationalError:
        # The pooler's message is lost with the connection: libpq keeps the last error only.
        return False
    return True
