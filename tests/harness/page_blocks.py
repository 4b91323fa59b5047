"""Blocks of code on the pages for users, as tests read them: language, place and text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
#: Every page that a user reads, by its path from the root.
PAGES: Final = (
    *("README.md", "RUNBOOK.md", "CONTRIBUTING.md", "SECURITY.md", "SUPPORT.md", "ARCHITECTURE.md"),
    *("examples/README.md", "docker/README.md", "tests/README.md"),
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")),
)
_BLOCK: Final = re.compile(r"^ *```([^\n]*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """One block.

    Attributes:
        page: by its path from the root.
        line: of its first line of code.
        language: the first word of its info string; '' for none.
        text: its code.
    """

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def commands(self) -> list[str]:
        """What is typed into a shell, without comments, with lines that go on put together.

        A console shows it behind ``$``, another block has nothing else.
        """
        lines = self.text.replace("\\\n", " ").splitlines()
        typed = [line[2:] for line in lines if line.startswith("$ ")] if self.language == "console" else lines
        return [line for line in (re.sub(r"(^|\s)#.*", "", each).strip() for each in typed) if line]


def blocks(*languages: str) -> Iterator[Block]:
    """All blocks, or those in some languages, in the order of the pages."""
    for page in PAGES:
        text = (ROOT / page).read_text()
        for found in _BLOCK.finditer(text):
            language = found[1].partition(" ")[0]
            if not languages or language in languages:
                yield Block(page, text[: found.start(2)].count("\n") + 1, language, found[2])
