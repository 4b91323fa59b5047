"""The page of the package at an index: links of README.md work there, once the project has an address."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
README = (ROOT / "README.md").read_text()
PROJECT = (ROOT / "pyproject.toml").read_text()
index_page = runpy.run_path(str(ROOT / "setup.py"))["index_page"]


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


def test_pictures_are_files_and_no_pages_about_them() -> None:
    readme = "[![a\npicture](one.svg)](page.md) ![two](https://x.example/two.svg) ![three](three.svg) [four](four.md)"
    made = index_page(readme, '[project.urls]\nSource = "https://host.example/sink"\n')
    start = "https://host.example/sink"
    assert links(made) == [
        f"{start}/raw/main/one.svg",
        f"{start}/blob/main/page.md",
        "https://x.example/two.svg",
        f"{start}/raw/main/three.svg",
        f"{start}/blob/main/four.md",
    ]
    assert "![a\npicture](" in made


def test_without_an_address_the_page_is_as_it_stands() -> None:
    assert index_page(README, '[project]\n# Source = "https://x.example"\n') == README
