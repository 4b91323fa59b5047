"""Raw requests of strangers to the dashboard and to the figures: what is answered before anybody has been let in."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest

from spark_2pc_sink.metrics_server import MetricsAccess
from spark_2pc_sink.monitoring.dashboard.access import FORM_BYTES_MAX, DashboardAccess
from spark_2pc_sink.recovery.status import StatusReport
from tests.unit.monitoring.samples import Shown
from tests.unit.monitoring.served import dashboard, figures

TOKEN = "a-token-of-the-test-that-nobody-guesses"
DEADLINE_S = 20
#: Where both sides are; no stranger is told.
PLACES = re.compile(rb"broker|db\.internal")
EVIL = ("evil.example", "localhost.evil.example:80", "", "127.0.0.1, evil.example", "[x]")


def said(port: int, request: bytes) -> bytes:
    """What a server answers before it closes the connection."""
    with closing(socket.create_connection(("127.0.0.1", port), DEADLINE_S)) as connection:
        connection.sendall(request)
        answer = b""
        # A server that has not read all of a request resets the connection behind its answer, or before it.
        with suppress(ConnectionResetError):
            while part := connection.recv(65536):
                answer += part
        return answer


def asking(path: str = "/", *, method: str = "GET", host: str = "127.0.0.1", **more: str) -> bytes:
    headers = {"Host": host, "Connection": "close", "Content-Length": "0", **more}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return "".join(f"{line}\r\n" for line in (*lines, "")).encode()


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


# --- the dashboard -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded() -> Iterator[int]:
    with dashboard(DashboardAccess(token=TOKEN)) as port:
        yield port


@pytest.mark.parametrize("path", ["/", "/login", "/static/dashboard.css"])
@pytest.mark.parametrize("host", EVIL)
def test_another_name_is_refused_before_a_token_is_asked_for(guarded: int, path: str, host: str) -> None:
    for method in ("GET", "POST"):
        answer = said(guarded, asking(path, method=method, host=host))
        assert status(answer) == 400
        assert b"is not a name of this server" in answer
        assert b"\r\nContent-Security-Policy: default-src 'none'" in answer
        assert b"text/plain" in answer


@pytest.mark.parametrize(
    ("path", "method"),
    [
        ("/", "GET"),
        ("/static/nothing", "GET"),
        ("/static/%2e%2e/access.py", "GET"),
        ("/recover", "POST"),
        ("/login", "POST"),
        ("http://evil.example/sink?id=orders", "GET"),
    ],
)
def test_a_stranger_is_not_told_where_both_sides_are(guarded: int, path: str, method: str) -> None:
    answer = said(guarded, asking(path, method=method))
    assert status(answer) in {303, 400, 404, 405}
    assert not PLACES.search(answer)
    assert b"orders" not in answer.replace(b"/sink?id=orders", b"")
    assert b"evil.example" not in answer


def test_a_form_that_is_too_long_is_refused_before_it_is_sent(guarded: int) -> None:
    """D15. Else waitress takes up to a gigabyte from a stranger, into a file, before the dashboard is asked."""
    head = asking("/login", method="POST").replace(b"Content-Length: 0", b"Content-Length: %d" % (FORM_BYTES_MAX + 1))
    assert status(said(guarded, head)) == 413


@pytest.mark.parametrize(
    "path", ["/", "/login", "/nothing", "/static/nothing", "/static/dashboard.css", "/recover?id=orders"]
)
def test_every_page_has_its_rules_and_no_name_of_a_product(guarded: int, path: str) -> None:
    head = said(guarded, asking(path)).partition(b"\r\n\r\n")[0]
    for rule in (
        b"frame-ancestors 'none'",
        b"X-Content-Type-Options: nosniff",
        b"X-Frame-Options: DENY",
        b"Referrer-Policy: same-origin",
        b"Cache-Control: no-store",
    ):
        assert rule in head
    for other in (b"Access-Control", b"\r\nServer:", b"script-src", b"unsafe-inline"):
        assert other not in head


# --- figures -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def exporter() -> Iterator[int]:
    with figures(MetricsAccess(frozenset({"watch.internal"}))) as port:
        yield port


@pytest.mark.parametrize("host", EVIL)
def test_figures_are_not_for_another_name(exporter: int, host: str) -> None:
    """D15. DNS rebinding: a page of evil.example, whose name leads here, would read the ids of all sinks."""
    answer = said(exporter, asking("/metrics", host=host))
    assert (status(answer), b"orders" in answer) == (400, False)


def test_figures_with_a_token_are_for_who_says_it() -> None:
    with figures(MetricsAccess(token=TOKEN)) as port:
        for wrong in (
            {},
            {"Authorization": TOKEN},
            {"Authorization": f"Bearer {TOKEN}x"},
            {"Authorization": "Bearer é"},
        ):
            answer = said(port, asking("/metrics", **wrong))
            assert (status(answer), b"orders" in answer) == (401, False)
            assert b"\r\nWWW-Authenticate: Bearer\r\n" in answer
        assert status(said(port, asking("/metrics", Authorization=f"Bearer {TOKEN}"))) == 200


@pytest.mark.parametrize(
    ("path", "method", "code"), [("/metrics", "GET", 200), ("/", "GET", 404), ("/metrics", "POST", 405)]
)
def test_no_page_may_show_or_embed_figures(exporter: int, path: str, method: str, code: int) -> None:
    head = said(exporter, asking(path, method=method)).partition(b"\r\n\r\n")[0]
    assert status(head) == code
    for rule in (
        b"Content-Security-Policy: default-src 'none'; frame-ancestors 'none'",
        b"X-Content-Type-Options: nosniff",
        b"Referrer-Policy: no-referrer",
        b"Cross-Origin-Resource-Policy: same-origin",
        b"Cache-Control: no-store",
    ):
        assert rule in head
    assert b"Access-Control" not in head


def test_a_scrape_that_fails_says_so_and_no_more(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Shown):
        def look(self, transactional_id: str | None = None) -> StatusReport:
            raise OSError(f"no way to db.internal, asked for {transactional_id}")

    with figures(MetricsAccess(), Broken()) as port:
        answer = said(port, asking("/metrics"))
    assert (status(answer), PLACES.search(answer)) == (500, None)
    assert caplog.messages == ["could not collect the metrics for a scrape"]
