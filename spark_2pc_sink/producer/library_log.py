"""The log of kafka-python, kept quiet about what this package repairs by itself.

A lost connection is an ERROR in the log of kafka-python, often three of them, whoever asked for the connection. Here
a lost connection is an event that is retried, and what cannot be repaired is raised with its reason. So while one of
our loops runs, such messages become DEBUG, and the newest is kept as the reason to show. Other users of kafka-python
in the same process see no difference.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
from collections.abc import Iterator

#: The modules that report the state of connections. ``kafka.net.selector`` is not among them: it reports defects.
_LOGGERS = ("kafka.net.transport", "kafka.net.connection", "kafka.net.manager", "kafka.net.inet", "kafka.cluster")


class ConnectionEvents:
    """The newest complaint of kafka-python on one `Cluster`."""

    def __init__(self) -> None:
        self.last_error = "no broker has answered yet"


_running: contextvars.ContextVar[ConnectionEvents | None] = contextvars.ContextVar("running", default=None)


class _Demote(logging.Filter):
    """Turns WARNING and above into DEBUG while one of our loops runs."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Say whether the record may pass, after lowering its level where it is about one of our connections."""
        events = _running.get()
        if events is None or record.levelno < logging.WARNING:
            return True
        if record.levelno >= logging.ERROR:
            events.last_error = record.getMessage()
        record.levelno, record.levelname = logging.DEBUG, logging.getLevelName(logging.DEBUG)
        return logging.getLogger(record.name).isEnabledFor(logging.DEBUG)


_demote = _Demote()


@contextlib.contextmanager
def quiet(events: ConnectionEvents) -> Iterator[None]:
    """Lower kafka-python's messages inside the block, and keep the newest complaint in ``events``."""
    token = _running.set(events)
    try:
        yield
    finally:
        _running.reset(token)


def install() -> None:
    """Attach the filter; calling it again changes nothing."""
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        if _demote not in logger.filters:
            logger.addFilter(_demote)
