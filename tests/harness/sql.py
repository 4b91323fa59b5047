"""SQL past everything that is tested: one session of psycopg2's own; and a role whose password changes."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg2
from sqlalchemy.engine import URL, make_url

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


class ChangingRole:
    """A role that may do everything in one database, and whose password changes."""

    def __init__(self, database: str) -> None:
        self._database = database
        self.name = f"role_{secrets.token_hex(4)}"
        given = make_url(database)
        self.url = URL.create(
            "postgresql+psycopg2", self.name, host=given.host, port=given.port, database=given.database
        )
        self.password = ""
        self.asked = 0
        run_sql(self._database, f"CREATE ROLE {self.name} LOGIN SUPERUSER")
        self.change()

    def change(self) -> None:
        """A new password; connections that were made with the one before live on."""
        self.password = secrets.token_hex(8)
        run_sql(self._database, f"ALTER ROLE {self.name} PASSWORD '{self.password}'")

    def cut(self) -> None:
        run_sql(
            self._database,
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE usename = %s",
            self.name,
        )

    def ask(self) -> str:
        """The password of now, as a function for a store."""
        self.asked += 1
        return self.password


@contextmanager
def changing_role(database: str) -> Iterator[ChangingRole]:
    """A role for the block. ``database``: the URL by which an administrator reaches its database."""
    role = ChangingRole(database)
    try:
        yield role
    finally:
        role.cut()
        run_sql(database, f"DROP OWNED BY {role.name}")
        run_sql(database, f"DROP ROLE {role.name}")
