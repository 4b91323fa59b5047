"""Group commit: however many wait, one fdatasync runs and at most one more is due.

Whoever asks while one is running waits for the next, which covers everything written until it begins. So the number of
fdatasyncs per second is what the disk can do, and the number of appends per second is not bound by it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeAlias

from spark_2pc_sink.server.storage.errors import LogFailedError
from spark_2pc_sink.server.storage.segmented_log import SegmentedLog

#: Done when everything is durable that had been written when it was asked for; a failure is its result, so that
#: nobody has to collect an exception.
Synced: TypeAlias = "asyncio.Future[LogFailedError | None]"


class GroupSync:
    """The durability of one log. On the event loop only; fdatasync itself runs in a thread.

    Args:
        log: what is made durable; all that recovery found in it is. A failed fdatasync sets its ``failure``, for good.
        executor: of the threads; None for the event loop's own.
        on_synced: told the end offset below which everything is durable now, before the waiting ones are.
    """

    def __init__(self, log: SegmentedLog, executor: Executor | None, on_synced: Callable[[int], None]) -> None:
        self._log = log
        self._executor = executor
        self._on_synced = on_synced
        self._durable_end = log.end_offset
        self._running: Synced | None = None
        self._running_end = 0
        self._waiting: Synced | None = None
        self._closed = False

    def request(self) -> Synced:
        """Everything written until now shall be durable; the future is shared, so shield it from cancellation."""
        end_offset = self._log.end_offset
        if end_offset <= self._durable_end:
            return _settled(None)
        if self._log.failure:
            return _settled(self._failure())
        if self._running is None:
            return self._start(asyncio.get_running_loop().create_future())
        if self._running_end >= end_offset:
            return self._running
        if self._waiting is None:
            self._waiting = asyncio.get_running_loop().create_future()
        return self._waiting

    def close(self) -> None:
        """Take no more records; the files are closed once no thread works with them. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self._log.refuse("it is closed")
        if self._running is None:
            self._log.close()

    def _start(self, future: Synced) -> Synced:
        end_offset = self._log.end_offset
        work = self._log.take_unsynced()
        if work is None:
            self._synced(end_offset)
            future.set_result(None)
            return future
        self._running, self._running_end = future, end_offset
        asyncio.get_running_loop().run_in_executor(self._executor, work).add_done_callback(self._finished)
        return future

    def _finished(self, work: asyncio.Future[None]) -> None:
        error = asyncio.CancelledError("the threads were ended") if work.cancelled() else work.exception()
        if error is None:
            self._synced(self._running_end)
        else:
            self._log.refuse(f"fdatasync failed: {error}")
        running, self._running = self._running, None
        waiting, self._waiting = self._waiting, None
        if running is not None and not running.done():
            running.set_result(None if error is None else self._failure())
        if waiting is not None and not waiting.done():
            if error is None:
                self._start(waiting)
            else:
                waiting.set_result(self._failure())
        if self._closed and self._running is None:
            self._log.close()

    def _synced(self, end_offset: int) -> None:
        self._durable_end = end_offset
        self._on_synced(end_offset)

    def _failure(self) -> LogFailedError:
        return LogFailedError(path=self._log.path, operation="making records durable", detail=self._log.failure)


def _settled(result: LogFailedError | None) -> Synced:
    future: Synced = asyncio.get_running_loop().create_future()
    future.set_result(result)
    return future
