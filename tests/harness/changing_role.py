"""A database role whose password changes while a test runs."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.engine import URL, make_url

from tests.harness.sql import run_sql


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

    def drop(self) -> None:
        self.cut()
        run_sql(self._database, f"DROP OWNED BY {self.name}")
        run_sql(self._database, f"DROP ROLE {self.name}")

    def ask(self) -> str:
        """The password of now, as a function for a store."""
        self.asked += 1
        return self.password


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
