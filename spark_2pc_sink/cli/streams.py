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
    """Give a stream that was closed before the start a file without content; say any character of any encoding.

    A descriptor that stays free would be that of the next connection, and what is printed would go there.
    """
    for name, mode in _MODES.items():
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - for as long as the process
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def print_out(text: str, code: int) -> int:
    """Print a text on standard output, all of it, and return the exit code.

    A reader that has gone, as ``head`` does, has seen what it wanted: that is no failure.

    Args:
        text: whole lines.
        code: of the command.
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
    """Let what is still to be written to standard output go nowhere: the interpreter writes it at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
