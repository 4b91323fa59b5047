"""The log of a sink: each line has its transactional id, as a prefix of the message and as a field of the record.

If several sinks run in one process, a line without an id is useless. Code that knows its sink makes a log for it; other
code, such as a connection, logs for the sink that its thread is working for.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    _Adapter = logging.LoggerAdapter[logging.Logger]
else:  # It takes a parameter from Python 3.11 on.
    _Adapter = logging.LoggerAdapter

#: The field of a log record, for formatters.
FIELD = "transactional_id"
_AT_WORK_FOR: ContextVar[str | None] = ContextVar("the sink that this thread is at work for", default=None)


@contextmanager
def log_for_sink(transactional_id: str) -> Iterator[None]:
    """In the block and in copies of its context, module logs are those of this sink."""
    before = _AT_WORK_FOR.set(transactional_id)
    try:
        yield
    finally:
        _AT_WORK_FOR.reset(before)


class SinkLog(_Adapter):
    """Prefixes each message with a transactional id; None: that of the sink that the thread is working for, if any."""

    def __init__(self, logger: logging.Logger, transactional_id: str | None) -> None:
        super().__init__(logger, {})
        self._transactional_id = transactional_id

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        name = self._transactional_id or _AT_WORK_FOR.get()
        if name is not None:
            msg, args = f"%s: {msg}", (name, *args)
            kwargs["extra"] = {**(kwargs.get("extra") or {}), FIELD: name}
        # The caller's file and line, not those of this module.
        self.logger.log(level, msg, *args, stacklevel=kwargs.pop("stacklevel", 1) + 1, **kwargs)


def sink_log(module: str, transactional_id: str | None = None) -> SinkLog:
    return SinkLog(logging.getLogger(module), transactional_id)
