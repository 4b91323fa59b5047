"""The manual as a site, in Chromium: its first page, its search, and the index for programs that read.

``make site`` builds the site and runs this; build/first-page.png is the picture of the first page, to be looked at.
"""

from __future__ import annotations

import functools
import http.server
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.conftest import or_skip
from tests.harness import ROOT
from tests.harness.chromium import chromium_with, find_chromium

SITE = ROOT / "build" / "site"
PICTURE = ROOT / "build" / "first-page.png"
DEADLINE_MS = 60_000
#: Paragraphs, headings, lists and cells of the page that reach over the right edge of the screen.
CUT_OFF = """() => [...document.querySelectorAll("article :is(p, h1, h2, h3, h4, li, td, code.literal)")]
    .filter(part => part.getBoundingClientRect().right > window.innerWidth)
    .map(part => part.textContent.slice(0, 60))"""


class Silent(http.server.SimpleHTTPRequestHandler):
    """Serves files without a line for each."""

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    """The address of the site, which is built if a page has changed."""
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-c", "docs", ".", str(SITE)]
    subprocess.run(command, cwd=ROOT, check=True)
    handler = functools.partial(Silent, directory=str(SITE))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def page(pytestconfig: pytest.Config) -> Iterator[Page]:
    with chromium_with(or_skip(pytestconfig, find_chromium)) as browser:
        found = browser.new_page(viewport={"width": 1280, "height": 1000})
        found.set_default_timeout(DEADLINE_MS)
        yield found


@pytest.mark.thorough
def test_the_first_page_leads_on(page: Page, site: str) -> None:
    """It loads nothing from elsewhere, nothing of it is missing, and each section of the manual is beside it."""
    asked: list[tuple[str, int]] = []
    page.on("response", lambda answer: asked.append((answer.url, answer.status)))
    page.goto(f"{site}/")
    expect(page.locator("h1")).to_contain_text("spark_2pc_sink")
    sections = re.findall("^## (.*)$", (ROOT / "docs/README.md").read_text(), re.MULTILINE)
    for section in sections:
        expect(page.locator(".sidebar-tree .caption", has_text=section)).to_be_visible()
    page.screenshot(path=PICTURE)
    assert [each for each in asked if not each[0].startswith(f"{site}/") or each[1] >= 400] == []


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("dead letter", "docs/bad-rows.html"),
        ("OAUTHBEARER", "docs/logins.html"),
        ("kubernetes", "docs/where-it-runs.html"),
        ("troubleshooting", "docs/faq.html"),
    ],
)
def test_the_search_finds_the_page(page: Page, site: str, words: str, expected: str) -> None:
    """As a reader does it: words into the field beside each page, and the Enter key."""
    page.goto(f"{site}/docs/using.html")
    page.locator(".sidebar-search").fill(words)
    page.locator(".sidebar-search").press("Enter")
    found = page.locator(f"#search-results li a[href^='{expected}']").first
    expect(found).to_be_visible(timeout=DEADLINE_MS)
    found.click()
    expect(page.locator("article")).to_contain_text(re.compile(words, re.IGNORECASE))


@pytest.mark.thorough
@pytest.mark.parametrize("path", sorted(path.relative_to(ROOT) for path in (ROOT / "docs").rglob("*.md")), ids=str)
def test_nothing_is_cut_off_on_a_narrow_screen(page: Page, site: str, path: Path) -> None:
    """Text and tables fit into 400 pixels; only blocks of code may be scrolled."""
    page.set_viewport_size({"width": 400, "height": 900})
    page.goto(f"{site}/{path.with_suffix('.html')}")
    cut_off = page.evaluate(CUT_OFF)
    page.set_viewport_size({"width": 1280, "height": 1000})
    assert cut_off == []


@pytest.mark.thorough
@pytest.mark.usefixtures("site")
def test_the_index_for_programs_leads_to_pages() -> None:
    links = re.findall(r"\]\(([^)#]+)", (SITE / "llms.txt").read_text())
    assert len(links) > 40
    assert [link for link in links if "://" not in link and not (SITE / link).exists()] == []
