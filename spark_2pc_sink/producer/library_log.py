"""The log of kafka-python, kept quiet about credentials, and about what this package repairs by itself.

At DEBUG it shows each request and response, and each byte that is sent and received: passwords and tokens among them.
So messages of a login are shown by their name, and bytes by their number, whoever asked for the connection.

A lost connection is an ERROR in the log of kafka-python, often three of them, whoever asked for the connection. Here
a lost connection is an event that is retried, and what cannot be repaired is raised with its reason. So while one of
our loops runs, such messages become DEBUG, and the newest is kept as the reason to show. Those of other users of
kafka-python in the same process keep their level.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
from collections.abc import Iterator
from typing import Any

from kafka.protocol.sasl import SaslAuthenticateRequest, SaslAuthenticateResponse

#: The modules that report the state of connections. ``kafka.net.selector`` is not among them: it reports defects.
_LOGGERS = ("kafka.net.transport", "kafka.net.connection", "kafka.net.manager", "kafka.net.inet", "kafka.cluster")
#: The modules that show messages and bytes.
_SHOWING = ("kafka.protocol.parser", "kafka.net.connection")


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


class _Withheld:
    """What a log shows in place of a value; alike for ``%s`` and ``%r``."""

    def __init__(self, shown: str) -> None:
        self._shown = shown

    def __repr__(self) -> str:
        return self._shown


class _Withhold(logging.Filter):
    """Puts names and sizes in place of what may have a password or a token in it."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Let the record pass, without credentials."""
        if isinstance(record.args, tuple):
            record.args = tuple(map(_without_credentials, record.args))
        return True


def _without_credentials(value: Any) -> Any:
    if isinstance(value, (SaslAuthenticateRequest, SaslAuthenticateResponse)):
        return _Withheld(f"{type(value).__name__}(...)")
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _Withheld(f"{len(value)} bytes")
    return value


_FILTERS = (*((name, _Demote()) for name in _LOGGERS), *((name, _Withhold()) for name in _SHOWING))


@contextlib.contextmanager
def quiet(events: ConnectionEvents) -> Iterator[None]:
    """Lower kafka-python's messages inside the block, and keep the newest complaint in ``events``."""
    token = _running.set(events)
    try:
        yield
    finally:
        _running.reset(token)


def install() -> None:
    """Attach the filters; calling it again changes nothing."""
    for name, each in _FILTERS:
        logging.getLogger(name).addFilter(each)
