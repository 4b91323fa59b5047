"""The SQLAlchemy URL of the database: checked, completed, and shown without its password.

SQLAlchemy is imported when a URL is first read: tasks that only write to Kafka need options, and no database.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options.settings import HIDDEN

if TYPE_CHECKING:
    from sqlalchemy.engine import URL

_DRIVERS = ("postgresql", "postgresql+psycopg2")
_EXAMPLE = "pass 'postgresql+psycopg2://user:password@host:5432/database'"


def parse_database_url(text: object) -> str:
    """The URL with its driver spelt out.

    Args:
        text: an SQLAlchemy URL; 'postgresql://' means psycopg2.

    Raises:
        ConfigurationError: not a URL, another dialect or another driver. A password is never part of the message.
    """
    if not isinstance(text, str) or not text.strip():
        _refuse(HIDDEN, "it is an SQLAlchemy URL", _EXAMPLE)
    scheme = text.partition(":")[0]
    if scheme.lower() in ("jdbc", "postgres"):
        _refuse(f"{scheme}:{HIDDEN}", "it is an SQLAlchemy URL, whose scheme is 'postgresql'", _EXAMPLE)
    url = _read_url(text.strip())
    if url is None:
        _refuse(HIDDEN, "it cannot be read as an SQLAlchemy URL", f"{_EXAMPLE}; encode special characters as %XX")
    if url.drivername not in _DRIVERS:
        _refuse(f"{url.drivername}://{HIDDEN}", "the database is PostgreSQL, reached with psycopg2", _EXAMPLE)
    return url.set(drivername="postgresql+psycopg2").render_as_string(hide_password=False)


def _read_url(text: str) -> URL | None:
    """The URL, or None: SQLAlchemy's own message shows the text, password and all, and must not be chained."""
    from sqlalchemy.engine import make_url  # noqa: PLC0415 - see the module's docstring
    from sqlalchemy.exc import ArgumentError  # noqa: PLC0415

    try:
        return make_url(text)
    except (ArgumentError, ValueError):
        return None


def _refuse(shown: str, rule: str, remedy: str) -> NoReturn:
    raise ConfigurationError(option="database", value=shown, rule=rule, remedy=remedy)
