"""The dashboard as a process: served by waitress until it is stopped."""

from __future__ import annotations

import signal
import socket
import sys
from types import FrameType

from flask import Flask
from waitress.server import BaseWSGIServer, create_server

from spark_2pc_sink.monitoring.dashboard.access import FORM_BYTES_MAX, Access
from spark_2pc_sink.monitoring.dashboard.app import make_app
from spark_2pc_sink.monitoring.watched import Watched

#: Pages rendered at the same time; each waits for both sides.
_THREADS = 8


def serve(watched: Watched, access: Access, host: str, port: int) -> None:
    """Serve until SIGTERM or SIGINT.

    Prints one line, ``listening on http://HOST:PORT``, when it is ready.

    Args:
        watched: both sides.
        access: access rules.
        host: a name or an IPv4 address.
        port: 0 lets the system choose one.

    Raises:
        OSError: the address cannot be bound.
    """
    listening = socket.create_server((host, port))
    server = http_server(make_app(watched, access), listening)

    def stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature of a handler
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, stop)
    sys.stdout.write(f"listening on http://{host}:{listening.getsockname()[1]}\n")
    sys.stdout.flush()
    # It ends by SystemExit and KeyboardInterrupt, and closes its connections.
    server.run()


def http_server(app: Flask, listening: socket.socket) -> BaseWSGIServer:
    """A server for the pages, not started yet."""
    server = create_server(
        app,
        sockets=[listening],
        threads=_THREADS,
        ident=None,  # no Server header
        # By default it accepts a gigabyte from any client, into a file, before it calls the application.
        max_request_body_size=FORM_BYTES_MAX,
        max_request_header_size=FORM_BYTES_MAX,
    )
    # Several sockets would be served by another class.
    assert isinstance(server, BaseWSGIServer)
    return server
