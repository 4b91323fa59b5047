"""The pages and pictures that are made of the code are what it makes now, and name all that there is."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from spark_2pc_sink import errors
from spark_2pc_sink.errors import DualWriteError, HaltCause
from tools.reference_pages.errors import errors_page
from tools.reference_pages.pages import PAGES, PARTS, PICTURES

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("name", [*(f"docs/reference/{page}" for page in PAGES), *PARTS, *PICTURES])
def test_a_page_is_what_the_code_makes(name: str) -> None:
    """Whole pages, parts of pages, and pictures. After a change: make reference-pages."""
    text = (ROOT / name).read_text()
    whole = {**{f"docs/reference/{page}": made for page, made in PAGES.items()}, **PICTURES}
    assert text == (whole[name]() if name in whole else PARTS[name](text))


def test_every_error_is_public_and_has_what_to_do_and_every_cause_has_ways_on() -> None:
    page = errors_page()
    found = set(errors.__all__) - {"HaltCause"}
    classes = {name: value for name, value in vars(errors).items() if inspect.isclass(value)}
    assert found >= {name for name, value in classes.items() if issubclass(value, DualWriteError)}
    for name in found - {"DualWriteError"}:
        section = page.partition(f"### {name}\n")[2].partition("\n### ")[0]
        assert "*What to do:* " in section, name
    for cause in HaltCause:
        section = page.partition(f"### {cause.value}\n")[2].partition("\n### ")[0]
        assert "\n- " in section, cause
