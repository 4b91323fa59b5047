"""The page of the package at an index: links of README.md work there, or are plain text until there is an address."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
import sys
import tarfile
from email import message_from_string
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
README = (ROOT / "README.md").read_text()
PROJECT = (ROOT / "pyproject.toml").read_text()
index_page = runpy.run_path(str(ROOT / "setup.py"))["index_page"]


def code(text: str) -> list[str]:
    """The blocks of a page."""
    return re.findall("```.*?```", text, flags=re.DOTALL)


def links(text: str) -> list[str]:
    """Where links between brackets go, outside of code."""
    return re.findall(r"\]\(([^)]+)\)", re.sub("```.*?```", "", text, flags=re.DOTALL))


def test_links_go_to_the_address_of_the_project() -> None:
    with_address = f'{PROJECT}\n[project.urls]\nSource = "https://host.example/team/sink/"\n'
    made = links(index_page(README, with_address))
    assert len(made) == len(links(README)) > 20
    start = "https://host.example/team/sink/blob/main/"
    assert [link for link in made if "/raw/main/" in link] == [
        "https://host.example/team/sink/raw/main/docs/images/recipe.svg"
    ]
    assert [link for link in made if not link.startswith(("https://", "#"))] == []
    assert [ROOT / link.removeprefix(start).partition("#")[0] for link in made if link.startswith(start)] != []
    assert all((ROOT / link.removeprefix(start).partition("#")[0]).exists() for link in made if link.startswith(start))


def test_without_an_address_a_link_is_its_text() -> None:
    readme = (
        "[![a\npicture](one.svg)](page.md) ![two](https://x.example/two.svg) ![three](three.svg)\n"
        "[`four.md`](four.md#b) [`4/`](4/four.md) [four](4/four.md)\n"
        "[five](https://x.example) [six](#a) [![seven](https://x.example/7.svg)](seven.md)\n"
    )
    assert index_page(readme, '[project]\n# Source = "https://x.example"\n') == (
        "a\npicture (page.md) ![two](https://x.example/two.svg) three\n"
        "`four.md` `4/` four (4/four.md)\n"
        "[five](https://x.example) [six](#a) ![seven](https://x.example/7.svg) (seven.md)\n"
    )


@pytest.mark.slow
def test_the_page_of_an_archive_leads_somewhere(tmp_path: Path) -> None:
    """As a build writes it: links have an address, and files that it names in their place are in the source archive."""
    source = tmp_path / "source"
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(".*", "build", "dist", "__pycache__", "*.egg-info"))
    build = "from setuptools import build_meta as b; b.prepare_metadata_for_build_wheel('..'); b.build_sdist('..')"
    subprocess.run([sys.executable, "-c", build], cwd=source, check=True, capture_output=True)
    [metadata], [archive] = tmp_path.glob("*.dist-info/METADATA"), tmp_path.glob("*.tar.gz")
    page = message_from_string(metadata.read_text()).get_payload()
    assert isinstance(page, str)
    headings = {heading.lower().replace(" ", "-") for heading in re.findall("^#+ (.*)$", page, re.MULTILINE)}
    found = [link for link in links(page) if not link.startswith("https://") and link.removeprefix("#") not in headings]
    assert found == []
    with tarfile.open(archive) as files:
        inside = {name.partition("/")[2] for name in files.getnames()}
        shown = files.extractfile(f"{archive.name.removesuffix('.tar.gz')}/PKG-INFO")
        assert shown is not None
        assert message_from_string(shown.read().decode()).get_payload() == page
    linked = {link.partition("#")[0] for link in links(README) if not link.startswith(("https://", "#"))}
    assert linked - inside == set()
