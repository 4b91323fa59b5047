"""RUNBOOK.md as tests read it: for each incident the commands, the answers to their questions, and the job's options.

A fenced block says by its info string which incident it is for: ``console incident=gap`` has commands behind ``$``,
``answers incident=gap`` a line ``part of the question → answer`` for each question, and ``python incident=gap`` the
options for one start of the sink. Another way to go about an incident has ``way=NAME`` behind it.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

PAGE: Final = Path(__file__).resolve().parents[2] / "RUNBOOK.md"
_BLOCK: Final = re.compile(r"^```(\w+) incident=(\w+)(?: way=(\w+))?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_PLACEHOLDER: Final = re.compile(r"FIRST\.\.LAST|\b(?:ID|N|URL)\b|…")


@dataclass
class Way:
    """One way to go about an incident.

    Attributes:
        incident: its name.
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
            command: one of ``commands``.
            values: of ``ID``, ``URL``, ``N`` and ``FIRST..LAST``; of ``…`` all words of the connection in one text.
        """
        program, *words = shlex.split(_filled(command, values))
        assert program == "spark-2pc", command
        return words

    def stdin(self, values: Mapping[str, str]) -> str:
        """What is fed to the runbook: a line for each answer."""
        return "".join(f"{_filled(answer, values)}\n" for _, answer in self.answers)

    def sink_options(self, values: Mapping[str, str]) -> dict[str, Any]:
        """The options of one start of the sink, with the values of an incident."""
        return {
            name: int(values["N"]) if given == "N" else _filled(given, values) if isinstance(given, str) else given
            for name, given in (self.options or {}).items()
        }


def ways() -> list[Way]:
    """Every way of RUNBOOK.md, in its order."""
    found: dict[tuple[str, str], Way] = {}
    for kind, incident, name, text in _BLOCK.findall(PAGE.read_text()):
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
