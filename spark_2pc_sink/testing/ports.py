"""TCP ports for servers that live for one test."""

from __future__ import annotations

import secrets
import socket

#: Below the range from which Linux takes the ports of outgoing connections (32768 to 60999 unless changed): a port
#: found free here cannot be taken by somebody's connect() before the server binds it, nor while it restarts.
PORT_MIN, PORT_MAX = 15_000, 32_000
#: Far more than are ever in use; a machine on which none of so many is free has another problem.
TRIES_MAX = 1_000


def free_port() -> int:
    """Return a port of 127.0.0.1 on which nobody listens now.

    Drawn from the operating system's randomness: parallel test processes share the seed of :mod:`random`.

    Raises:
        OSError: no free port was found.
    """
    for _ in range(TRIES_MAX):
        port = PORT_MIN + secrets.randbelow(PORT_MAX - PORT_MIN)
        with socket.socket() as candidate:
            # As servers do: a port whose last connections are in TIME_WAIT counts as free.
            candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                candidate.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError(f"no free port between {PORT_MIN} and {PORT_MAX} in {TRIES_MAX} tries")
