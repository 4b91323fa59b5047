"""Find words that the project does not use in comments, docstrings, printed texts and pages: ``make lint``.

python -m tools.plain_english

Code and quoted messages are not searched. Exit code 1: a word was found.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
PAGES: Final = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md")
# A capital "Of" begins a sentence or a title; the other words are banned in either case.
_BANNED: Final = re.compile(r"\b(?:Of(?=\s)|(?i:nobody|somebody|whoever|anew|by\s+now|all\s+the\s+same))\b")
_CODE: Final = re.compile(r"(?s:```.*?```)|`+[^`\n]+`+|\"[^\"\n]*\"|\]\([^)\n]*\)")


class Finding(NamedTuple):
    """A banned word at a line of a file."""

    path: Path
    line: int
    word: str


def _python_prose(source: str) -> str:
    """Keep comments and strings of several words at their lines."""
    lines = [""] * (source.count("\n") + 2)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            lines[token.start[0]] += token.string.lstrip("#:")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            for number, line in enumerate(node.value.split("\n"), node.lineno):
                lines[min(number, node.end_lineno or number)] += line
    return "\n".join(lines[1:])


def findings(path: Path) -> Iterator[Finding]:
    """Find banned words in a file of Python or Markdown."""
    text = path.read_text()
    prose = _CODE.sub(lambda code: re.sub(r"\S", " ", code[0]), _python_prose(text) if path.suffix == ".py" else text)
    for found in _BANNED.finditer(prose):
        word = " ".join(found[0].lower().split())
        yield Finding(path, prose.count("\n", 0, found.start()) + 1, word)


def all_findings() -> list[Finding]:
    """Search both packages and the pages; pages that are made from the code are not searched."""
    sources = [path for package in ("spark_2pc_sink", "jdbc_state") for path in sorted((ROOT / package).rglob("*.py"))]
    pages = [
        path
        for path in sorted((ROOT / "docs").rglob("*.md"))
        if path.parent.name != "reference" and path.name != "glossary.md"
    ]
    return [found for path in (*sources, *pages, *(ROOT / page for page in PAGES)) for found in findings(path)]


if __name__ == "__main__":
    found = all_findings()
    for finding in found:
        sys.stdout.write(f"{finding.path.relative_to(ROOT)}:{finding.line}: {finding.word!r} is not used here\n")
    sys.exit(1 if found else 0)
