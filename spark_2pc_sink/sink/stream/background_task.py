"""The threads of an attempt: each runs only while the job runs."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from contextvars import copy_context
from typing import TYPE_CHECKING, Final

from spark_2pc_sink.errors import BatchRetryError, DataError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from spark_2pc_sink.sink.stream.attempt_input import AttemptInput

#: Time for the work to finish after a failure of the job, before it is interrupted, and again after that.
_GRACE_S: Final = 1.0


class BackgroundTask:
    """Work in parallel with a job. A context manager around the job; leaves no thread running.

    Args:
        work: the thread's function. It returns when there is no more input, and soon after the input has failed.
        interrupt: ends the work's current wait; called from another thread, perhaps several times.
    """

    def __init__(self, work: Callable[[], None], name: str, interrupt: Callable[[], None]) -> None:
        self._work = work
        self._interrupt = interrupt
        # Copy the context, so that log lines have the sink's id.
        context = copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._run,), name=name, daemon=True)
        self.error: Exception | None = None

    def __enter__(self) -> BackgroundTask:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for the end of the work. After an error of the job it is interrupted."""
        if kind is None:
            self._thread.join()
            return
        self._thread.join(_GRACE_S)
        while self._thread.is_alive():  # bounded: its wait was interrupted, or has a deadline
            self._interrupt()
            self._thread.join(_GRACE_S)

    def finish(self) -> None:
        self._thread.join()
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            self._work()
        except Exception as error:  # noqa: BLE001 - raised again in the thread that waits for this one
            self.error = error


class AttemptThreads:
    """The threads that consume the output of an attempt's tasks. A context manager around the job.

    Args:
        source: their input. It is closed when the block ends, and fails when the block fails.
    """

    def __init__(self, source: AttemptInput, *tasks: BackgroundTask) -> None:
        self._source = source
        self._tasks = tasks
        self._stack = ExitStack()

    def __enter__(self) -> AttemptThreads:
        for task in self._tasks:
            self._stack.enter_context(task)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for the threads. An error of one precedes that of the block, which is its consequence."""
        if error is None:
            self._source.close_input()
        else:
            self._source.fail(error if isinstance(error, Exception) else BatchRetryError(reason="interrupted"))
        self._stack.__exit__(kind, error, trace)
        if error is None:
            failures = [task.error for task in self._tasks if task.error is not None]
            if failures:
                raise min(failures, key=lambda failure: not isinstance(failure, DataError))
        elif isinstance(error, BatchRetryError) and self._source.failure not in (None, error):
            raise self._source.failure from error
