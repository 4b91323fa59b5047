"""A small HTTP server for the metrics that Prometheus scrapes, one request per connection.

Browsers on the same host must not be tricked into reading them: an attacker's page whose host name resolves to this
server (DNS rebinding) is recognised by the Host header, and answers cannot be framed or embedded. A client's use of
bytes, time and connections is limited.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
from dataclasses import dataclass, field
from functools import partial
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

_log = logging.getLogger(__name__)

#: A scraper sends a single request of some hundred bytes at once.
_REQUEST_BYTES_MAX: Final = 8192
#: For the request to arrive, and the same again for reading the answer.
_CLIENT_DEADLINE_S: Final = 5.0
_CONNECTIONS_MAX: Final = 16
_PORT: Final = re.compile(r":[0-9]+$")
_TEXT: Final = "text/plain; charset=utf-8"
_HEADERS: Final = (
    "Content-Security-Policy: default-src 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options: nosniff",
    "X-Frame-Options: DENY",
    "Referrer-Policy: no-referrer",
    "Cross-Origin-Resource-Policy: same-origin",
    "Cache-Control: no-store",
    "Connection: close",
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


@dataclass(frozen=True)
class HttpRequest:
    """The head of a request."""

    method: str
    path: str
    headers: dict[str, tuple[str, ...]]

    @classmethod
    def parse(cls, head: bytes) -> HttpRequest:
        """Parse any bytes; an invalid request gets a path that does not exist."""
        first, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
        method, _, rest = first.partition(" ")
        headers: dict[str, tuple[str, ...]] = {}
        for line in lines:
            name, _, value = line.partition(":")
            headers[name.lower()] = (*headers.get(name.lower(), ()), value.strip())
        return cls(method, rest.partition(" ")[0].partition("?")[0], headers)

    def one(self, name: str) -> str:
        """The value of a header; '' if it is missing or repeated."""
        values = self.headers.get(name, ())
        return values[0] if len(values) == 1 else ""


def refusal(request: HttpRequest, access: MetricsAccess) -> bytes | None:
    """The error response; None if the metrics are to be served."""
    if not access.knows(request.one("host")):
        return _response("400 Bad Request", _TEXT, b"the Host header does not name this server: see docs/metrics.md\n")
    if not access.grants(request.one("authorization")):
        return _response("401 Unauthorized", _TEXT, b"a token is required\n", "WWW-Authenticate: Bearer")
    if request.method != "GET":
        return _response("405 Method Not Allowed", _TEXT, b"GET only\n", "Allow: GET")
    if request.path != "/metrics":
        return _response("404 Not Found", _TEXT, b"see /metrics\n")
    return None


def _response(status: str, content_type: str, body: bytes, *more: str) -> bytes:
    headers = (f"Content-Type: {content_type}", f"Content-Length: {len(body)}", *_HEADERS, *more)
    return "\r\n".join([f"HTTP/1.1 {status}", *headers, "\r\n"]).encode() + body


class MetricsServer:
    """Answers ``GET /metrics`` with what a collector has; ``in_thread`` is for one that waits."""

    def __init__(self, collector: Collector, access: MetricsAccess, *, in_thread: bool = False) -> None:
        # Imported on demand: the command line uses `MetricsAccess` without the library.
        from prometheus_client import CollectorRegistry, exposition  # noqa: PLC0415

        # Without a description of it: figures are collected for scrapes only.
        registry = CollectorRegistry(auto_describe=False)
        registry.register(collector)
        self._collect = partial(exposition.generate_latest, registry)
        self._content_type = exposition.CONTENT_TYPE_LATEST
        self._access = access
        self._in_thread = in_thread
        self._open: set[asyncio.StreamWriter] = set()
        self._stopping = False

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen, and return the address."""
        self._server = await asyncio.start_server(self._serve, host, port, limit=_REQUEST_BYTES_MAX)
        bound: tuple[str, int] = self._server.sockets[0].getsockname()[:2]
        return bound

    async def stop(self) -> None:
        """Stop listening; open connections are closed."""
        self._stopping = True
        self._server.close()
        for writer in self._open:
            writer.transport.abort()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._stopping or len(self._open) >= _CONNECTIONS_MAX:
            writer.transport.abort()
            return
        self._open.add(writer)
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _CLIENT_DEADLINE_S)
            writer.write(await self._answer(HttpRequest.parse(head)))
            writer.close()
            await asyncio.wait_for(writer.wait_closed(), _CLIENT_DEADLINE_S)
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.TimeoutError, ConnectionError):
            writer.transport.abort()  # invalid request, or the client does not read the answer
        finally:
            self._open.discard(writer)
            writer.close()

    async def _answer(self, request: HttpRequest) -> bytes:
        refused = refusal(request, self._access)
        if refused is not None:
            return refused
        try:
            figures = await asyncio.to_thread(self._collect) if self._in_thread else self._collect()
        except Exception:  # noqa: BLE001 - answered, and the next scrape tries again
            _log.exception("could not collect the metrics for a scrape")
            return _response("500 Internal Server Error", _TEXT, b"the metrics could not be collected: see the log\n")
        return _response("200 OK", self._content_type, figures)
