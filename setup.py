"""The one thing that pyproject.toml cannot say: the page at a package index, README.md with links that work there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent
#: To a file of the project; its address has no scheme, and it is not a heading of the page. Pictures begin with ``!``.
_OWN_LINK = re.compile(r"(!\[[^\]]*)?\]\((?!\w+:|#)([^)]+)\)")


def index_page(readme: str, project: str) -> str:
    """README.md for a package index, where links between files of the project lead nowhere.

    They go to the address that pyproject.toml has as ``Source``, at the project's main branch. Without one they stay.
    A picture goes to the file itself: at ``blob`` there is a page about it, which no browser takes for a picture.

    Args:
        readme: the text of README.md.
        project: the text of pyproject.toml.
    """
    source = re.search(r'^Source = "(.+?)/?"', project, re.MULTILINE)
    if source is None:
        return readme

    def absolute(link: re.Match[str]) -> str:
        picture, file = link.groups(default="")
        return f"{picture}]({source[1]}/{'raw' if picture else 'blob'}/main/{file})"

    return _OWN_LINK.sub(absolute, readme)


if __name__ == "__main__":
    from setuptools import setup

    page = index_page((ROOT / "README.md").read_text(), (ROOT / "pyproject.toml").read_text())
    setup(long_description=page, long_description_content_type="text/markdown")
