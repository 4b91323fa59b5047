"""TCP ports for servers that live for one test.

A server that is killed and restarted keeps its port, so the port must not be taken meanwhile. Outgoing connections use
a different range, and each port is given out once: every process draws from blocks of ports that are its own for as
long as it runs.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Iterator
from itertools import islice
from typing import Final

#: Below Linux's range of ports for outgoing connections (32768 to 60999 unless changed).
PORT_MIN: Final = 15_000
PORT_MAX: Final = 32_000
BLOCK_PORTS: Final = 100
_BLOCKS: Final = (PORT_MAX - PORT_MIN) // BLOCK_PORTS
#: Name of the socket that reserves a block. Abstract: it belongs to the same network namespace as the ports, and is
#: free again after its process has ended, for any reason.
_LEASE: Final = "\0spark-2pc-ports-{}"
#: Far more than other programs listen on; if none of these is free, the machine has another problem.
TRIES_MAX: Final = 1_000
_drawing: Final = threading.Lock()
#: The ports of this process, by its id: after a fork the leases are the parent's, and the kernel frees them when both
#: have ended.
_own: Final[dict[int, Iterator[int]]] = {}


def free_port() -> int:
    """Return a free port of 127.0.0.1, which is not given out again while this process runs.

    Raises:
        OSError: no free port was found.
    """
    with _drawing:
        for port in islice(_own.setdefault(os.getpid(), _leased()), TRIES_MAX):
            if _is_free(port):
                return port
    raise OSError(f"no free port between {PORT_MIN} and {PORT_MAX} in {TRIES_MAX} tries")


def _leased() -> Iterator[int]:
    """The ports of blocks that no other running process has."""
    begin = secrets.randbelow(_BLOCKS)
    for number in range(begin, begin + _BLOCKS):
        first = PORT_MIN + number % _BLOCKS * BLOCK_PORTS
        lease = socket.socket(socket.AF_UNIX)
        try:
            lease.bind(_LEASE.format(first))
        except OSError:
            lease.close()
            continue
        # No object owns it from here on: the kernel closes it when the process ends.
        lease.detach()
        yield from range(first, first + BLOCK_PORTS)


def _is_free(port: int) -> bool:
    with socket.socket() as candidate:
        # As servers do: a port whose last connections are in TIME_WAIT counts as free.
        candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            candidate.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
