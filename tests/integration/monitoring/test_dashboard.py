"""The dashboard in a real Chromium, on real servers and beside an attacker's page; and ``spark-2pc exporter``.

    SPARK_2PC_WRITE_IMAGES=1 python -m pytest tests/integration/monitoring/test_dashboard.py -k person

writes the picture of docs/dashboard.md anew.
"""

from __future__ import annotations

import os
import re
import secrets
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, Page, ViewportSize, expect
from prometheus_client.parser import text_string_to_metric_families

from jdbc_state import DONE
from spark_2pc_sink import recover
from spark_2pc_sink.monitoring.dashboard.access import DashboardAccess
from spark_2pc_sink.testing import read_topic
from spark_2pc_sink.web_server import MetricsAccess
from tests.conftest import StartKafka, or_skip
from tests.harness import ROOT
from tests.harness.chromium import chromium_with, find_chromium
from tests.harness.driver_job import SMALL_INPUT, Job
from tests.harness.providers import Broker
from tests.integration.faults.conftest import MakeJob
from tests.integration.monitoring.conftest import Serve
from tests.unit.monitoring.samples import FIGURES, MARKUP, Shown, dashboard, figures, lines

PICTURE = ROOT / "docs" / "images" / "dashboard.png"
PICTURE_BYTES_MAX = 200_000
#: Batches of the job whose page is in the picture; the last is in doubt.
SIZES = (320, 410, 380, 0, 520, 460, 300, 610, 480, 350, 430, 390)
#: The page of an attacker.
EVIL = "evil.example"
PHONE: ViewportSize = {"width": 400, "height": 800}


@pytest.fixture(scope="module")
def chromium(pytestconfig: pytest.Config) -> Iterator[Browser]:
    """A Chromium for which the attacker's name has the address of this machine: DNS rebinding, after the turn."""
    # Newer browsers ask a person before a page may reach this machine; not all browsers do.
    old = "--disable-features=LocalNetworkAccessChecks"
    rules = f"--host-resolver-rules=MAP {EVIL} 127.0.0.1"
    with chromium_with(or_skip(pytestconfig, find_chromium), old, rules) as browser:
        yield browser


@pytest.fixture
def transactional_id() -> str:
    """One that is good to read in a picture."""
    return f"orders-{secrets.token_hex(2)}"


@pytest.fixture
def page(chromium: Browser) -> Iterator[Page]:
    """A page whose browser runs no script: it has to do without."""
    context = chromium.new_context(java_script_enabled=False, viewport={"width": 1200, "height": 900})
    context.set_default_timeout(60_000)
    yield context.new_page()
    context.close()


@pytest.fixture
def job(kafka_without_2pc: Broker, make_job: MakeJob) -> Job:
    """A job whose driver was killed right after its last decision."""
    job = make_job(kafka_without_2pc, sizes=SIZES)
    job.kill_at("step:DECIDE", batch=len(SIZES) - 1)
    return job


def test_a_person_recovers_a_sink_that_is_in_doubt(job: Job, serve: Serve, page: Page, tmp_path: Path) -> None:
    """From the list to the sink, to what recovery would do, to both sides with the batch; each step is clicked.

    The picture of the docs is made on the way, so that it shows the page as it is.
    """
    batch = len(SIZES) - 1
    page.goto(f"http://{serve('dashboard', job)}/")
    row = page.get_by_role("row", name=job.transactional_id)
    expect(row).to_contain_text("in doubt")
    expect(row).to_contain_text(f"Kafka has lacked batch {batch}")
    page.get_by_role("link", name=job.transactional_id).click()
    expect(page.get_by_role("heading", name=job.transactional_id)).to_be_visible()
    expect(page.get_by_role("img", name="rows of each batch")).to_be_visible()
    expect(page.get_by_role("img", name="seconds of each batch by steps")).to_be_visible()
    picture = PICTURE if os.environ.get("SPARK_2PC_WRITE_IMAGES") else tmp_path / PICTURE.name
    page.screenshot(path=picture)
    assert max(picture.stat().st_size, PICTURE.stat().st_size) < PICTURE_BYTES_MAX
    page.get_by_role("link", name="What would recovery do?").click()
    expect(page.get_by_text("recovery will commit")).to_be_visible()
    assert job.state("status") == ("decided",), "looking changes nothing"

    page.get_by_label("Type the id of the sink").fill("another")
    page.get_by_role("button", name="Recover this sink").click()
    expect(page.get_by_role("alert")).to_contain_text("is not the id of this sink")
    assert job.state("status") == ("decided",)

    page.get_by_label("Reason").fill("seen on the dashboard")
    page.get_by_label("Type the id of the sink").fill(job.transactional_id)
    page.get_by_role("button", name="Recover this sink").click()
    expect(page.get_by_role("heading", name=f"Settled: {job.transactional_id}")).to_be_visible()
    assert job.state("status", "batch_id") == (DONE, batch)
    assert len(read_topic(job.broker.bootstrap, job.topic)) == sum(SIZES)

    page.get_by_role("link", name=job.transactional_id).first.click()
    expect(page.get_by_text("both sides agree")).to_be_visible()
    done = page.get_by_role("row", name=re.compile("seen on the dashboard"))
    expect(done.first).to_be_visible()


# --- what a browser does with the pages, on a dashboard of this process --------------------------------------------


def test_a_form_of_another_page_is_refused(chromium: Browser) -> None:
    """A page of an attacker sends the very form, from a browser that is logged in: it has no token of these pages."""
    watched = Shown()
    with dashboard(DashboardAccess(), watched) as port, chromium.new_context() as context:
        page = context.new_page()
        page.goto(f"http://127.0.0.1:{port}/recover?id=orders")
        seen = page.locator("input[name=seen]").get_attribute("value")
        fields = {"id": "orders", "typed": "orders", "choice": "settle", "seen": seen or ""}
        inputs = "".join(f'<input name="{name}" value="{value}">' for name, value in fields.items())
        attack = f'<form method="post" action="http://127.0.0.1:{port}/recover">{inputs}<button>send</button></form>'
        page.route(f"http://{EVIL}/", lambda route: route.fulfill(body=attack, content_type="text/html"))
        page.goto(f"http://{EVIL}/")
        page.get_by_role("button", name="send").click()
        expect(page.get_by_role("heading", name="Bad Request")).to_be_visible()
        assert watched.recovered == []


def test_no_script_runs_and_nothing_is_loaded_from_elsewhere(chromium: Browser) -> None:
    """An id that is markup is text for a browser that would run it; and the pages break no rule of their own policy."""
    with dashboard(DashboardAccess()) as port, chromium.new_context() as context:
        page = context.new_page()
        said: list[str] = []
        asked: list[str] = []
        page.on("console", lambda message: said.append(message.text))
        # Of whatever a script could open; nobody answers, so the test would end by its time-out, too.
        page.on("dialog", lambda dialog: said.append(dialog.message))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"http://127.0.0.1:{port}/")
        page.get_by_role("link", name=MARKUP).click()
        expect(page.get_by_role("heading", name=MARKUP)).to_be_visible()
        assert said == []
        assert all(url.startswith(f"http://127.0.0.1:{port}/") for url in asked)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_has_no_need_to_scroll_sideways(chromium: Browser, scheme: Literal["light", "dark"]) -> None:
    watched = Shown(history=tuple(lines(*[FIGURES] * 12)))
    with (
        dashboard(DashboardAccess(), watched) as port,
        chromium.new_context(viewport=PHONE, color_scheme=scheme) as context,
    ):
        page = context.new_page()
        for path in ("/", "/sink?id=orders", "/recover?id=orders"):
            page.goto(f"http://127.0.0.1:{port}{path}")
            assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
            paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert (sum(map(int, re.findall(r"\d+", paper))) < 3 * 128) is (scheme == "dark")


# --- the page of an attacker, open beside the dashboard and the figures on loopback addresses -------------------------


def test_a_page_whose_name_leads_here_reads_nothing(chromium: Browser) -> None:
    """D15."""
    with (
        dashboard(DashboardAccess()) as pages,
        figures(MetricsAccess()) as numbers,
        chromium.new_context() as context,
    ):
        page = context.new_page()
        refusals = {"/": (pages, "is not a name of this server"), "/metrics": (numbers, "does not name this server")}
        for path, (port, refusal) in refusals.items():
            page.goto(f"http://{EVIL}:{port}{path}")
            assert refusal in page.content()
            assert "orders" not in page.content()
            page.goto(f"http://127.0.0.1:{port}{path}")
            assert "orders" in page.content(), "by its address it is read"


def test_another_page_can_neither_frame_nor_read(chromium: Browser) -> None:
    """D15."""
    with (
        dashboard(DashboardAccess()) as pages,
        figures(MetricsAccess()) as numbers,
        chromium.new_context() as context,
    ):
        page = context.new_page()
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


#: For a look with a side that is out of reach, and what a scrape may take in addition; for one where both answer.
TIMEOUT_S, BESIDE_S, ANSWERS_S = 4, 4, 50


@dataclass(frozen=True)
class Scrape:
    """What one scrape has found: values by name and labels."""

    values: dict[tuple[str, tuple[tuple[str, str], ...]], float]

    @classmethod
    def of(cls, address: str) -> Scrape:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
        samples = [sample for family in families for sample in family.samples]
        return cls({(sample.name, tuple(sorted(sample.labels.items()))): sample.value for sample in samples})

    def one(self, name: str, **labels: str) -> float | None:
        return self.values.get((f"spark_2pc_{name}", tuple(sorted(labels.items()))))

    def of_sink(self, job: Job, name: str, **labels: str) -> float | None:
        return self.one(f"sink_{name}", transactional_id=job.transactional_id, **labels)


def test_an_incident_is_in_the_figures_and_so_is_its_end(
    start_kafka: StartKafka, make_job: MakeJob, serve: Serve
) -> None:
    """Of a job whose driver was killed right after its second decision; at the end Kafka is out of reach."""
    broker = start_kafka()
    job = make_job(broker)
    job.kill_at("step:DECIDE", batch=1)
    address = serve("exporter", job, "--timeout", str(ANSWERS_S))
    before = Scrape.of(address)
    assert (before.one("database_up"), before.one("kafka_up"), before.one("sinks")) == (1, 1, 1)
    assert (before.of_sink(job, "in_doubt_seconds") or 0) > 0
    assert before.of_sink(job, "driver_up") == 0
    assert before.of_sink(job, "claims_total") == 1
    assert before.of_sink(job, "batches_total") == 0, "counting begins at the first look"
    recover(transactional_id=job.transactional_id, kafka={"bootstrap.servers": broker.bootstrap}, database=job.database)
    job.run()
    after = Scrape.of(address)
    assert (after.of_sink(job, "in_doubt_seconds"), after.of_sink(job, "prepared_seconds")) == (0, 0)
    assert after.of_sink(job, "claims_total") == 3, "of the two drivers, and of the recovery"
    # The batch that was in doubt at the first look, the empty one, and the last.
    assert after.of_sink(job, "batches_total") == 3
    assert after.of_sink(job, "rows_total") == SMALL_INPUT[1] + SMALL_INPUT[3]
    assert after.of_sink(job, "resends_total") == 0
    # Of batches that a driver took through their steps, the empty one too, not of those that were recovered.
    assert after.of_sink(job, "batch_seconds_count") == 2
    steps = {dict(labels)["step"] for name, labels in after.values if name == "spark_2pc_sink_batch_step_seconds_sum"}
    assert steps >= {"place", "begin", "produce", "prepare", "decide", "complete"}

    hasty = serve("exporter", job, "--timeout", str(TIMEOUT_S))
    broker.kill()
    begun_s = time.monotonic()
    found = Scrape.of(hasty)
    assert time.monotonic() - begun_s < TIMEOUT_S + BESIDE_S
    assert (found.one("database_up"), found.one("kafka_up")) == (1, 0)
    assert found.of_sink(job, "claims_total") == 3, "the database alone knows it"
