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
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from importlib import import_module
from typing import Final

from spark_2pc_sink import __version__, errors
from spark_2pc_sink.cli import options, output
from spark_2pc_sink.cli.options import CommandParser
from spark_2pc_sink.cli.output import CommandResult
from spark_2pc_sink.extras import MissingExtraError

#: The module of each command. Only the requested one is loaded: the coordinator starts in a fraction of a second, and
#: needs neither SQLAlchemy nor Arrow.
_HOMES: Final = {
    "check": "check",
    "status": "sinks",
    "recover": "sinks",
    "verify": "verify",
    "history": "database",
    "state": "database",
    "transactions": "transactions",
    "coordinator": "serving",
    "exporter": "serving",
    "dashboard": "serving",
    "runbook": "runbook",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Help, version and schema end it by SystemExit."""
    output.make_usable()
    words = sys.argv[1:] if arguments is None else list(arguments)
    as_json, command = "--json" in words, None
    try:
        given = command_parser(words).parse_args(words)
        command = given.command
        # Other output of a command must not get into the JSON.
        with redirect_stdout(sys.stderr) if as_json else nullcontext(), output.logging_to_stderr(given):
            result = _run(given)
    except SystemExit as ended:
        raise SystemExit(output.print_out("", int(ended.code or output.EXIT_SETTLED))) from None
    except options.CommandLineError as error:
        command, result = error.command, CommandResult(exit_code=output.EXIT_USAGE, error=error)
    except Exception as error:
        # A bug: people get the traceback, and programs must still get an answer.
        if as_json:
            failed = CommandResult(exit_code=output.EXIT_FAILED, error=error)
            output.write_result(failed, command=command, as_json=True)
        raise
    return output.write_result(result, command=command, as_json=as_json)


def command_parser(words: Sequence[str]) -> CommandParser:
    """A parser for the command in ``words``, or for all of them if there is none, for help and errors."""
    parser = CommandParser(prog=options.PROGRAM, description="Operate exactly-once writes to Kafka and PostgreSQL.")
    parser.add_argument("--version", action="version", version=f"spark-2pc-sink {__version__}")
    about = "print the JSON Schema of the output of --json"
    parser.add_argument("--json-schema", action=_PrintSchema, nargs=0, default=argparse.SUPPRESS, help=about)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    home = _HOMES.get(words[0]) if words else None
    for name in dict.fromkeys(_HOMES.values()) if home is None else (home,):
        import_module(f"{__name__}.{name}").add_commands(commands)
    return parser


class _PrintSchema(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        parser.exit(output.print_out(output.json_schema(), output.EXIT_SETTLED))


def _run(given: argparse.Namespace) -> CommandResult:
    as_given: AbstractContextManager[None] = nullcontext()
    try:
        options.warn_of_secrets(given)
        words = options.connection_as_given(given)
        if words is not None:
            # Commands that are printed for people name both sides as this command line did. It needs SQLAlchemy, see
            # _HOMES.
            from spark_2pc_sink.recovery.report import NamedConnection, flags_as_given  # noqa: PLC0415

            as_given = flags_as_given(NamedConnection(words, database="database" in options.given_options(given)))
        with as_given, options.file_of(given).named_in_errors():
            result: CommandResult = given.run(given)
    except errors.ConfigurationError as error:
        return CommandResult(exit_code=output.EXIT_USAGE, error=error)
    except (errors.AbortRefusedError, errors.HaltError, errors.InDoubtError, errors.TakeOverRefusedError) as error:
        return CommandResult(exit_code=output.EXIT_IN_DOUBT, error=error)
    except (errors.DualWriteError, MissingExtraError, OSError) as error:
        return CommandResult(exit_code=output.EXIT_FAILED, error=error)
    except KeyboardInterrupt:
        return CommandResult(exit_code=output.EXIT_INTERRUPTED, notes=("interrupted",))
    return result
