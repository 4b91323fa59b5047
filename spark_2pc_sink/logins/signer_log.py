"""What botocore shows, kept quiet about credentials while it signs for a broker.

At DEBUG it logs what it signs, with the session token and the signature: together they are a login. Where a role is
assumed, it logs the answer with the role's secret key. Other users of botocore in the same process keep their log.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
from collections.abc import Iterator
from typing import Final

from spark_2pc_sink.extras import extra

with extra("msk"):
    from botocore.awsrequest import AWSHTTPConnection, AWSHTTPSConnection

#: The modules that show requests, what is signed of them, and answers.
_LOGGERS: Final = ("botocore.auth", "botocore.endpoint", "botocore.parsers")
_signing: contextvars.ContextVar[bool] = contextvars.ContextVar("signing", default=False)


class _Withhold(logging.Filter):
    """Leaves of a message what stands before its first value."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Let the record pass, without credentials."""
        if _signing.get():
            # A message without values may have them in its text.
            said = str(record.msg).partition("%")[0].strip() if record.args else ""
            record.msg, record.args = f"{said} (withheld)".strip(), ()
        return True


_FILTER: Final = _Withhold()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Show no credentials inside the block."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_FILTER)
    for connection in (AWSHTTPConnection, AWSHTTPSConnection):
        # A program may set it on ``http.client`` for all: it prints each request and its headers.
        connection.debuglevel = 0
    before = _signing.set(True)
    try:
        yield
    finally:
        _signing.reset(before)
