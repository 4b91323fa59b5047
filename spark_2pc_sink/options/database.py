"""The database: its SQLAlchemy URL, checked, completed and shown without its password; and the program that prints it.

SQLAlchemy is imported when a URL is first read: tasks that only write to Kafka need options, and no database.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final, NoReturn
from urllib.parse import quote, urlencode

from spark_2pc_sink.options.settings import HIDDEN, check_texts, refused

if TYPE_CHECKING:
    from sqlalchemy.engine import URL

#: psycopg 3 is SQLAlchemy's default from 2.1 on, and its URLs name the same database; the sink uses psycopg2.
_DRIVERS = ("postgresql", "postgresql+psycopg2", "postgresql+psycopg")
#: Substrings of the names of libpq parameters that hold a secret: password, sslpassword, oauth_client_secret.
_SECRET_WORDS = ("password", "secret")
#: JDBC may omit the host; any other scheme is followed by two slashes.
_SCHEME = re.compile(r"(?P<scheme>(?:jdbc:)?[a-z][\w+.-]*):(?P<slashes>//)|(?P<jdbc>jdbc:postgresql):", re.IGNORECASE)
_WITHOUT_SCHEME = re.compile(r"[^@/\s]+@[\w.-]+(?::\d+)?/[\w-]+(?:\?\S*)?|[\w.-]+:\d+/[\w-]+(?:\?\S*)?")
_ENCODED = "encode special characters as %XX"
_EXAMPLE = "pass 'postgresql+psycopg2://user:password@host:5432/database'"


def parse_database_url(text: object) -> str:
    """The SQLAlchemy URL with psycopg2 as its driver, whether it names this one, psycopg or none."""
    if not isinstance(text, str) or not text.strip():
        _refuse(HIDDEN if text else "", "it must be a SQLAlchemy URL", _EXAMPLE)
    _refuse_other_form(text.strip())
    url = _read_url(text.strip())
    if url is None:
        _refuse(HIDDEN, "it cannot be read as a SQLAlchemy URL", f"{_EXAMPLE}; {_ENCODED}")
    # Both literal NULs and %00.
    check_texts("database", [*url.translate_connect_args().values(), dict(url.query)])
    if url.host is not None and (" " in url.host or not url.host.isprintable()):
        _refuse(HIDDEN, "a host must not have a space, a line break or another invisible character", _EXAMPLE)
    if url.host is not None and "@" in url.host:
        # The text before it is the end of a password, and errors of connections name the host.
        rule = "a host must not have an @, and one in a password must be encoded"
        _refuse(HIDDEN, rule, f"{_EXAMPLE}, and write %40 for an @ in a user or a password")
    if url.database is not None and "@" in url.database:
        # A password with a literal '/': the rest of it would be shown as the name of a database.
        _refuse(HIDDEN, "an '@' follows the host, as when a password has a '/'", f"{_EXAMPLE}; {_ENCODED}")
    if url.database is not None and url.database != url.database.strip():
        # Parsing the text again would give another name, as the space is at its end.
        _refuse(HIDDEN, "the name of the database must not begin or end with a space", _EXAMPLE)
    if url.drivername not in _DRIVERS:
        _refuse(f"{url.drivername}://{HIDDEN}", "the database must be PostgreSQL", _EXAMPLE)
    return url.set(drivername="postgresql+psycopg2").render_as_string(hide_password=False)


def _refuse_other_form(text: str) -> None:
    """Refuse URLs that other programs accept for PostgreSQL, with the equivalent URL."""
    # A quotation mark only at the end is part of the name, so that a parsed URL is parsed the same again.
    bare = text.strip("'\"") if text.startswith(("'", '"')) else text
    found = _SCHEME.match(bare)
    scheme = "" if found is None else found["scheme"] or found["jdbc"]
    if bare == text and scheme in _DRIVERS:
        return
    rest = bare[found.end() :] if found is not None else bare
    if scheme.lower().startswith(("postgres", "jdbc:postgresql")):
        url = _read_several_hosts(rest if found is not None and found["slashes"] else f"/{rest.lstrip('/')}")
    elif found is None and _WITHOUT_SCHEME.fullmatch(bare):
        url = _read_several_hosts(bare)
    else:
        url = _read_keywords(bare) if found is None and "=" in bare else None
    # If an @ or a / of a password is not encoded, parts of it are read as other fields.
    if url is None or "@" in f"{bare.partition('?')[2]}{url.host}{url.database}":
        return
    shown = _of_libpq(url).render_as_string(hide_password=True)
    remedy = f"pass {shown!r}"
    if HIDDEN in shown:
        remedy += f", with the password in place of {HIDDEN}"
    rule = "it must be a SQLAlchemy URL, which begins with postgresql:// and has no quotation marks around it"
    _refuse(f"{scheme}{':' * bool(scheme)}{HIDDEN}", rule, remedy)


def _read_several_hosts(rest: str) -> URL | None:
    """The URL for the part after the slashes; several comma-separated hosts are parameters for SQLAlchemy."""
    place, slash, name = rest.partition("/")
    user, at, hosts = place.rpartition("@")
    if "," not in hosts:
        return _read_url(f"postgresql://{rest}")
    query = "&".join(f"host={host}" for host in hosts.split(","))
    return _read_url(f"postgresql://{user}{at}{slash}{name}{'&' if '?' in name else '?'}{query}")


def _read_keywords(text: str) -> URL | None:
    """The URL for a libpq connection string, ``host=… dbname=…``."""
    from sqlalchemy.engine import URL  # noqa: PLC0415 - see the module's docstring

    try:
        words = [word.partition("=") for word in shlex.split(text)]
    except ValueError:
        return None
    if not all(equals and name.isidentifier() for name, equals, _ in words):
        return None
    given = {name: value for name, _, value in words}
    names = {"username": "user", "password": "password", "host": "host", "database": "dbname"}
    parts: dict[str, Any] = {name: given.pop(keyword, None) for name, keyword in names.items()}
    port = given.pop("port", "")
    return URL.create("postgresql", **parts, port=int(port) if port.isdecimal() else None, query=given)


def _of_libpq(url: URL) -> URL:
    """A URL without a driver, with the parameters of JDBC and asyncpg renamed to those of libpq."""
    query: dict[str, Any] = _public_query(url)
    user, password = query.pop("user", None), url.query.get("password")
    ssl = query.pop("ssl", None)
    if ssl is not None:
        query.setdefault("sslmode", "require" if ssl in ("", "true") else "disable" if ssl == "false" else ssl)
    if "ApplicationName" in query:
        query["application_name"] = query.pop("ApplicationName")
    if "currentSchema" in query:
        query["options"] = f"-csearch_path={query.pop('currentSchema')}"
    url = url.set(drivername="postgresql", query=query)
    return url.set(username=url.username or user, password=url.password or (None if password is None else "-"))


def has_password(text: str) -> bool:
    url = _read_url(text)
    return url is not None and (url.password is not None or "password" in url.query)


def has_secret(text: str) -> bool:
    """Whether a valid URL has a password, or another secret in its query."""
    url = _read_url(text)
    return url is not None and (url.password is not None or _public_query(url) != dict(url.query))


def without_secrets(text: str) -> str:
    """A URL for people: the driver, the password and other secrets are removed."""
    from sqlalchemy.engine import URL, make_url  # noqa: PLC0415 - see the module's docstring

    url = make_url(parse_database_url(text))
    return URL.create(
        "postgresql", url.username, host=url.host, port=url.port, database=url.database, query=_public_query(url)
    ).render_as_string()


def as_libpq_uri(text: str) -> str:
    """A URL for libpq and its programs: they refuse a literal space, read a + literally, and take a host list."""
    from sqlalchemy.dialects.postgresql.psycopg2 import PGDialect_psycopg2  # noqa: PLC0415 - see the module's docstring
    from sqlalchemy.engine import make_url  # noqa: PLC0415

    # libpq's form of several hosts is "a,b", with separate ports.
    dialect: Any = PGDialect_psycopg2
    _, parameters = dialect().create_connect_args(make_url(without_secrets(text)))
    options = {name: str(value) for name, value in parameters.items()}
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
    raise refused("database", shown, rule, remedy)


#: How many characters of a program's standard error are shown.
_STDERR_MAX: Final = 300


class PasswordCommandError(Exception):
    """The program gave no password; the next call may succeed."""


@dataclass(frozen=True)
class PasswordCommand:
    """A program that prints a password; its words are quoted as for a shell, and it runs without one."""

    text: str
    timeout_s: int

    def __post_init__(self) -> None:
        # A command that can never be run is refused before it is needed.
        self._words()

    def __call__(self) -> str:
        """The first line of the program's standard output; else a PasswordCommandError."""
        try:
            done = subprocess.run(
                self._words(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=self.timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise PasswordCommandError(f"password_command was killed after {self.timeout_s} s") from None
        except (OSError, UnicodeDecodeError) as error:
            raise PasswordCommandError(f"password_command could not be run: {error}") from error
        stderr = done.stderr.strip()[-_STDERR_MAX:]
        if done.returncode != 0:
            raise PasswordCommandError(f"password_command ended with status {done.returncode}: {stderr}")
        first, _, _ = done.stdout.partition("\n")
        if not first.strip():
            raise PasswordCommandError(f"password_command printed no password: {stderr}")
        return first.rstrip("\r")

    def _words(self) -> list[str]:
        try:
            words = shlex.split(self.text)
        except ValueError as error:
            rule = f"it cannot be split into words: {error}"
            raise refused("password_command", HIDDEN, rule, "correct it") from None
        if not words:
            raise refused("password_command", HIDDEN, "it must name a program", "pass 'my-program --argument'")
        return words
