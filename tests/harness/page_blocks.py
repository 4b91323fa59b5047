"""Blocks on the pages for users, as tests read and run them; and the incidents of RUNBOOK.md.

A fenced block of RUNBOOK.md says by its info string which incident it is for: ``console incident=gap`` has commands
after ``$``, ``answers incident=gap`` a line ``part of the question → answer`` for each question, and ``python
incident=gap`` the options for one start of the sink. Another way to go about an incident has ``way=NAME`` after it.
"""

from __future__ import annotations

import ast
import gc
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
#: Every page that a user reads, by its path from the root.
PAGES: Final = (
    "README.md",
    "RUNBOOK.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "SUPPORT.md",
    "ARCHITECTURE.md",
    "examples/README.md",
    "docker/README.md",
    "tests/README.md",
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")),
)
#: Between back quotes in a sentence or a table.
_INLINE: Final = re.compile(r"(?<!`)`([^`]+)`(?!`)")
_BLOCK: Final = re.compile(r"^ *```([^\n]*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """One block. ``language``: the first word of its info string; '' for none."""

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


def blocks_of(page: str, language: str = "python") -> list[Block]:
    return [each for each in blocks(language) if each.page == page]


def block_of(page: str, marker: str = "", language: str = "python") -> Block:
    """The one block of a page that has this in it."""
    [found] = [each for each in blocks_of(page, language) if marker in each.text]
    return found


def in_sentences(*beginnings: str) -> list[tuple[str, str]]:
    """Code in the sentences of the pages that begins with one of these words and goes on, each with its page, once."""
    found: dict[tuple[str, str], None] = {}
    for page in PAGES:
        for code in _INLINE.findall(_BLOCK.sub("", (ROOT / page).read_text())):
            words = code.split()
            if len(words) > 1 and words[0] in beginnings:
                found[page, " ".join(words)] = None
    return list(found)


class _WithoutDots(ast.NodeTransformer):
    """``f(..., x=1)`` becomes ``f(**_given, x=1)``: other options are there, whatever they are."""

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        if any(isinstance(each, ast.Constant) and each.value is ... for each in node.args):
            node.args = []
            node.keywords.insert(0, ast.keyword(None, ast.Name("_given", ast.Load())))
        return node


def without_dots(text: str) -> ast.Module:
    """A block whose calls take the options of ``_given`` where the page has dots."""
    # A collection inside of ast.parse runs finalizers of py4j, after which CPython 3.11 refuses the tree (gh-106905).
    gc.collect()
    tree: ast.Module = _WithoutDots().visit(ast.parse(text.replace("…", "...")))
    return ast.fix_missing_locations(tree)


def run_block(block: Block, names: dict[str, Any], places: Mapping[str, str] | None = None) -> Any:
    """Run a block as its reader does.

    Args:
        names: what the reader has; gets what the block makes. ``_given`` are the options that the page leaves out.
        places: texts of the page, such as an address, and what stands there here. Each must be in it.

    Returns:
        The value of its last line, where that is an expression; else None.
    """
    text = block.text
    for shown, here in (places or {}).items():
        assert shown in text, f"{block} has no {shown!r}"
        text = text.replace(shown, here)
    tree = without_dots(text)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, str(block), "exec"), names)  # noqa: S102 - our own page
    if not isinstance(last, ast.Expr):
        return None
    return eval(compile(ast.Expression(last.value), str(block), "eval"), names)  # noqa: S307 - as above


PAGE: Final = ROOT / "RUNBOOK.md"
_INCIDENT_BLOCK: Final = re.compile(r"^```(\w+) incident=(\w+)(?: way=(\w+))?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_PLACEHOLDER: Final = re.compile(r"FIRST\.\.LAST|\b(?:ID|N|URL)\b|…")


@dataclass
class Way:
    """One way to go about an incident.

    Attributes:
        name: of the way; '' for the first one.
        commands: what is typed, in order; ``spark-2pc`` and its words, with placeholders.
        answers: a part of each question of the runbook, and the answer.
        options: of one start of the sink afterwards; None where the page names none.
    """

    incident: str
    name: str = ""
    commands: list[str] = field(default_factory=list)
    answers: list[tuple[str, str]] = field(default_factory=list)
    options: dict[str, Any] | None = None

    def words(self, command: str, values: Mapping[str, str]) -> list[str]:
        """The words of a command behind ``spark-2pc``, with the values of an incident in place of placeholders.

        Args:
            values: of ``ID``, ``URL``, ``N`` and ``FIRST..LAST``; of ``…`` all words of the connection in one text.
        """
        program, *words = shlex.split(_filled(command, values))
        assert program == "spark-2pc", command
        return words

    def stdin(self, values: Mapping[str, str]) -> str:
        """What is fed to the runbook: a line for each answer."""
        return "".join(f"{_filled(answer, values)}\n" for _, answer in self.answers)

    def sink_options(self, values: Mapping[str, str]) -> dict[str, Any]:
        return {
            name: int(values["N"]) if given == "N" else _filled(given, values) if isinstance(given, str) else given
            for name, given in (self.options or {}).items()
        }


def ways() -> list[Way]:
    found: dict[tuple[str, str], Way] = {}
    for kind, incident, name, text in _INCIDENT_BLOCK.findall(PAGE.read_text()):
        way = found.setdefault((incident, name), Way(incident, name))
        if kind == "console":
            given = [line.removeprefix("$ ") for line in text.splitlines() if line.startswith("$ ")]
            way.commands += [command for command in given if command not in way.commands]
        elif kind == "answers":
            for line in text.splitlines():
                question, _, answer = line.partition(" → ")
                way.answers.append((question, answer))
        else:
            way.options = _keywords(text)
    return list(found.values())


def _filled(text: str, values: Mapping[str, str]) -> str:
    """A text with values in place of placeholders; one without a value stays."""
    return _PLACEHOLDER.sub(lambda found: values.get(found[0], found[0]), text)


def _keywords(call: str) -> dict[str, Any]:
    """The keywords of ``DualWriteSink(…, name=value)``; a placeholder stays its own name."""
    parsed = ast.parse(call.replace("…, ", "")).body[0]
    assert isinstance(parsed, ast.Expr), call
    assert isinstance(parsed.value, ast.Call), call
    return {
        keyword.arg or "": keyword.value.id if isinstance(keyword.value, ast.Name) else ast.literal_eval(keyword.value)
        for keyword in parsed.value.keywords
    }
