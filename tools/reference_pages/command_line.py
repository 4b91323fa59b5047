"""The page of commands and their options."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Final

from spark_2pc_sink.cli import command_parser
from tools.reference_pages.markdown import code, table

_PAGE: Final = """\
# Commands and their options

`make reference-pages` makes this page of the parsers of `spark-2pc`. A test compares it. `spark-2pc COMMAND --help`
prints the same. [The command line](../command-line.md) says where connections come from, and has exit codes, JSON and
logs.

## Options of every command

{every}

{commands}
"""
#: Of every command, and so not repeated.
_COMMON: Final = ("--help", "--json", "--log-level", "--log-json")


def command_line_page() -> str:
    """The page as Markdown."""
    parser = command_parser([])
    every = [action for action in parser._actions if action.option_strings]  # noqa: SLF001 - argparse has no other way
    return _PAGE.format(every=_options(every), commands="\n\n".join(_command(each) for each in _commands(parser)))


def _commands(parser: argparse.ArgumentParser) -> Iterator[tuple[argparse.ArgumentParser, str]]:
    """Each command that has none below it, with its help."""
    for action in parser._actions:  # noqa: SLF001 - as above
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - as above
            for choice in action._choices_actions:  # noqa: SLF001 - as above
                child = action.choices[choice.dest.partition(" ")[0]]
                below = list(_commands(child))
                yield from below or [(child, str(choice.help))]


def _command(command: tuple[argparse.ArgumentParser, str]) -> str:
    parser, about = command
    own = [action for action in parser._actions if not set(action.option_strings) & set(_COMMON)]  # noqa: SLF001
    return f"## `{parser.prog}`\n\n{about[0].upper()}{about[1:]}.\n\n{_options(own)}"


def _options(actions: list[argparse.Action]) -> str:
    return table(("option", "meaning"), map(_row, actions))


def _row(action: argparse.Action) -> tuple[str, ...]:
    value = ""
    if action.nargs != 0:
        value = "|".join(map(str, action.choices)) if action.choices else str(action.metavar or action.dest.upper())
    names = ", ".join(code(f"{name} {value}".strip()) for name in action.option_strings) or code(value)
    return names + (", required" if action.required else ""), str(action.help or "") % vars(action)
