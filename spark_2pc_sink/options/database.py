"""The SQLAlchemy URL of the database: checked, completed, and shown without its password.

SQLAlchemy is imported when a URL is first read: tasks that only write to Kafka need options, and no database.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import quote, urlencode

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options.text_checks import HIDDEN, check_texts

if TYPE_CHECKING:
    from sqlalchemy.engine import URL

_DRIVERS = ("postgresql", "postgresql+psycopg2")
#: What the names of libpq's parameters with a secret have in them: password, sslpassword, oauth_client_secret.
_SECRET_WORDS = ("password", "secret")
_ENCODED = "encode special characters as %XX"
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
        _refuse(HIDDEN, "it cannot be read as an SQLAlchemy URL", f"{_EXAMPLE}; {_ENCODED}")
    # Of what the text says as it is, and of what it says as %00.
    check_texts("database", [*url.translate_connect_args().values(), dict(url.query)])
    if url.host is not None and (" " in url.host or not url.host.isprintable()):
        _refuse(HIDDEN, "a host has no space, line break or other character that cannot be seen", _EXAMPLE)
    if url.host is not None and "@" in url.host:
        # What stands before it is the end of a password, and errors of connections name the host.
        rule = "a host has no @, and a password with one is encoded"
        _refuse(HIDDEN, rule, f"{_EXAMPLE}, and write %40 for an @ in a user or a password")
    if url.database is not None and "@" in url.database:
        # A password with a '/' that stands as it is: the rest of it would be shown as the name of a database.
        _refuse(HIDDEN, "behind the host is an '@', as where a password has a '/'", f"{_EXAMPLE}; {_ENCODED}")
    if url.database is not None and url.database != url.database.strip():
        # It would be another name where the text is read once more, as its end is the end of the text.
        _refuse(HIDDEN, "the name of the database neither begins nor ends with a space", _EXAMPLE)
    if url.drivername not in _DRIVERS:
        _refuse(f"{url.drivername}://{HIDDEN}", "the database is PostgreSQL, reached with psycopg2", _EXAMPLE)
    return url.set(drivername="postgresql+psycopg2").render_as_string(hide_password=False)


def has_password(text: str) -> bool:
    """Whether a URL that can be read has a password."""
    url = _read_url(text)
    return url is not None and (url.password is not None or "password" in url.query)


def has_secret(text: str) -> bool:
    """Whether a URL that can be read has a password, or another secret in its query."""
    url = _read_url(text)
    return url is not None and (url.password is not None or _public_query(url) != dict(url.query))


def without_secrets(text: str) -> str:
    """A URL as people may see it: the driver, the password and other secrets are left out.

    Raises:
        ConfigurationError: it is none.
    """
    from sqlalchemy.engine import URL, make_url  # noqa: PLC0415 - see the module's docstring

    url = make_url(parse_database_url(text))
    return URL.create(
        *("postgresql", url.username), host=url.host, port=url.port, database=url.database, query=_public_query(url)
    ).render_as_string()


def as_libpq_uri(text: str) -> str:
    """The same as libpq and its programs read it: they take no space, a + for a plus, and several hosts in a row.

    Raises:
        ConfigurationError: it is none.
    """
    from sqlalchemy.dialects.postgresql.psycopg2 import PGDialect_psycopg2  # noqa: PLC0415 - see the module's docstring
    from sqlalchemy.engine import make_url  # noqa: PLC0415

    # Several hosts are "a,b" for libpq, and their ports are apart.
    dialect: Any = PGDialect_psycopg2
    _, told = dialect().create_connect_args(make_url(without_secrets(text)))
    options = {name: str(value) for name, value in told.items()}
    user, database = (quote(options.pop(name, ""), safe="") for name in ("user", "dbname"))
    hosts, ports = (options.pop(name, "").split(",") for name in ("host", "port"))
    places = ",".join(
        (f"[{host}]" if ":" in host else quote(host, safe="")) + (f":{port}" if port else "")
        for host, port in zip_longest(hosts, ports, fillvalue="")
    )
    query = urlencode(options, quote_via=quote)
    return f"postgresql://{user}{'@' if user else ''}{places}/{database}{'?' if query else ''}{query}"


def _public_query(url: URL) -> dict[str, str | tuple[str, ...]]:
    return {name: value for name, value in url.query.items() if not any(word in name for word in _SECRET_WORDS)}


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
