"""``spark-2pc``: commands for sinks in doubt, for the state tables, and for a cluster's transactions.

Exit codes: 0 when nothing is in doubt (any more), 3 when something is and was not settled, 4 when the state table has
no row of the sink, 2 for a wrong command line or option, 1 when a side could not be reached or refused. For
``transactions``, 3 means that ``find-hanging`` found a hanging transaction, or that ``abort`` refused because the
coordinator knows the transaction. For ``state``, 3 means that a table is missing, of another version, or not granted.
For ``verify``, 3 means that both sides differ, and 5 that the comparison was inconclusive. 130: Ctrl-C ended the
command.

With ``--json`` every command prints one JSON object with every exit code, see `spark_2pc_sink.cli.output`.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from spark_2pc_sink import __version__
from spark_2pc_sink.cli.command_parser import PROGRAM, CommandLineError, CommandParser, logging_to_stderr
from spark_2pc_sink.cli.exits import EXIT_FAILED, EXIT_IN_DOUBT, EXIT_INTERRUPTED, EXIT_SETTLED, EXIT_USAGE
from spark_2pc_sink.cli.options import connection_as_given, file_of, given_options, warn_of_secrets
from spark_2pc_sink.cli.output import CommandResult, json_schema, make_usable, print_out, write_result
from spark_2pc_sink.errors import (
    AbortRefusedError,
    ConfigurationError,
    DualWriteError,
    HaltError,
    InDoubtError,
    TakeOverRefusedError,
)
from spark_2pc_sink.extras import MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Sequence

#: The module of each command. Only the requested one is loaded: the coordinator starts in a fraction of a second, and
#: needs neither SQLAlchemy nor Arrow.
_HOMES: Final = {
    "check": "check",
    "status": "sinks",
    "recover": "sinks",
    "verify": "verify",
    "history": "history",
    "state": "state",
    "transactions": "transactions",
    "coordinator": "coordinator",
    "exporter": "serving",
    "dashboard": "serving",
    "runbook": "runbook",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command."""
    make_usable()
    words = sys.argv[1:] if arguments is None else list(arguments)
    try:
        return _main(words)
    except SystemExit as ended:
        # Help, version or schema were printed.
        raise SystemExit(print_out("", int(ended.code or EXIT_SETTLED))) from None


def _main(words: Sequence[str]) -> int:
    """Run the command; help, version and schema end it by SystemExit."""
    as_json = "--json" in words
    command = None
    try:
        given = command_parser(words).parse_args(words)
        command = given.command
        # Other output of a command must not get into the JSON.
        with redirect_stdout(sys.stderr) if as_json else nullcontext(), logging_to_stderr(given):
            result = _run(given)
    except CommandLineError as error:
        return write_result(CommandResult(exit_code=EXIT_USAGE, error=error), command=error.command, as_json=as_json)
    except Exception as error:
        # A bug: people get the traceback, and programs must still get an answer.
        if as_json:
            write_result(CommandResult(exit_code=EXIT_FAILED, error=error), command=command, as_json=True)
        raise
    return write_result(result, command=command, as_json=as_json)


def command_parser(words: Sequence[str]) -> CommandParser:
    """A parser for the command in ``words``, or for all of them if there is none, for help and errors."""
    parser = CommandParser(prog=PROGRAM, description="Operate exactly-once writes to Kafka and PostgreSQL.")
    parser.add_argument("--version", action="version", version=f"spark-2pc-sink {__version__}")
    parser.add_argument("--json-schema", action=_PrintSchema, help="print the JSON Schema of the output of --json")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    home = _HOMES.get(words[0]) if words else None
    for name in dict.fromkeys(_HOMES.values()) if home is None else (home,):
        import_module(f"{__name__}.{name}").add_commands(commands)
    return parser


class _PrintSchema(argparse.Action):
    def __init__(self, option_strings: Sequence[str], dest: str, **named: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, **named)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        parser.exit(print_out(json_schema(), EXIT_SETTLED))


def _run(given: argparse.Namespace) -> CommandResult:
    try:
        with _commands_as_given(given), file_of(given).named_in_errors():
            result: CommandResult = given.run(given)
    except ConfigurationError as error:
        return CommandResult(exit_code=EXIT_USAGE, error=error)
    except (AbortRefusedError, HaltError, InDoubtError, TakeOverRefusedError) as error:
        return CommandResult(exit_code=EXIT_IN_DOUBT, error=error)
    except (DualWriteError, MissingExtraError, OSError) as error:
        return CommandResult(exit_code=EXIT_FAILED, error=error)
    except KeyboardInterrupt:
        return CommandResult(exit_code=EXIT_INTERRUPTED, notes=("interrupted",))
    return result


def _commands_as_given(given: argparse.Namespace) -> AbstractContextManager[None]:
    """Let commands that are printed for people name both sides as this command line did."""
    warn_of_secrets(given)
    words = connection_as_given(given)
    if words is None:
        return nullcontext()
    # It needs SQLAlchemy, see _HOMES.
    from spark_2pc_sink.recovery.report import NamedConnection, flags_as_given  # noqa: PLC0415

    return flags_as_given(NamedConnection(words, database="database" in given_options(given)))
