"""The one thing that pyproject.toml cannot say: the page at a package index, README.md with links that work there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent
#: Where a link goes that is to a file of the project: it has no scheme, and is not a heading of the page.
_OWN = r"\((?!\w+:|#)([^)]+)\)"
#: With what it shows: a text, or a picture.
_LINK = re.compile(rf"(?<!!)\[((?:!\[[^\]]*\]\([^)]*\)|[^\]])*)\]{_OWN}")
_PICTURE = re.compile(rf"!\[([^\]]*)\]{_OWN}")


def _named(link: re.Match[str]) -> str:
    """A link as text: what it shows and, where that is no file's name, the file."""
    text, file = link[1], link[2].partition("#")[0]
    return text if file.startswith(text.strip("`")) else f"{text} ({file})"


def index_page(readme: str, project: str) -> str:
    """README.md for a package index, where links between files of the project lead nowhere.

    They go to the address that pyproject.toml has as ``Source``, at the project's main branch. A picture goes to the
    file itself: at ``blob`` there is a page about it, which no browser takes for a picture. Without an address a link
    is its text and the name of the file, which is in the source archive; a picture is what stands there for whoever
    cannot see it.

    Args:
        readme: the text of README.md.
        project: the text of pyproject.toml.
    """
    source = re.search(r'^Source = "(.+?)/?"', project, re.MULTILINE)
    if source is None:
        return _LINK.sub(_named, _PICTURE.sub(r"\1", readme))
    pictured = _PICTURE.sub(rf"![\1]({source[1]}/raw/main/\2)", readme)
    return _LINK.sub(rf"[\1]({source[1]}/blob/main/\2)", pictured)


if __name__ == "__main__":
    from setuptools import setup

    page = index_page((ROOT / "README.md").read_text(), (ROOT / "pyproject.toml").read_text())
    setup(long_description=page, long_description_content_type="text/markdown")
