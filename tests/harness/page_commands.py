"""Checks of what pages have a reader type: each command by the parser, the Makefile or the file that takes it."""

from __future__ import annotations

import importlib.util
import re
import shlex
from collections.abc import Callable, Sequence
from itertools import dropwhile, pairwise
from typing import Final

import yaml
from packaging.requirements import Requirement

from spark_2pc_sink.cli import command_parser
from tests.harness.page_blocks import ROOT, blocks

#: What a page writes in place of the reader's own.
_OWN: Final = {
    "P": "0",
    "N": "0",
    "T": "topic",
    "ID": "id",
    "URL": "postgresql://db/shop",
    "…": "--bootstrap-server host:9092 --database postgresql://db/shop",
}
#: Programs of others: tests/harness/page_tests.py has who runs them, or why nobody can.
_OF_OTHERS: Final = {"cd", "cp", "kafka-acls.sh", "kafka-topics.sh", "pre-commit", "spark-submit", "tar"}
_VARIABLE: Final = re.compile(r"[A-Z_0-9]+=")
_MAKEFILE: Final = (ROOT / "Makefile").read_text()
_PROJECT: Final = (ROOT / "pyproject.toml").read_text()


def check_command(line: str) -> None:
    """One line of a shell: each command of it, but for what it is piped into.

    Raises:
        AssertionError: the program, a file, a target, an extra or a module is not there.
        Exception: of a parser that does not take the words.
    """
    for part in line.partition(" | ")[0].strip("()").split("&&"):
        words = shlex.split(" ".join(_OWN.get(word, word) for word in part.split()))
        # Variables of the command's environment come before it.
        words = list(dropwhile(_VARIABLE.match, words))
        program = words[0].rpartition("/bin/")[2]
        assert program in PROGRAMS or program in _OF_OTHERS, f"nobody checks {program!r}: {line}"
        PROGRAMS.get(program, _others)(words[1:])


def _others(words: Sequence[str]) -> None:
    """Nothing is known of them."""


def _spark_2pc(words: Sequence[str]) -> None:
    assert callable(command_parser(words).parse_args(words).run)


def _make(words: Sequence[str]) -> None:
    targets = set(re.findall(r"^([\w-]+):(?!=)", _MAKEFILE, re.MULTILINE))
    variables = set(re.findall(r"^([A-Z]+) \?=", _MAKEFILE, re.MULTILINE))
    for word in words:
        name, assigned, value = word.partition("=")
        assert name in (variables if assigned else targets), word
        assert name != "TESTS" or (ROOT / value).exists(), word


def _pip(words: Sequence[str]) -> None:
    """Our own extras, and wheels of ours; requirements of others have the form of one."""
    assert words[0] in {"install", "wheel"}
    for word in words[1:]:
        if word.startswith((".", "spark-2pc-sink", "dist/spark_2pc_sink-")):
            extras = re.findall(r"[\w-]+", word.partition("[")[2])
            assert all(f"\n{extra} = [" in _PROJECT for extra in extras), word
        elif not word.startswith("-") and word != "dist":
            Requirement(word)


def _python(words: Sequence[str]) -> None:
    """A module that there is, a file of the project, or one that a page shows."""
    if words[0] == "-m":
        assert importlib.util.find_spec(words[1]) is not None, words
    elif not any(f"`{words[0]}`" in (ROOT / block.page).read_text() for block in blocks("python")):
        assert (ROOT / words[0]).exists(), words


def _docker(words: Sequence[str]) -> None:
    compose = yaml.safe_load((ROOT / words[words.index("-f") + 1]).read_text())
    profiles = {name for service in compose["services"].values() for name in service.get("profiles", [])}
    assert words[0] == "compose"
    assert {after for before, after in pairwise(words) if before == "--profile"} <= profiles


def _bash(words: Sequence[str]) -> None:
    assert (ROOT / words[0]).exists(), words


PROGRAMS: Final[dict[str, Callable[[Sequence[str]], None]]] = {
    "spark-2pc": _spark_2pc,
    "make": _make,
    "pip": _pip,
    "python": _python,
    "docker": _docker,
    "bash": _bash,
    "tools/containers.sh": _others,
}
