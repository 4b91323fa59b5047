"""SQL past everything that is tested: one session of psycopg2's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg2
from sqlalchemy.engine import make_url


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
