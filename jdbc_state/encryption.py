"""Whether a connection to the database is encrypted, judged by the connection itself and not by its URL.

``sslmode`` does not tell: libpq's default, ``prefer``, continues without TLS if the server does not offer it.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import threading
from contextlib import closing
from typing import Any, Final

from jdbc_state.errors import ConfigurationError
from jdbc_state.sink_log import sink_log

_log = sink_log(__name__)
_REMEDY: Final = (
    "add sslmode=verify-full and sslrootcert=FILE, with the certificate of the server's authority, to the URL of "
    "database (postgresql://…?sslmode=verify-full&sslrootcert=FILE)"
)
#: Databases for which this process has logged a warning.
_told: set[str] = set()
_telling = threading.Lock()


def readable_by(connection: Any) -> str | None:
    """The remote host of a connection that could be read in transit; None for a secure one.

    TLS is secure, and so are a Unix socket and the loopback interface, which do not leave the machine. A proxy there
    is responsible for its own connection.

    Args:
        connection: psycopg2's.
    """
    if connection.info.ssl_in_use:
        return None
    with closing(socket.socket(fileno=os.dup(connection.info.socket))) as its:
        if its.family == socket.AF_UNIX:
            return None
        host = str(its.getpeername()[0])
    # A link-local address of IPv6 has its interface as a suffix.
    return None if ipaddress.ip_address(host.partition("%")[0]).is_loopback else host


def check_encrypted(connection: Any, label: str, *, required: bool) -> None:
    """Check a new connection before anything is written to it.

    Args:
        connection: psycopg2's; closed if it is refused.
        label: name of the database in messages.
        required: refuse an insecure connection. If False, the log warns, once for each database.

    Raises:
        ConfigurationError: it has no TLS, and leaves this machine.
    """
    host = readable_by(connection)
    if host is None:
        return
    if required:
        connection.close()
        raise ConfigurationError(
            option="require_tls",
            value=True,
            rule=f"the connection to {label} at {host} has no TLS; nothing was written",
            remedy=_REMEDY,
        )
    with _telling:
        told = label in _told
        _told.add(label)
    if not told:
        _log.warning(
            "the connection to %s at %s has no TLS, so rows and statements can be read on their way: %s. "
            "require_tls=True refuses such connections",
            *(label, host, _REMEDY),
        )
