"""Connections to one PostgreSQL database, and requests that are sent as a single message.

A pooler in transaction mode (PgBouncer) may give every transaction another server session, and a client may be
stopped at any instant. So no state is kept in a session: time-outs are set with SET LOCAL, in the same message as the
statement that they apply to. Such a message is one implicit transaction, which the server ends: a client that is
stopped after sending it holds no lock.
"""

from __future__ import annotations

import ipaddress
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from typing import Any, Final

import psycopg2
from psycopg2.extensions import TRANSACTION_STATUS_IDLE
from sqlalchemy import Connection, create_engine, event, make_url
from sqlalchemy.engine import URL, Engine
from sqlalchemy.exc import DisconnectionError, SQLAlchemyError
from sqlalchemy.pool import QueuePool

from jdbc_state.database_kind import PLAIN, DatabaseKind, check_kind, find_kind
from jdbc_state.errors import ConfigurationError, DatabaseUnreachableError
from jdbc_state.settings import StoreSettings
from jdbc_state.sink_log import sink_log
from jdbc_state.sqlstate import connection_error, translated
from jdbc_state.watchdog import Watchdog

_log = sink_log(__name__)
_REMEDY: Final = (
    "add sslmode=verify-full and sslrootcert=FILE, with the certificate of the server's authority, to the URL of "
    "database (postgresql://…?sslmode=verify-full&sslrootcert=FILE)"
)
#: Databases for which this process has logged a warning.
_told: set[str] = set()


def readable_by(connection: Any) -> str | None:
    """The remote host of a connection that could be read in transit; None for a secure one."""
    # ``sslmode`` does not tell: libpq's default, ``prefer``, continues without TLS if the server does not offer it. A
    # Unix socket and loopback stay on the machine; a proxy there is responsible for its own connection.
    if connection.info.ssl_in_use:
        return None
    with closing(socket.socket(fileno=os.dup(connection.info.socket))) as its:
        if its.family == socket.AF_UNIX:
            return None
        host = str(its.getpeername()[0])
    # A link-local address of IPv6 has its interface as a suffix.
    return None if ipaddress.ip_address(host.partition("%")[0]).is_loopback else host


def check_encrypted(connection: Any, label: str, *, required: bool) -> None:
    host = readable_by(connection)
    if host is None:
        return
    if required:
        connection.close()
        rule = f"connections must use TLS, and the one to {label} at {host} does not; nothing was written"
        raise ConfigurationError(option="require_tls", value=True, rule=rule, remedy=_REMEDY)
    if label not in _told:
        _told.add(label)
        _log.warning(
            "the connection to %s at %s has no TLS, so rows and statements can be read in transit: %s. "
            "require_tls=True refuses such connections",
            label,
            host,
            _REMEDY,
        )


def ask_password(password: Callable[[], str]) -> str:
    """The password for a new connection; a failure to get it is like any other connection failure."""
    try:
        given: object = password()
    except Exception as error:
        raise psycopg2.OperationalError(f"the password function failed: {type(error).__name__}: {error}") from error
    if not isinstance(given, str) or not given:
        rule = "the function must return a text that is not empty"
        raise ConfigurationError(option="database_password", value="***", rule=rule, remedy="return the password")
    return given


#: The server's own time-out fires first and gives the better message; the watchdog covers a server that is stopped.
ANSWER_GRACE_MS = 2_000
#: The first pause between two attempts, and the number of times that it is doubled.
_PAUSE_S: Final = 0.05
_DOUBLINGS_MAX: Final = 4
#: Seconds after which a continuing wait for the database is logged again.
_TOLD_EVERY_S: Final = 10.0
#: A connection is replaced after this, so that after a failover we soon talk to the new primary.
KEPT_S_MAX = 60
#: A connection used less than this many seconds ago is assumed to be alive.
_TRUSTED_S: Final = 1.0
_LENT = "jdbc_state_lent_s"
#: Execution option: SQL to be sent before a statement, in the same message.
_PRELUDE = "jdbc_state_prelude"
#: A dead link is noticed after idle + count x interval = 25 s, both while waiting and while sending.
KEEPALIVE: Final[dict[str, int]] = {
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}
# A role or a database may limit its transactions, from PostgreSQL 17 on. Ours are limited by statement.
_NO_TRANSACTION_TIMEOUT: Final = (
    "CASE WHEN current_setting('server_version_num')::integer >= 170000 "
    "THEN set_config('transaction_timeout', '0', true) END"
)
#: SQL for the beginning of a transaction without a limit of its total time.
UNTIMED: Final = f"SELECT {_NO_TRANSACTION_TIMEOUT}; "
#: synchronous_commit of a decision or a claim: 'on', so that a crash of the server cannot undo the commit, or the
#: stricter remote_apply.
DURABLE_LEVEL: Final = (
    "CASE current_setting('synchronous_commit') WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END"
)
#: The same as `UNTIMED`, and durable.
DURABLE: Final = f"SELECT set_config('synchronous_commit', {DURABLE_LEVEL}, true), {_NO_TRANSACTION_TIMEOUT}; "


class Database:
    """Opens connections, and turns every failure to do so into DatabaseUnreachableError.

    One connection is kept between successful transactions, since opening one costs more than most of them. It is tested
    before it is used again, and replaced regularly. After any error a connection is closed.
    """

    def __init__(self, url: str, settings: StoreSettings) -> None:
        # The default driver of postgresql:// is another one from SQLAlchemy 2.1 on.
        parsed = make_url(url).set(drivername="postgresql+psycopg2")
        self.label: str = _label(parsed)
        self._url = parsed
        self._settings = settings
        self._answered = False
        #: Kind of the database; None until the first connection was made.
        self.kind: DatabaseKind | None = None
        # For the connecting thread: the watchdog of the attempt, and whether the server has accepted the login.
        self._making = threading.local()
        self._engine = _engine(parsed, self._connect, settings.connect_timeout_s * 1000)
        # Runs before SQLAlchemy's own hook, which asks an engine's first connection for the server version.
        event.listen(self._engine, "connect", self._watch_new, insert=True)

    def open(self, operation: str) -> Connection:
        """Open a connection that has not begun a transaction; the caller closes it.

        A database that was reachable before has ``connect_deadline_ms`` to return (restart, failover). Errors name the
        host, the port and the database, never the password.
        """
        wait_ms = self._settings.connect_deadline_ms if self._answered else 0
        end_s = time.monotonic() + wait_ms / 1000
        told_s = -_TOLD_EVERY_S
        failures = 0
        while True:
            self._making.let_in = False
            try:
                with ExitStack() as self._making.until:
                    connection = self._engine.connect()
            except (SQLAlchemyError, psycopg2.Error) as error:
                unreachable = self._failed(operation, error)
                left_s = end_s - time.monotonic()
                if left_s <= 0:
                    # Another database may refuse what SQLAlchemy sends first.
                    self.check_kind()
                    if self._making.let_in:
                        self._refuse_statement_mode(operation)
                    raise unreachable from None
                if time.monotonic() - told_s >= _TOLD_EVERY_S:
                    told_s = time.monotonic()
                    _log.warning("%s; trying again for up to %.0f s", unreachable, left_s)
                time.sleep(min(pause_s(failures), left_s))
                failures += 1
            else:
                self._answered = True
                return connection

    @contextmanager
    def requests(self, operation: str, *, lock_timeout_ms: int | None = None) -> Iterator[Connection]:
        """A connection: each statement is one message and transaction, and waits for locks as a claim by default."""
        lock_ms = self._settings.claim_lock_timeout_ms if lock_timeout_ms is None else lock_timeout_ms
        limit_ms = self._settings.commit_timeout_ms
        limits = (
            "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; "
            f"SET LOCAL lock_timeout = {lock_ms}; SET LOCAL statement_timeout = {limit_ms}; {DURABLE}"
        )
        with self._lent(operation, self.named(operation), limit_ms=limit_ms) as connection:
            yield connection.execution_options(isolation_level="AUTOCOMMIT", **prelude(limits))

    @contextmanager
    def transaction(self, operation: str, *, lock_timeout_ms: int, statement_timeout_ms: int) -> Iterator[Connection]:
        """A short transaction, committed when the block exits; its total time is limited like one statement."""
        with self._lent(operation, operation, limit_ms=statement_timeout_ms) as connection, connection.begin():
            connection.exec_driver_sql(
                f"SET LOCAL lock_timeout = {lock_timeout_ms}; SET LOCAL statement_timeout = {statement_timeout_ms}; "
                f"{UNTIMED}"
            )
            yield connection

    def session(self, operation: str) -> psycopg2.extensions.connection:
        """An unshared connection in autocommit mode; the caller closes it."""
        try:
            connection = self._connect()
        except psycopg2.Error as error:
            raise self._failed(operation, error) from None
        connection.autocommit = True
        return connection

    def _failed(self, operation: str, error: Exception) -> DatabaseUnreachableError:
        operation = f"{operation}: connecting to {self.label}"
        return connection_error(operation, error, self._url, retriable=self._answered)

    def check_kind(self) -> DatabaseKind:
        """Return the kind of the database, PLAIN before the first connection; refuse one that lacks features."""
        kind = self.kind or PLAIN
        check_kind(kind, self.label, accepted=self._settings.accept_database)
        return kind

    def named(self, operation: str) -> str:
        return f"{operation} in {self.label}"

    def close(self) -> None:
        self._engine.dispose()

    @contextmanager
    def _lent(self, operation: str, shown: str, *, limit_ms: int) -> Iterator[Connection]:
        """A connection for a block that a stopped server cannot block; after an error it is not reused."""
        connection = self.open(operation)
        try:
            with translated(shown), Watchdog(driver_connection(connection), limit_ms + ANSWER_GRACE_MS):
                yield connection
        except BaseException:
            discard(connection)
            raise
        give_back(connection)

    def _connect(self) -> psycopg2.extensions.connection:
        settings = self._settings
        ours: dict[str, Any] = {
            "connect_timeout": settings.connect_timeout_s,
            "fallback_application_name": "jdbc_state",
            "connection_factory": QuietConnection,
            **KEEPALIVE,
        }
        # Parameters in the URL's query were set by the user.
        arguments, given = self._engine.dialect.create_connect_args(self._url)
        if settings.password is not None:
            given["password"] = ask_password(settings.password)
        connection: psycopg2.extensions.connection = psycopg2.connect(*arguments, **{**ours, **given})
        self._making.let_in = True
        check_encrypted(connection, self.label, required=settings.require_tls)
        return connection

    def _watch_new(self, driver: Any, record: object) -> None:
        """SQLAlchemy's hook: a server that does not answer after its greeting counts as unreachable."""
        del record
        self._making.until.enter_context(Watchdog(driver, self._settings.connect_timeout_s * 1000))
        if self.kind is not None:
            return
        try:
            self.kind = find_kind(driver)
        except psycopg2.Error:
            driver.close()
            raise
        if self.kind.lacks:
            # SQLAlchemy would fail to parse its version().
            major = driver.server_version // 10_000
            vars(self._engine.dialect)["_get_server_version_info"] = lambda _: (major,)

    def _refuse_statement_mode(self, operation: str) -> None:
        """Raise if the database accepts clients and then refuses their transactions."""
        limit_ms = self._settings.connect_timeout_s * 1000
        try:
            with closing(self.session(operation)) as session, Watchdog(session, limit_ms):
                if takes_transactions(session):
                    return
        except (psycopg2.Error, DatabaseUnreachableError):
            # It is unreachable as it seemed to be.
            return
        raise ConfigurationError(
            option="database",
            value=self.label,
            rule="must not be behind PgBouncer in statement mode: the rows of a batch and its decision need one "
            "transaction of several statements",
            remedy="set pool_mode = transaction, or session, for this database in pgbouncer.ini; or connect to the "
            "server directly",
        )


class QuietConnection(psycopg2.extensions.connection):
    """A connection that shows no connection string; SQLAlchemy's pool would log one with ``sslpassword`` in it."""

    def __repr__(self) -> str:
        return f"<connection {id(self):#x}, closed: {self.closed}>"

    __str__ = __repr__  # psycopg2 defines its own


def pause_s(failures: int) -> float:
    """Seconds to wait before the next attempt: each pause is twice as long as the previous one, up to 0.8 s."""
    return _PAUSE_S * float(2 ** min(failures, _DOUBLINGS_MAX))


def prelude(sql: str) -> dict[str, str]:
    """Execution options that send ``sql`` before a statement, in the same message."""
    return {_PRELUDE: sql}


def driver_connection(connection: Connection) -> Any:
    return connection.connection.driver_connection


def give_back(connection: Connection) -> None:
    """Let a connection be used again, unless it is in a state that the next user does not expect."""
    driver = driver_connection(connection)
    if driver.closed or driver.info.transaction_status != TRANSACTION_STATUS_IDLE:
        discard(connection)
        return
    try:
        connection.close()
    except (SQLAlchemyError, psycopg2.Error):
        # Resetting it for the next user sends one more request. The earlier ones are answered: only the connection is
        # lost, and another will be opened.
        driver.close()


def discard(connection: Connection) -> None:
    """Close a connection whose transaction has ended, or never will; this ends the session and releases its locks."""
    connection.invalidate()
    connection.close()


def _engine(url: URL, connect: Callable[[], Any], limit_ms: int) -> Engine:
    engine = create_engine(
        url,
        creator=connect,
        poolclass=QueuePool,
        # Requests are sequential; a concurrent one gets a connection that is closed afterwards.
        pool_size=1,
        max_overflow=-1,
        pool_recycle=KEPT_S_MAX,
        # psycopg2 sends it with BEGIN. The claim and the decision must see what was committed while they waited.
        isolation_level="READ COMMITTED",
        # Rows of the user's table do not belong into messages.
        hide_parameters=True,
        # One query less on each connection.
        use_native_hstore=False,
    )
    event.listen(engine, "before_cursor_execute", _prepend_prelude, retval=True)
    event.listen(engine, "checkout", partial(_check_kept, limit_ms=limit_ms))
    return engine


def _check_kept(driver: Any, record: Any, proxy: object, *, limit_ms: int) -> None:
    """SQLAlchemy's hook: replace a broken kept connection. One lent just now is checked only if its server spoke."""
    del proxy
    lent_s, record.info[_LENT] = record.info.get(_LENT), time.monotonic()
    if lent_s is None or (record.info[_LENT] - lent_s < _TRUSTED_S and not has_something_to_read(driver)):
        return
    try:
        with Watchdog(driver, limit_ms):
            driver.autocommit = True
            with driver.cursor() as cursor:
                cursor.execute("SELECT 1")
            driver.autocommit = False
    except psycopg2.Error as error:
        raise DisconnectionError(str(error)) from error


def has_something_to_read(driver: Any) -> bool:
    """Whether unread data has arrived: on an idle connection that is the server closing it."""
    readable = select.poll()
    readable.register(driver, select.POLLIN)
    return bool(readable.poll(0))


def _prepend_prelude(  # noqa: PLR0917 - SQLAlchemy passes them by position
    connection: Connection, cursor: object, statement: str, parameters: object, context: Any, executemany: object
) -> tuple[str, object]:
    """SQLAlchemy's hook: put the prelude before the statement. PostgreSQL answers with the last result."""
    del connection, cursor, executemany
    return context.execution_options.get(_PRELUDE, "") + statement, parameters


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


def _label(url: URL) -> str:
    """'host:port/database' without user and password; libpq's defaults for missing parts of the URL."""
    host, port, name = url.host, url.port, url.database or ""
    named = url.query.get("host", "local socket")
    if host is None and "service" in url.query:
        return f"service {url.query['service']}" + (f"/{name}" if name else "")
    if host is None and isinstance(named, tuple):
        # Several servers, each with its port.
        return f"{','.join(named)}/{name}"
    return f"{host or named}:{port or url.query.get('port', 5432)}/{name}"
