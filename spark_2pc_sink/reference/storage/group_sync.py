"""Group commit: however many callers wait, one fdatasync runs and at most one more is pending.

A caller that arrives while one is running waits for the next, which covers everything written before it begins. So
the disk limits the number of fdatasyncs per second, but not the number of appends.

A thread keeps a slow disk from blocking the event loop, but the switch costs more than an fdatasync of a fast disk. So
small writes are synced on the loop itself for as long as that has been quick.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Final, TypeAlias

from spark_2pc_sink.reference.storage.errors import LogFailedError
from spark_2pc_sink.reference.storage.segmented_log import SegmentedLog

#: Done when everything written before the request is durable; a failure is its result, so that an uncollected
#: exception cannot occur. Each belongs to one caller: cancelling it does not affect the others.
Synced: TypeAlias = "asyncio.Future[LogFailedError | None]"

#: Limits for syncing on the event loop: bytes to sync, and duration of the last fdatasync.
INLINE_BYTES_MAX: Final = 64 * 1024
INLINE_SECONDS_MAX: Final = 0.001
#: Shared by all logs; each has at most one fdatasync in progress.
_THREADS: Final = 8
_syncers: Final = ThreadPoolExecutor(_THREADS, thread_name_prefix="sync")

_logger = logging.getLogger(__name__)


class GroupSync:
    """The durability of one log. For the event loop only; fdatasync runs in a thread unless it is quick.

    The log's recovered content counts as durable; a failed fdatasync sets its ``failure``. ``on_synced`` is called with
    the new durable end offset, before waiting callers are woken.
    """

    def __init__(self, log: SegmentedLog, on_synced: Callable[[int], None]) -> None:
        self._log = log
        self._on_synced = on_synced
        self._durable_end = log.end_offset
        self._running: list[Synced] = []
        self._running_end: int | None = None
        self._waiting: list[Synced] = []
        self._closed = False
        self._last_seconds = math.inf

    def request(self) -> Synced:
        asked: Synced = asyncio.get_running_loop().create_future()
        end_offset = self._log.end_offset
        if end_offset <= self._durable_end:
            asked.set_result(None)
        elif self._log.failure:
            asked.set_result(self._failure())
        elif self._running_end is None:
            self._start([asked])
        elif self._running_end >= end_offset:
            self._running.append(asked)
        else:
            self._waiting.append(asked)
        return asked

    def close(self) -> None:
        """Refuse further records; the files are closed once no thread uses them. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self._log.refuse("it is closed")
        if self._running_end is None:
            self._log.close()

    def _start(self, asked: list[Synced]) -> None:
        end_offset = self._log.end_offset
        little = self._log.unsynced_bytes <= INLINE_BYTES_MAX
        work = self._log.take_unsynced()
        if work is None:
            self._synced(end_offset)
            _answer(asked, None)
            return
        self._running, self._running_end = asked, end_offset
        if not little or self._last_seconds > INLINE_SECONDS_MAX:
            submitted = _syncers.submit(self._timed, work)
            # Directly back to the loop: asyncio's own wrapping costs a future and two more turns of the loop.
            submitted.add_done_callback(partial(_tell, asyncio.get_running_loop(), self._finished))
            return
        failure = None
        try:
            self._timed(work)
        except OSError as error:
            failure = error
        self._finished(failure)

    def _timed(self, work: Callable[[], None]) -> None:
        begun = time.perf_counter()
        work()
        self._last_seconds = time.perf_counter() - begun

    def _finished(self, error: BaseException | None) -> None:
        assert self._running_end is not None
        if error is None:
            self._synced(self._running_end)
        else:
            self._log.refuse(f"fdatasync failed: {error}")
            message = "%s: fdatasync failed, refusing records until the next start reads what the disk has: %s"
            _logger.error(message, self._log.path, error)
        running, self._running, self._running_end = self._running, [], None
        waiting, self._waiting = self._waiting, []
        failure = None if error is None else self._failure()
        _answer(running, failure)
        if waiting and failure is None:
            self._start(waiting)
        else:
            _answer(waiting, failure)
        if self._closed and self._running_end is None:
            self._log.close()

    def _synced(self, end_offset: int) -> None:
        self._durable_end = end_offset
        self._on_synced(end_offset)

    def _failure(self) -> LogFailedError:
        return LogFailedError(path=self._log.path, operation="making records durable", detail=self._log.failure)


def _answer(asked: list[Synced], result: LogFailedError | None) -> None:
    for each in asked:
        if not each.done():
            each.set_result(result)


def _tell(
    loop: asyncio.AbstractEventLoop, finished: Callable[[BaseException | None], None], work: Future[None]
) -> None:
    """Runs in the thread. If the loop was closed in the meantime, there are no waiting callers."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(finished, work.exception())
