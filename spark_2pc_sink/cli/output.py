"""The output of every command: exit code, text for people or with ``--json`` one JSON object, and the log.

Commands return a `CommandResult`; only this module writes to standard output. The object's schema is made from
``schema.json`` in this directory, with an entry for each command under ``$defs``.
"""

from __future__ import annotations

import argparse
import io
import json
import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from enum import Enum
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from spark_2pc_sink.choices import HaltCause

# The exit codes; what they mean is in the docstring of the package.
EXIT_SETTLED: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_IN_DOUBT: Final = 3
EXIT_NOT_KNOWN: Final = 4
#: For `verify`: no difference was found, but too much could not be compared.
EXIT_INCONCLUSIVE: Final = 5
#: What a shell reports for a program that Ctrl-C ended: 128 plus the number of SIGINT.
EXIT_INTERRUPTED: Final = 130


def make_usable() -> None:
    """Replace a stream that was closed before the start with the null device; allow any character in any encoding."""
    # Otherwise the next connection would get the free descriptor, and output would be written to it.
    for name, mode in {"stdin": "r", "stdout": "w", "stderr": "w"}.items():
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - for as long as the process
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def print_out(text: str, code: int) -> int:
    """Print a text on standard output, all of it, and return the exit code."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        # Pending output is discarded: the interpreter would write it when it exits.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        # A reader that has closed the pipe, as ``head`` does, is not a failure.
        if not isinstance(error, BrokenPipeError):
            sys.stderr.write(f"spark-2pc: the result could not be printed: {error}\n")
            return EXIT_FAILED
    return code


#: Name and version of the schema. It grows if a field is removed or changes its meaning; new ones may be added.
FORMAT: Final = "spark-2pc/1"


@dataclass(frozen=True, kw_only=True)
class CommandResult:
    exit_code: int = EXIT_SETTLED
    fields: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""
    notes: tuple[str, ...] = ()
    remedies: tuple[str, ...] = ()
    error: BaseException | None = None


def write_result(result: CommandResult, *, command: str | None, as_json: bool) -> int:
    text = json.dumps(envelope(result, command), indent=2) + "\n" if as_json else result.text
    code = print_out(text, result.exit_code)
    for note in result.notes:
        sys.stderr.write(f"spark-2pc: {note}\n")
    if result.remedies:
        sys.stderr.write("".join(["What to do:\n", *(f"  {remedy}\n" for remedy in result.remedies)]))
    if result.error is not None:
        sys.stderr.write(f"spark-2pc: {result.error}\n")
    return code


def envelope(result: CommandResult, command: str | None) -> dict[str, Any]:
    """The object that ``--json`` prints: four fields that all commands share, and this command's own."""
    error = result.error
    told: dict[str, Any] | None = None
    if error is not None:
        cause, remedy = getattr(error, "cause", None), getattr(error, "remedy", None)
        told = {
            "type": type(error).__name__,
            "message": str(error),
            "cause": cause.value if isinstance(cause, Enum) else None,
            "remedies": list(getattr(error, "remedies", [remedy] if remedy else [])),
        }
    return {"format": FORMAT, "command": command, "exit_code": result.exit_code, "error": told, **result.fields}


def as_table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table in the format of Kafka's tool: padded columns, each followed by a tab; None for missing values."""
    cells = [list(headers), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(line[index]) for line in cells) for index in range(len(headers))]
    return "".join(
        "\t".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() + "\n" for line in cells
    )


def json_schema() -> str:
    """The schema in ``schema.json``, with what follows from it: the entry of each command holds for its output."""
    text = files(__package__).joinpath("schema.json").read_text(encoding="utf-8")
    schema = json.loads(text, object_hook=_with_required)
    parts = schema["$defs"]
    parts["cause"]["enum"] = [None, *(cause.value for cause in HaltCause)]
    for command in filter(None, schema["properties"]["command"]["enum"]):
        name = command.replace(" ", "_")
        if fields := list(parts[name].get("properties", ())):
            parts[name] |= {"if": {"$ref": "#/$defs/ended_without_error"}, "then": {"required": fields}}
        its_own = {"properties": {"command": {"const": command}}}
        schema["allOf"].append({"if": its_own, "then": {"$ref": f"#/$defs/{name}"}})
    return json.dumps(schema, indent=2) + "\n"


def _with_required(part: dict[str, Any]) -> dict[str, Any]:
    """An object has all the fields that are described, if it does not say which."""
    if part.get("type") == "object" and "properties" in part:
        part.setdefault("required", list(part["properties"]))
    return part


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
    as_json, sink = getattr(given, "log_json", False), getattr(given, "transactional_id", None)
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
