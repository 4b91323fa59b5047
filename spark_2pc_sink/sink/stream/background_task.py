"""The threads of an attempt: each runs only while the job runs."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from contextvars import copy_context
from typing import TYPE_CHECKING, Final

from spark_2pc_sink.errors import BatchRetryError, DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from spark_2pc_sink.sink.stream.attempt_input import AttemptInput

#: Time for the work to finish after a failure of the job, before it is interrupted, and again after that.
_GRACE_S: Final = 1.0


class BackgroundTask(threading.Thread):
    """Work in parallel with a job; see `attempt_threads`.

    Args:
        work: the thread's function. It returns when there is no more input, and soon after the input has failed.
        interrupt: ends the work's current wait; called from another thread, perhaps several times.
    """

    def __init__(self, work: Callable[[], None], name: str, interrupt: Callable[[], None]) -> None:
        # Copy the context, so that log lines have the sink's id.
        super().__init__(target=copy_context().run, args=(self._note_error, work), name=name, daemon=True)
        self._interrupt = interrupt
        self.error: Exception | None = None

    def stop(self) -> None:
        """Wait for the end of the work, which is interrupted if it does not end soon."""
        while self.is_alive():  # bounded: its wait was interrupted, or has a deadline
            self.join(_GRACE_S)
            if self.is_alive():
                self._interrupt()

    def finish(self) -> None:
        self.join()
        if self.error is not None:
            raise self.error

    def _note_error(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - raised again in the thread that waits for this one
            self.error = error


@contextmanager
def attempt_threads(source: AttemptInput, *tasks: BackgroundTask) -> Iterator[None]:
    """Around the job: the threads that consume the output of an attempt's tasks. None is left running.

    An error of a thread precedes that of the block, which is its consequence.

    Args:
        source: their input. It is closed when the block ends, and fails when the block fails.
    """
    try:
        with source.failing():
            for task in tasks:
                task.start()
            yield
            source.close_input()
            for task in tasks:
                task.join()
    except BaseException as error:
        for task in tasks:
            task.stop()
        if isinstance(error, BatchRetryError) and source.failure not in (None, error):
            raise source.failure from error
        raise
    failures = [task.error for task in tasks if task.error is not None]
    if failures:
        raise min(failures, key=lambda failure: not isinstance(failure, DataError))
