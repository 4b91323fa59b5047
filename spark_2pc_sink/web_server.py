"""The web server for dashboard and metrics, and the metrics page: prometheus_client's, behind a check of each request.

Browsers on the same host must not be tricked into reading metrics: an attacker's page whose host name resolves to this
server (DNS rebinding) is recognised by the Host header, and answers cannot be framed or embedded.
"""

from __future__ import annotations

import hmac
import re
import signal
import socket
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment
    from prometheus_client.registry import Collector
    from waitress.server import BaseWSGIServer

#: The largest form of the dashboard contains an id and a reason; a scrape has some hundred bytes.
REQUEST_BYTES_MAX: Final = 16 * 1024
#: A connection without activity is closed after one to two of these.
CLIENT_DEADLINE_S: Final = 5
#: Open sockets, of which two are the server's own; further connections wait.
SOCKETS_MAX: Final = 100
_PORT: Final = re.compile(r":[0-9]+$")
_HEADERS: Final = (
    ("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'"),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
)


@dataclass(frozen=True)
class MetricsAccess:
    """Access rules for the metrics."""

    #: This server's names in the Host header, in lower case. Addresses and ``localhost`` are always accepted: they
    #: cannot be the host names of foreign pages.
    names: frozenset[str] = frozenset()
    #: Required bearer token of the ``Authorization`` header; None for none.
    token: str | None = field(default=None, repr=False)

    def knows(self, host: str) -> bool:
        """True where ``host``, a Host header, is this server's name or any address."""
        name = _PORT.sub("", host.lower())
        if name == "localhost" or name in self.names:
            return True
        try:
            ip_address(name[1:-1] if name.startswith("[") and name.endswith("]") else name)
        except ValueError:
            return False
        return True

    def grants(self, authorization: str) -> bool:
        """True if no token is required, or ``authorization`` has it; compared in constant time."""
        if self.token is None:
            return True
        return hmac.compare_digest(authorization.encode("latin-1"), f"Bearer {self.token}".encode())


def metrics_app(collector: Collector, access: MetricsAccess) -> WSGIApplication:
    """Answers ``GET /metrics`` with what a collector has, called in the thread of each request."""
    # Imported on demand: the command line uses `MetricsAccess` without the library.
    from prometheus_client import CollectorRegistry, make_wsgi_app  # noqa: PLC0415

    # Without a description of it: figures are collected for scrapes only.
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    metrics: WSGIApplication = make_wsgi_app(registry)

    def answer(request: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        def start(status: str, headers: list[tuple[str, str]], *_: Any) -> Callable[[bytes], object]:
            return start_response(status, [*headers, *_HEADERS])

        # A repeated header arrives with commas, and so is no name or token.
        if not access.knows(request.get("HTTP_HOST", "")):
            refused = "400 Bad Request", "the Host header does not name this server: see docs/metrics.md"
        elif not access.grants(request.get("HTTP_AUTHORIZATION", "")):
            refused = "401 Unauthorized", "a token is required"
        elif request["PATH_INFO"] != "/metrics":
            refused = "404 Not Found", "see /metrics"
        else:
            return metrics(request, start)
        more = [("WWW-Authenticate", "Bearer")] if refused[0].startswith("401") else []
        start(refused[0], [("Content-Type", "text/plain; charset=utf-8"), *more])
        return [f"{refused[1]}\n".encode()]

    return answer


def http_server(app: WSGIApplication, listening: socket.socket) -> BaseWSGIServer:
    """A server of a WSGI application, which limits what a client can use of bytes, time and connections."""
    from waitress.server import BaseWSGIServer, create_server  # noqa: PLC0415 - optional

    server = create_server(
        app,
        sockets=[listening],
        threads=8,  # requests at the same time; each waits for both sides
        ident=None,  # no Server header
        # By default it accepts a gigabyte from any client, into a file, before it calls the application.
        max_request_body_size=REQUEST_BYTES_MAX,
        max_request_header_size=REQUEST_BYTES_MAX,
        channel_timeout=CLIENT_DEADLINE_S,
        cleanup_interval=CLIENT_DEADLINE_S,
        connection_limit=SOCKETS_MAX,
    )
    # Several sockets would be served by another class.
    assert isinstance(server, BaseWSGIServer)
    return server


def listening_at(host: str, port: int) -> socket.socket:
    """A listening socket at a name, an IPv4 or an IPv6 address."""
    return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)


def serve_until_stopped(app: WSGIApplication, host: str, port: int, *, scheme: str = "") -> None:
    """Serve until SIGTERM or SIGINT. Prints one line, ``listening on HOST:PORT``, when it is ready."""
    listening = listening_at(host, port)
    server = http_server(app, listening)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    print(f"listening on {scheme}{host}:{listening.getsockname()[1]}", flush=True)
    # It ends by SystemExit and KeyboardInterrupt, and closes its connections.
    server.run()
