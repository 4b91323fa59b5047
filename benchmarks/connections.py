"""Connections to PostgreSQL that are the driver's own, without a library between."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg2
import sqlalchemy

if TYPE_CHECKING:
    from psycopg2.extensions import connection as Connection


def connect(url: str) -> Connection:
    """A connection, which its caller closes.

    Args:
        url: SQLAlchemy's, of a database.
    """
    address = sqlalchemy.make_url(url).set(drivername="postgresql")
    return psycopg2.connect(address.render_as_string(hide_password=False))
