"""The parser of ``spark-2pc`` and of each of its commands: options that all have, and errors that are raised."""

from __future__ import annotations

import argparse
from typing import Any, Final, NoReturn

from spark_2pc_sink.cli.logs import add_log_options

PROGRAM: Final = "spark-2pc"


class CommandLineError(Exception):
    """Words that are not a command, or that the command does not accept. `usage` lists those that it accepts."""

    def __init__(self, message: str, *, command: str | None, usage: str) -> None:
        super().__init__(message, command, usage)
        self.message = message
        self.command = command
        self.usage = usage

    def __str__(self) -> str:
        return f"{self.message}\n{self.usage}".rstrip()


class CommandParser(argparse.ArgumentParser):
    """Gives each command ``--json`` and the log options, which may also precede its name."""

    def __init__(self, **named: Any) -> None:
        super().__init__(**named)
        # A default would override a value given before the command's name.
        self.add_argument(
            "--json",
            action="store_true",
            default=argparse.SUPPRESS,
            help="print one JSON object, of the form that spark-2pc --json-schema prints",
        )
        add_log_options(self)
        self.set_defaults(command=self.command)

    @property
    def command(self) -> str | None:
        """The command's words, without the program's name; None for the program itself."""
        return self.prog.removeprefix(PROGRAM).strip() or None

    def error(self, message: str) -> NoReturn:
        """Raise what argparse would print and exit for.

        Raises:
            CommandLineError: always.
        """
        raise CommandLineError(message, command=self.command, usage=self.format_usage())
