"""Chromium without a window, for tests that look at a page as a person does."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

from spark_2pc_sink.testing import CapabilityError


def find_chromium() -> str:
    found = shutil.which("chromium")
    if found is None:
        raise CapabilityError("Chromium is not installed; on Debian: apt-get install chromium")
    return found


@contextmanager
def chromium_with(program: str, *flags: str) -> Iterator[Browser]:
    """The browser, with some flags; it ends with the block."""
    with sync_playwright() as playwright:
        # Tests may run as root, for whom Chromium has no sandbox.
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", *flags])
        yield browser
        browser.close()
