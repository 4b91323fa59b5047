"""A database role whose password changes while a test runs."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import create_engine, make_url, text
from sqlalchemy.engine import URL
from sqlalchemy.pool import NullPool


class ChangingRole:
    """A role that may do everything in one database, and whose password changes."""

    def __init__(self, database: str) -> None:
        self._admin = create_engine(database, isolation_level="AUTOCOMMIT", poolclass=NullPool)
        self.name = f"role_{secrets.token_hex(4)}"
        given = make_url(database)
        self.url = URL.create(
            "postgresql+psycopg2", self.name, host=given.host, port=given.port, database=given.database
        )
        self.password = ""
        self.asked = 0
        self._execute(f"CREATE ROLE {self.name} LOGIN SUPERUSER")
        self.change()

    def change(self) -> None:
        """A new password; connections that were made with the one before live on."""
        self.password = secrets.token_hex(8)
        self._execute(f"ALTER ROLE {self.name} PASSWORD '{self.password}'")

    def cut(self) -> None:
        ended = "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE usename = :name"
        self._execute(ended, name=self.name)

    def drop(self) -> None:
        self.cut()
        self._execute(f"DROP OWNED BY {self.name}")
        self._execute(f"DROP ROLE {self.name}")

    def ask(self) -> str:
        """The password of now, as a function for a store."""
        self.asked += 1
        return self.password

    def _execute(self, statement: str, **parameters: object) -> None:
        with self._admin.connect() as connection:
            connection.execute(text(statement), parameters)


@contextmanager
def changing_role(database: str) -> Iterator[ChangingRole]:
    """A role for the block.

    Args:
        database: the URL by which an administrator reaches its database.
    """
    role = ChangingRole(database)
    try:
        yield role
    finally:
        role.drop()
