"""The commands of README.md, RUNBOOK.md and docs/ are commands that there are, with flags that they take."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from spark_2pc_sink.cli import command_parser

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "README.md", ROOT / "RUNBOOK.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
#: What a page writes in place of the reader's own.
_OWN = {
    "P": "0",
    "N": "0",
    "T": "topic",
    "ID": "id",
    "URL": "postgresql://db/shop",
    "…": "--bootstrap-server host:9092 --database postgresql://db/shop",
}


def blocks() -> str:
    """The code blocks of all pages that are no program, one after the other, with lines that go on put together."""
    fenced = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.DOTALL | re.MULTILINE)
    blocks = [block for page in PAGES for block in fenced.findall(page.read_text())]
    return "\n".join(text for language, text in blocks if language in {"", "console"}).replace("\\\n", " ")


def commands(program: str) -> list[str]:
    """What follows a program's name in each line that begins with it, without comments and what it is piped into."""
    return sorted(set(re.findall(rf"^(?:\$ )?{program} ([^#|\n]*)", blocks(), re.MULTILINE)))


@pytest.mark.parametrize("command", commands("spark-2pc"))
def test_spark_2pc_takes_the_words_of_a_page(command: str) -> None:
    words = shlex.split(" ".join(_OWN.get(word, word) for word in command.split()))
    assert callable(command_parser(words).parse_args(words).run)


def test_make_has_the_targets_of_the_pages() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {command.split(maxsplit=1)[0] for command in commands("make")} - targets == set()
