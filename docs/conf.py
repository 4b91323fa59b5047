"""The manual as a site: `make docs`. Its pages are the Markdown files of the repository, as they stand there."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from docutils import nodes  # noqa: E402 - the path is set first
from pygments.lexers.special import TextLexer  # noqa: E402 - as above

from spark_2pc_sink import __version__  # noqa: E402 - found by the line above

project = "spark_2pc_sink"
author = "spark_2pc_sink authors"
release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]

root_doc = "README"
include_patterns = ["*.md", "docs/**.md", "tests/*.md", "examples/README.md", "docker/README.md", "benchmarks/*.md"]
exclude_patterns = [".*", "build"]

myst_heading_anchors = 4  # links to headings, as GitHub makes them
# A block without a language is what a terminal shows.
highlight_language = "none"
# Python with "…" in it; whether a block is Python is a test (tests/unit/docs/test_blocks.py).
suppress_warnings = ["misc.highlighting_failure"]
# Docstrings have names of the code in single backticks.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "description"

# Links out of the project, by `make links`. Examples are no addresses; numbers of lines are made by scripts of a page.
linkcheck_ignore = [r"https?://(127\.0\.0\.1|localhost|registry|[\w.-]*example\.org|NAMESPACE|shop\.)"]
linkcheck_anchors_ignore_for_url = ["https://github.com/"]
linkcheck_timeout = 30
linkcheck_retries = 3
linkcheck_allow_unauthorized = True

html_theme = "furo"
html_title = f"spark_2pc_sink {release}"
html_extra_path = ["site"]
html_static_path = ["static"]
html_css_files = ["narrow.css"]

#: What a section of the manual's index looks like: a heading, and below it a list of pages.
_SECTION = re.compile(r"^## (.+)\n\n((?:(?:- |  ).+\n)+)", re.MULTILINE)
_PAGE = re.compile(r"\[[^\]]+\]\(([^)#]+)\.md\)")


def _contents(pages: Iterable[str], title: str = "") -> str:
    """What GitHub shows as a list is the site's navigation."""
    caption = f":caption: {title}\n" if title else ""
    names = "\n".join(pages)
    return f"\n```{{toctree}}\n:hidden:\n{caption}\n{names}\n```\n"


def _add_contents(app: Sphinx, page: str, source: list[str]) -> None:
    """Give the navigation to the first page, and the pages of the design to their index."""
    if page == root_doc:
        # Else a site that was built before keeps the navigation that it has.
        app.env.note_dependency(str(ROOT / "docs/README.md"))
        source[0] += "\n" + _contents(["docs/README"])
        for title, entries in _SECTION.findall((ROOT / "docs/README.md").read_text()):
            source[0] += _contents([f"/docs/{name}" for name in _PAGE.findall(entries)], title)
    elif page == "docs/design/README":
        source[0] += "\n" + _contents(name for name in _PAGE.findall(source[0]) if "/" not in name)


def _write_llms_txt(app: Sphinx, error: Exception | None) -> None:
    """The index for programs that read (llmstxt.org): the manual's own, with links to the pages' Markdown."""
    if error is None:
        index = (ROOT / "docs/README.md").read_text()
        index = re.sub(r"\]\((?!\.\./)([^)]+\.md)\)", r"](_sources/docs/\1.txt)", index)
        index = re.sub(r"\]\(\.\./([^)]+\.md)\)", r"](_sources/\1.txt)", index)
        (Path(app.outdir) / "llms.txt").write_text(index)


def _label_cells(_app: Sphinx, document: nodes.document, _page: str) -> None:
    """Put the name of its column into each cell: narrow.css shows it where the cells are below each other."""
    for table in document.findall(nodes.tgroup):
        names = [entry.astext() for head in table.findall(nodes.thead) for entry in head.findall(nodes.entry)]
        for body in table.findall(nodes.tbody):
            for row in body.findall(nodes.row):
                for name, cell in zip(names, row.children, strict=False):
                    if isinstance(cell, nodes.entry) and name:
                        cell.insert(0, nodes.container("", nodes.Text(name), classes=["column-name"]))


def setup(app: Sphinx) -> None:
    """Register what Sphinx calls."""
    app.connect("doctree-resolved", _label_cells)
    app.connect("build-finished", _write_llms_txt)
    app.connect("source-read", _add_contents)
    # The languages of blocks that tests read; a terminal shows them as they are.
    for language in ("answers", "jsonl"):
        app.add_lexer(language, TextLexer)
