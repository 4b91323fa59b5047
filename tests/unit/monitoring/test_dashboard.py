"""The dashboard: sink views, who may come in, what pages show and never show, forms, and requests of strangers."""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Iterator
from contextlib import closing, suppress
from html import unescape
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree as ET

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from spark_2pc_sink.errors import HaltCause, StateStoreError
from spark_2pc_sink.monitoring.dashboard.access import DashboardAccess
from spark_2pc_sink.monitoring.dashboard.app import make_app
from spark_2pc_sink.monitoring.dashboard.sink_views import HEIGHT, Bar, bar_chart
from spark_2pc_sink.options import OperatorDecision
from spark_2pc_sink.recovery.report import StatusReport
from spark_2pc_sink.web_server import REQUEST_BYTES_MAX, MetricsAccess
from tests.unit.monitoring.samples import (
    ALIVE,
    FIGURES,
    MARKUP,
    SASL_SECRET,
    SECRET,
    Shown,
    dashboard,
    figures,
    halted,
    in_doubt,
    lines,
    owed,
    sink,
)

TOKEN = "a-token-of-the-test-that-nobody-guesses"


def client(watched: Shown | None = None, access: DashboardAccess | None = None) -> FlaskClient:
    return make_app(watched or Shown(), access or DashboardAccess()).test_client()


def with_token() -> FlaskClient:
    return client(access=DashboardAccess(token=TOKEN))


def hidden(answer: TestResponse) -> dict[str, str]:
    found = re.findall(r'<input type="hidden" name="([a-z_]+)" value="([^"]*)">', answer.text)
    return {name: unescape(value) for name, value in found}


def submit(browser: FlaskClient, name: str = "orders", **fields: str) -> TestResponse:
    """Fill in the form of a sink as a person does, but for ``fields``, and send it."""
    form = hidden(browser.get("/recover", query_string={"id": name}))
    return browser.post("/recover", data={**form, "typed": name, "choice": "settle", **fields})


def text_of(answer: TestResponse) -> str:
    """What a person reads: without tags, in one line."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", answer.text)).split())


# --- what is shown -----------------------------------------------------------------------------------------------


def test_the_list_has_every_sink_with_its_condition() -> None:
    shown = text_of(client().get("/"))
    for words in ("clicks both sides agree", "orders in doubt Kafka has lacked batch 41 for 2 min 0 s"):
        assert words in shown
    assert "payments Kafka is owed a batch" in shown
    assert "archive on another cluster" in shown
    assert "ledger database: its pair 'spoiled' is none" in shown
    assert "Kafka broker:9092 PostgreSQL db.internal:5433/shop" in shown


def test_an_id_that_is_markup_is_text_on_every_page() -> None:
    """A transactional id may be any text; its sink is found by it all the same."""
    browser = client(Shown(history=tuple(lines(FIGURES, name=MARKUP))))
    for path in ("/", f"/sink?id={quote(MARKUP)}", f"/recover?id={quote(MARKUP)}"):
        answer = browser.get(path)
        assert answer.status_code == 200
        assert "<script" not in answer.text
        assert MARKUP in unescape(answer.text)


def test_a_sink_has_both_sides_its_batches_and_what_people_did() -> None:
    browser = client(Shown(history=tuple(lines(FIGURES, FIGURES, {}))))
    answer = browser.get("/sink?id=orders")
    shown = text_of(answer)
    for words in ("status decided", "state CompleteCommit", "state not running", "What would recovery do?"):
        assert words in shown
    for words in ("Rows of each batch", "Time of each batch", "41 2026-11-24 11:58:00 done", "orders-0 5 13"):
        assert words in shown
    assert "drop 40 operator at night-1, as ops Kafka has all of it" in shown
    assert answer.text.count("<svg") == 2


def test_a_side_out_of_reach_is_named_and_the_other_is_shown() -> None:
    watched = Shown(found=StatusReport(sinks=(in_doubt(),), kafka_problem="no broker answered"))
    assert "Kafka cannot be read. no broker answered" in text_of(client(watched).get("/"))
    page = text_of(client(watched).get("/sink?id=orders"))
    assert "Kafka cannot be read." in page
    assert "status decided" in page
    watched = Shown(found=StatusReport(database_problem="no connection"))
    assert "Database cannot be read. no connection" in text_of(client(watched).get("/sink?id=orders"))


def test_no_page_has_a_secret() -> None:
    """Neither the password of the database's URL nor that of the brokers, wherever both sides are named."""
    watched = Shown(
        history=tuple(lines(FIGURES)), outcome=StateStoreError(operation="claim in db.internal", detail="refused")
    )
    browser = client(watched)
    answers = [browser.get(path) for path in ("/", "/sink?id=orders", "/recover?id=orders", "/nothing")]
    answers.append(submit(browser))
    for answer in answers:
        assert SECRET not in answer.text
        assert SASL_SECRET not in answer.text
        assert not {SECRET, SASL_SECRET} & set(dict(answer.headers).values())
    assert SECRET not in repr(watched)


# --- who may come in ---------------------------------------------------------------------------------------------


def test_pages_keep_to_their_policy() -> None:
    """No script, no style in an attribute, nothing from elsewhere."""
    browser = client(Shown(history=tuple(lines(FIGURES))))
    for path in ("/", "/sink?id=orders", "/recover?id=orders"):
        page = browser.get(path).text
        assert not re.search(r"<script|<style|\sstyle=|\son[a-z]+=|javascript:", page)
        assert set(re.findall(r'(?:src|href)="(https?:[^"]*)"', page)) == set()


@pytest.mark.parametrize("path", ["/", "/sink?id=orders", "/recover?id=orders"])
def test_who_has_not_said_the_token_sees_nothing(path: str) -> None:
    answer = with_token().get(path)
    assert (answer.status_code, answer.headers["Location"]) == (303, "/login")
    assert "orders" not in answer.text


def test_the_token_lets_in_and_another_does_not() -> None:
    browser = with_token()
    form = hidden(browser.get("/login"))
    assert browser.post("/login", data={**form, "token": "another"}).status_code == 403
    assert browser.get("/").status_code == 303
    assert browser.post("/login", data={**form, "token": f" {TOKEN}\n"}).headers["Location"] == "/"
    assert browser.get("/").status_code == 200
    (cookie,) = [value for name, value in browser.get("/").headers if name == "Set-Cookie"] or [""]
    assert TOKEN not in cookie


@pytest.mark.parametrize("given", [{}, {"csrf_token": "made-up"}])
def test_a_form_of_another_page_is_refused(given: dict[str, str]) -> None:
    watched = Shown()
    browser = client(watched)
    form = {**hidden(browser.get("/recover?id=orders")), "typed": "orders", "choice": "settle"}
    del form["csrf_token"]
    answer = browser.post("/recover", data={**form, **given})
    assert (answer.status_code, watched.recovered) == (400, [])
    assert browser.post("/login", data={"token": TOKEN}).status_code == 400


# --- what a form carries out -------------------------------------------------------------------------------------


def test_a_sink_is_settled_after_its_id_was_typed() -> None:
    watched = Shown()
    browser = client(watched)
    answer = submit(browser, reason="night shift")
    assert answer.status_code == 200
    assert "Settled: orders" in text_of(answer)
    assert watched.recovered == [("orders", {"reason": "night shift"})]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"typed": "order"}, "The typed id is not the id of this sink"),
        ({"choice": "drop"}, "Choose what to do"),
        ({"seen": "7|41|decided|41|5:1||"}, "Both sides have changed since this page was loaded"),
    ],
)
def test_a_form_that_was_not_filled_in_changes_nothing(fields: dict[str, str], words: str) -> None:
    watched = Shown()
    answer = submit(client(watched), **fields)
    assert (answer.status_code, watched.recovered) == (409, [])
    assert words in text_of(answer)


def test_a_form_is_not_carried_out_twice() -> None:
    """The browser sends it again on a reload; by then both sides are others."""
    watched = Shown()
    browser = client(watched)
    form = {**hidden(browser.get("/recover?id=orders")), "typed": "orders", "choice": "settle"}
    browser.post("/recover", data=form)
    object.__setattr__(watched, "found", StatusReport(sinks=(sink(),)))
    assert browser.post("/recover", data=form).status_code == 409
    assert len(watched.recovered) == 1


@pytest.mark.parametrize("found", [owed(), halted(HaltCause.TOPIC_REMADE)])
def test_a_word_about_a_batch_is_carried_out_with_its_reason_alone(found: Any) -> None:
    watched = Shown(found=StatusReport(sinks=(found,)))
    browser = client(watched)
    without = submit(browser, choice="drop", reason="  ")
    assert (without.status_code, watched.recovered) == (409, [])
    assert "This choice needs a reason" in text_of(without)
    submit(browser, choice="drop", reason="Kafka has it: compared at 3:10")
    assert watched.recovered == [
        ("orders", {"reason": "Kafka has it: compared at 3:10", "decision": OperatorDecision.DROP, "batch": 41})
    ]


def test_nothing_but_the_suggested_choice_is_chosen_already() -> None:
    page = client().get("/recover?id=orders").text
    assert "would commit the transaction" in page
    assert re.findall(r'value="([a-z_]+)" required( checked)?', page) == [("settle", " checked")]
    alive = Shown(found=StatusReport(sinks=(in_doubt(driver=ALIVE),)))
    page = client(alive).get("/recover?id=orders").text
    assert re.findall(r'value="([a-z_]+)" required( checked)?', page) == [("take_over", "")]


SVG = "{http://www.w3.org/2000/svg}"


def bars(*values: float) -> list[Bar]:
    return [Bar(f"12:00:{number:02}", f"batch {number}", {"rows": value}) for number, value in enumerate(values)]


def rectangles(svg: str) -> list[dict[str, float]]:
    """The rectangles of a chart; that it parses is a part of the test."""
    found = ET.fromstring(svg).iter(f"{SVG}rect")  # noqa: S314 - our own text
    return [{name: float(each.attrib[name]) for name in ("x", "y", "width", "height")} for each in found]


def test_heights_are_in_proportion_and_end_at_one_line() -> None:
    low, high, none = rectangles(bar_chart(bars(50, 100, 0), name="rows", unit=""))
    assert high["height"] == pytest.approx(2 * low["height"])
    assert none["height"] == 0
    assert {round(each["y"] + each["height"], 1) for each in (low, high, none)} == {HEIGHT - 24.0}


def test_what_came_from_outside_is_text() -> None:
    svg = bar_chart([Bar("<b>", '"><script>', {"rows": 1})], name='rows"', unit="<i>")
    assert "<script" not in svg
    assert [each.text for each in ET.fromstring(svg).iter(f"{SVG}title")] == ['"><script>']  # noqa: S314 - our own text


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
    head = asking("/login", method="POST").replace(
        b"Content-Length: 0", b"Content-Length: %d" % (REQUEST_BYTES_MAX + 1)
    )
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
            assert b"\r\nwww-authenticate: bearer\r\n" in answer.lower()
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
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert errors == ["Exception while serving /metrics"]
