"""Work that goes on while nobody waits for it: one set of tasks with an end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

_log = logging.getLogger(__name__)

#: How long `Background.stop` lets work finish before it is cut off, in milliseconds. Everything that is cut off must
#: be taken up again by the next start.
STOP_WAIT_MS_MAX = 2_000


class Background:
    """Tasks of one owner. They are kept referenced, because the event loop does not."""

    def __init__(self) -> None:
        self._work: set[asyncio.Task[None]] = set()
        self._timers: set[asyncio.Task[None]] = set()
        self._stopped = False

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Start work that ends by itself; it begins when the caller waits next, after its reply is on the way.

        After `stop` nothing is started any more.
        """
        if self._stopped:
            work.close()
        else:
            _keep(self._work, work)

    def every(self, interval_ms: int, work: Callable[[], Awaitable[None]]) -> None:
        """Do ``work`` again and again, with a pause of ``interval_ms`` before each, until `stop`.

        Where it fails, the next round comes all the same, as by Kafka: transactions time out through it.
        """
        _keep(self._timers, _repeat(interval_ms, work))

    async def stop(self) -> None:
        """End the timers, let the other work finish for `STOP_WAIT_MS_MAX`, and cancel what is left of it."""
        _cancel(self._timers)
        if self._work:
            await asyncio.wait(self._work, timeout=STOP_WAIT_MS_MAX / 1000)
        self._stopped = True
        _cancel(self._work)
        await asyncio.gather(*self._timers, *self._work, return_exceptions=True)


def _keep(tasks: set[asyncio.Task[None]], work: Coroutine[Any, Any, None]) -> None:
    task = asyncio.get_running_loop().create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)


async def _repeat(interval_ms: int, work: Callable[[], Awaitable[None]]) -> None:
    while True:
        await asyncio.sleep(interval_ms / 1000)
        (failure,) = await asyncio.gather(work(), return_exceptions=True)
        if failure is not None:
            message = "work in the background has failed, and is tried again in %d ms"
            _log.error(message, interval_ms, exc_info=failure)


def _cancel(tasks: set[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
