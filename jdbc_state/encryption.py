"""Whether a connection to the database is readable on its way, by what the connection is and not by its URL.

``sslmode`` is no measure: libpq's default, ``prefer``, goes on without TLS where the server has none, or says so.
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
#: Of this process: databases of which the log has said so.
_told: set[str] = set()
_telling = threading.Lock()


def readable_by(connection: Any) -> str | None:
    """The host at the other end of a connection that others on the way can read; None for one that they cannot.

    They cannot with TLS, nor on a Unix socket or the loopback interface, which do not leave the machine. What stands
    there may be a proxy, whose way on is its own.

    Args:
        connection: of psycopg2.
    """
    if connection.info.ssl_in_use:
        return None
    with closing(socket.socket(fileno=os.dup(connection.info.socket))) as its:
        if its.family == socket.AF_UNIX:
            return None
        host = str(its.getpeername()[0])
    # A link-local address of IPv6 has its interface behind it.
    return None if ipaddress.ip_address(host.partition("%")[0]).is_loopback else host


def check_encrypted(connection: Any, label: str, *, required: bool) -> None:
    """Look at a new connection before anything is written on it.

    Args:
        connection: of psycopg2; closed where it is refused.
        label: names the database in messages.
        required: whether one that others can read is refused. If not, the log warns, once for each database.

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
