"""docs/command-line.md says what the command line does: tables are compared with the parsers, and examples read."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

from spark_2pc_sink.cli import command_parser, exits
from spark_2pc_sink.cli.command_parser import CommandParser
from spark_2pc_sink.cli.options import ENVIRONMENT
from tests.harness.json_contract import read_output
from tests.unit.cli.test_remedies import PLACEHOLDERS

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "command-line.md").read_text()


def table(header: str) -> dict[str, list[str]]:
    """The rows below a header of the page, by their first cell."""
    lines = PAGE.partition(f"{header}\n")[2].splitlines()[1:]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in lines[: next((at for at, line in enumerate(lines) if not line.startswith("|")), len(lines))]
    ]
    return {row[0]: row[1:] for row in rows}


def fenced(language: str) -> str:
    """The only code block of a language."""
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    return str(found)


def documented(parser: argparse.ArgumentParser) -> Iterator[tuple[CommandParser, str]]:
    """Each command that has none below it, with its help."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for choice in action._choices_actions:
                child = action.choices[choice.dest.partition(" ")[0]]
                below = list(documented(child))
                yield from below or [(child, str(choice.help))]


def needs(parser: CommandParser) -> str:
    """Which sides the command takes."""
    flags = {flag for action in parser._actions for flag in action.option_strings}
    database = "--database" in flags
    may = database and not parser.get_default("database_required")
    kafka = "Kafka" if "--bootstrap-server" in flags else ""
    return ", ".join(side for side in (kafka, ("database (may)" if may else "database") if database else "") if side)


def test_the_commands_are_those_of_the_parsers() -> None:
    """With what they do, and which connections they take."""
    expected = {
        f"`{parser.command}`": [about, needs(parser) or "neither"] for parser, about in documented(command_parser([]))
    }
    assert table("| command | what it does | connects to |") == expected


def test_the_exit_codes_are_those_of_the_program() -> None:
    named = {f"`{value}`" for name, value in vars(exits).items() if name.startswith("EXIT_")}
    assert set(table("| exit code | meaning |")) == named


def test_the_variables_and_what_a_person_must_fill_in_are_all_there() -> None:
    assert {name: flag for name, (flag,) in table("| variable | stands for |").items()} == {
        f"`{name}`": f"`{flag}`" for name, flag in ENVIRONMENT.items()
    }
    assert set(table("| word | stands for |")) == {f"`{word}`" for word in PLACEHOLDERS}


def test_the_json_example_is_of_the_documented_form() -> None:
    example = read_output(fenced("json"))
    assert (example["exit_code"], example["error"]["type"]) == (2, "ConfigurationError")
