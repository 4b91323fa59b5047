"""The standard streams of a command: closed, full, of another encoding, or a pipe whose reader has gone."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import Final

from spark_2pc_sink.cli.exits import EXIT_FAILED

_MODES: Final = {"stdin": "r", "stdout": "w", "stderr": "w"}


def make_usable() -> None:
    """Replace a stream that was closed before the start with the null device; allow any character in any encoding.

    Otherwise the next connection would get the free descriptor, and output would be written to it.
    """
    for name, mode in _MODES.items():
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - for as long as the process
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def print_out(text: str, code: int) -> int:
    """Print a text on standard output, all of it, and return the exit code.

    A reader that has closed the pipe, as ``head`` does, is not a failure.

    Args:
        text: whole lines.
        code: exit code of the command.
    """
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        leave_output()
    except OSError as error:
        leave_output()
        sys.stderr.write(f"spark-2pc: what was found could not be printed: {error}\n")
        return EXIT_FAILED
    return code


def leave_output() -> None:
    """Discard pending output to standard output, which the interpreter writes when it exits."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
