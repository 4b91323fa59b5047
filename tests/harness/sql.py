"""SQL past everything that is tested: one session of psycopg2's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg2
from sqlalchemy.engine import make_url

#: The sessions of a database but the one that asks.
_OTHERS = (
    "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
    "AND backend_type = 'client backend' AND"
)


@contextmanager
def sql_session(database: str, **connecting: Any) -> Iterator[Any]:
    """A cursor of a session that commits each statement, and is closed at the end."""
    url = make_url(database)
    connection = psycopg2.connect(
        host=url.host, port=url.port, user=url.username, password=url.password, dbname=url.database, **connecting
    )
    try:
        connection.autocommit = True
        with connection.cursor() as cursor:
            yield cursor
    finally:
        connection.close()


def run_sql(database: str, statement: str, *values: object, **connecting: Any) -> list[tuple[Any, ...]]:
    """Run one statement in a session of its own; its rows, none where it has none."""
    with sql_session(database, **connecting) as cursor:
        cursor.execute(statement, values or None)
        return list(cursor.fetchall()) if cursor.description else []


def sessions(database: str, where: str = "true") -> list[tuple[str, int]]:
    """Name and process of each other session in a database, in the order in which they began.

    Args:
        where: a condition on ``pg_stat_activity``.
    """
    found = run_sql(database, f"SELECT application_name, pid {_OTHERS} {where} ORDER BY backend_start")
    return [(name, pid) for name, pid in found]


def end_sessions(database: str, where: str = "true") -> int:
    """End other sessions, and wait until they are gone; how many there were."""
    return sum(ended for (ended,) in run_sql(database, f"SELECT pg_terminate_backend(pid, 10000) {_OTHERS} {where}"))
