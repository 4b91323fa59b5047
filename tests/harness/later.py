"""An act while something else waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def later(delay_s: float, act: Callable[..., object], *arguments: Any) -> Iterator[None]:
    """Call ``act`` in a thread of its own ``delay_s`` seconds from here; it has returned when the block is left.

    Without that wait the block's next step could meet the act half done: a connection that is being closed in the
    middle of its ``commit``, a server that is stopped while it starts. An error of the act fails the test, by pytest.
    """
    timer = threading.Timer(delay_s, act, arguments)
    timer.start()
    try:
        yield
    finally:
        timer.join()
