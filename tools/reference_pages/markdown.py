"""Markdown of the pages: tables, the texts of docstrings, and parts of a page."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence

#: A field of a docstring's "Attributes:", and what is said of it.
_ATTRIBUTE = re.compile(r"^    (\w[\w, ]*): (.*(?:\n {8,}.*)*)", re.MULTILINE)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; what a cell has of bars and line breaks does not end it."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(text) for text in line) + " |" for line in lines)


def code(text: str) -> str:
    """A name of the code; nothing for nothing."""
    return f"`{text}`" if text else ""


def text_of(documented: object) -> str:
    """A docstring without its sections ("Attributes:" and the like), as Markdown."""
    return plain(re.split(r"\n(?:Args|Attributes|Raises|Returns):\n", inspect.getdoc(documented) or "")[0])


def attributes_of(documented: object) -> dict[str, str]:
    """What a docstring says of each attribute."""
    text = inspect.getdoc(documented) or ""
    section = text.partition("Attributes:\n")[2] or text.partition("Args:\n")[2].partition("\n\n")[0]
    return {name: plain(about) for names, about in _ATTRIBUTE.findall(section) for name in re.split(", ?", names)}


def plain(text: str) -> str:
    """A docstring's code in single backticks, each paragraph on one line."""
    text = re.sub(r":\w+:`", "`", text).replace("``", "`")
    return "\n\n".join(" ".join(part.split()) for part in text.strip().split("\n\n"))


def with_part(page: str, name: str, made: str) -> str:
    """The page with a text between the marks of this name."""
    before, begin, rest = page.partition(f"<!-- {name}: made by tools.reference_pages -->\n")
    _, end, after = rest.partition(f"<!-- end of {name} -->\n")
    if not (begin and end):
        message = f"the page has no marks of {name!r}"
        raise ValueError(message)
    return f"{before}{begin}{made}\n{end}{after}"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")
