"""The parser of ``spark-2pc`` and of each of its commands: errors that are raised, and the log on standard error."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from functools import partial
from typing import Any, Final, NoReturn

#: From the quietest to the most verbose.
LEVELS: Final = ("ERROR", "WARNING", "INFO", "DEBUG")
_TEXT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class JsonFormatter(logging.Formatter):
    """One object per record: ``time``, ``level``, ``logger``, ``message``, ``transactional_id`` and ``exception``."""

    def __init__(self, transactional_id: str | None) -> None:
        super().__init__()
        self._transactional_id = transactional_id

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "transactional_id": getattr(record, "transactional_id", self._transactional_id),
            "exception": None if record.exc_info is None else self.formatException(record.exc_info),
        }
        return json.dumps(line)


@contextmanager
def logging_to_stderr(given: argparse.Namespace) -> Iterator[None]:
    handler = logging.StreamHandler(sys.stderr)
    as_json = getattr(given, "log_json", False)
    sink = getattr(given, "transactional_id", None)
    handler.setFormatter(JsonFormatter(sink) if as_json else logging.Formatter(_TEXT))
    handler.setLevel(getattr(given, "log_level", "WARNING"))
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(handler.level)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(level)


# --- the parser ---------------------------------------------------------------------------------------------------

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
        add = partial(self.add_argument, default=argparse.SUPPRESS)
        add("--json", action="store_true", help="print one JSON object, as described by spark-2pc --json-schema")
        add("--log-level", choices=LEVELS, help="minimum level of log lines (default: WARNING)")
        add("--log-json", action="store_true", help="log one JSON object per line, with the transactional id")
        self.set_defaults(command=self.command)

    @property
    def command(self) -> str | None:
        """The command's words, without the program's name; None for the program itself."""
        return self.prog.removeprefix(PROGRAM).strip() or None

    def error(self, message: str) -> NoReturn:
        """Raise what argparse would print and exit for."""
        raise CommandLineError(message, command=self.command, usage=self.format_usage())
