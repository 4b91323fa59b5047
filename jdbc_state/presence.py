"""Presence session: an idle database session, named after a claim, which shows that a driver is alive.

A driver is in a database transaction for only part of its time. Otherwise this session shows that it is alive: it is
opened after the claim, reopened if it breaks, and ends with the process. It costs one connection.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing
from contextvars import copy_context
from typing import Final

import psycopg2
import psycopg2.extensions

from jdbc_state.connections import KEPT_S_MAX, Database, backend_pid, behind_pooler, has_something_to_read
from jdbc_state.errors import DatabaseUnreachableError
from jdbc_state.sink_log import sink_log
from jdbc_state.sqlstate import describe
from jdbc_state.watchdog import Watchdog

_log = sink_log(__name__)

#: How often the session is checked, in seconds. A broken session is missing for up to this long, plus the time to
#: reconnect.
CHECK_S: Final = 1.0
_OPERATION: Final = "heartbeat session of the driver"
#: Time limit of its requests, in milliseconds.
_STATEMENT_MS: Final = 5_000
#: The same for its last statement: shutdown must not wait long for a server that does not answer.
_CLOSE_MS: Final = 1_000
#: A pooler in transaction mode lends a session to the next client; in session mode it keeps it for its client. This is
#: how often two connections are asked which session they have.
_POOLER_ROUNDS: Final = 3
# It has no idle time-out; and the server too notices a dead client, after 25 s.
_NAMED: Final = """
SELECT set_config('application_name', %s, false), set_config('idle_session_timeout', '0', false),
       set_config('tcp_keepalives_idle', '10', false), set_config('tcp_keepalives_interval', '5', false),
       set_config('tcp_keepalives_count', '3', false), set_config('tcp_user_timeout', '25000', false)
"""


class Presence:
    """Shows the newest claim of one driver in pg_stat_activity. Thread-safe.

    Args:
        shown_while: called every `CHECK_S`; if it returns False the session ends, until the next claim.
    """

    def __init__(self, database: Database, shown_while: Callable[[], bool]) -> None:
        self._database = database
        self._shown_while = shown_while
        self._changed = threading.Condition()
        # Name to be shown; '' for none.
        self._name = ""
        self._session: psycopg2.extensions.connection | None = None
        self._begun_s = 0.0
        self._thread: threading.Thread | None = None
        self._warned = False

    def show(self, name: str) -> None:
        """Show ``name`` from now on. Failure to open the session is not an error: a claim is valid without one."""
        with self._changed:
            self._name = name
            self._renew(name)
            if self._name and self._thread is None:
                # Copy the context, so that log lines carry the sink's id.
                context = copy_context()
                self._thread = threading.Thread(
                    target=context.run, args=(self._run,), name="jdbc_state presence", daemon=True
                )
                self._thread.start()

    def end(self) -> None:
        """End the session, if there is one. After this call it is no longer visible."""
        with self._changed:
            self._name = ""
            self._clear_name()
            self._drop()
            self._changed.notify_all()

    def _run(self) -> None:
        ended = ""
        while True:
            with self._changed:
                if ended == self._name:
                    self._name = ""
                else:
                    self._changed.wait(CHECK_S)
                name = self._name
                if not name:
                    self._drop()
                    self._thread = None
                    return
                if not self._is_usable():
                    self._renew(name)
            # Not while others wait for the lock: the answer may take any time.
            ended = "" if self._shown_while() else name

    def _is_usable(self) -> bool:
        """True while the session needs no check: the server, which would announce its end, has sent nothing.

        It is replaced as often as other connections are, so that after a failover it is seen at the new primary.
        """
        session = self._session
        if session is None or session.closed or time.monotonic() - self._begun_s > KEPT_S_MAX:
            return False
        return not has_something_to_read(session)

    def _renew(self, name: str) -> None:
        """Show the name by a new session, and only then end the previous one."""
        try:
            session = self._database.session(_OPERATION)
            try:
                with Watchdog(session, _STATEMENT_MS):
                    lent = self._is_shared_by_pooler(session)
                    if not lent:
                        with session.cursor() as cursor:
                            cursor.execute(_NAMED, (name,))
            except BaseException:
                session.close()
                raise
        except (psycopg2.Error, DatabaseUnreachableError) as error:
            self._drop()
            if not self._warned:
                self._warned = True
                _log.warning("cannot open the heartbeat session; will retry: %s", describe(error))
            return
        self._drop()
        self._warned = False
        if lent:
            session.close()
            self._name = ""
            _log.info(
                "the database is behind a pooler in transaction mode: this driver is visible only during its "
                "transactions, so the age of its state row tells whether it is alive"
            )
        else:
            self._session, self._begun_s = session, time.monotonic()

    def _is_shared_by_pooler(self, session: psycopg2.extensions.connection) -> bool:
        """True behind a pooler in transaction mode: its sessions do not keep the names of idle clients."""
        if not behind_pooler(session):
            return False
        with closing(self._database.session(_OPERATION)) as other:
            return any(backend_pid(session) == backend_pid(other) for _ in range(_POOLER_ROUNDS))

    def _clear_name(self) -> None:
        """Clear the name, as a server still shows a session for some moments after its client has ended."""
        session = self._session
        if session is None or session.closed:
            return
        try:
            with Watchdog(session, _CLOSE_MS), session.cursor() as cursor:
                cursor.execute("SET application_name = ''")
        except psycopg2.Error as error:
            _log.info("could not clear application_name of the heartbeat session: %s", describe(error))

    def _drop(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None
