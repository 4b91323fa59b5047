"""A real Chromium with the page of an attacker open, beside the dashboard and the figures on loopback addresses."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page

from spark_2pc_sink.metrics_server import MetricsAccess
from spark_2pc_sink.monitoring.dashboard.access import DashboardAccess
from tests.conftest import or_skip
from tests.harness.chromium import chromium_with, find_chromium
from tests.unit.monitoring.served import dashboard, figures

EVIL = "evil.example"


@pytest.fixture(scope="module")
def rebound(pytestconfig: pytest.Config) -> Iterator[Browser]:
    """A Chromium for which the attacker's name has the address of this machine: DNS rebinding, after the turn."""
    program = or_skip(pytestconfig, find_chromium)
    # Newer browsers ask a person before a page may reach this machine; not all browsers do.
    old = "--disable-features=LocalNetworkAccessChecks"
    with chromium_with(program, old, f"--host-resolver-rules=MAP {EVIL} 127.0.0.1") as browser:
        yield browser


@pytest.fixture
def page(rebound: Browser) -> Iterator[Page]:
    context = rebound.new_context()
    yield context.new_page()
    context.close()


def test_a_page_whose_name_leads_here_reads_nothing(page: Page) -> None:
    """D15."""
    with dashboard(DashboardAccess()) as pages, figures(MetricsAccess()) as numbers:
        refusals = {"/": (pages, "is not a name of this server"), "/metrics": (numbers, "does not name this server")}
        for path, (port, refusal) in refusals.items():
            page.goto(f"http://{EVIL}:{port}{path}")
            assert refusal in page.content()
            assert "orders" not in page.content()
            page.goto(f"http://127.0.0.1:{port}{path}")
            assert "orders" in page.content(), "by its address it is read"


def test_another_page_can_neither_frame_nor_read(page: Page) -> None:
    """D15."""
    with dashboard(DashboardAccess()) as pages, figures(MetricsAccess()) as numbers:
        own = f"http://{EVIL}:1/"
        addresses = (f"http://127.0.0.1:{pages}/", f"http://127.0.0.1:{numbers}/metrics")
        frames = "".join(f'<iframe src="{address}"></iframe>' for address in addresses)
        page.route(own, lambda route: route.fulfill(body=frames, content_type="text/html"))
        page.goto(own)
        assert len(page.frames) == 1 + len(addresses)
        for frame in page.frames[1:]:
            assert "orders" not in frame.content()
        script = "url => fetch(url).then(answer => answer.text(), error => 'refused')"
        for address in addresses:
            assert page.evaluate(script, address) == "refused"
