"""A thread beside a job: it uses the driver's database connection while the job runs, and not a moment longer."""

from __future__ import annotations

import threading
from contextlib import suppress
from contextvars import copy_context
from typing import TYPE_CHECKING, Final

import psycopg2

from jdbc_state.connections import driver_connection
from jdbc_state.watchdog import cut
from spark_2pc_sink.errors import BatchRetryError, DataError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from sqlalchemy import Connection

#: How long a job that has failed waits for a statement under way, before the connection is cut off; making one is
#: bounded by itself.
_GRACE_S: Final = 1.0


class BesideJob:
    """Work beside a job. A context manager round the job; nothing is left running behind it.

    Args:
        work: what the thread does; it returns some time after ``end`` was called, or when `given_up`.
        end: says that the job is over.
        connection: the one that the work uses; None before it has one.
        name: of the thread.

    Attributes:
        given_up: the job has failed: nothing more is to be done.
    """

    def __init__(
        self,
        work: Callable[[], None],
        *,
        end: Callable[[], None],
        connection: Callable[[], Connection | None],
        name: str,
    ) -> None:
        self._work = work
        self._end = end
        self._connection = connection
        # Its log is that of the sink which starts it.
        context = copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._run,), name=name, daemon=True)
        self._error: Exception | None = None
        self.given_up: bool = False

    def __enter__(self) -> BesideJob:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait until the work is done; after an error of the job, only until nobody uses the connection any more.

        Raises:
            Exception: what the work raised. A row that it was refused says more than the end of the job, which may be
                its consequence.
        """
        self._end()
        if kind is None:
            self._thread.join()
            if self._error is not None:
                raise self._error
            return
        self.given_up = True
        self._thread.join(_GRACE_S)
        while self._thread.is_alive():
            connection = self._connection()
            if connection is not None:
                # A connection that has just broken by itself cannot be cut any more, and need not be.
                with suppress(psycopg2.Error, OSError):
                    cut(driver_connection(connection))
            self._thread.join(_GRACE_S)
        if isinstance(self._error, DataError) and isinstance(error, BatchRetryError):
            raise self._error from error

    def _run(self) -> None:
        try:
            self._work()
        except Exception as error:  # noqa: BLE001 - raised again in the thread that waits for this one
            self._error = error
