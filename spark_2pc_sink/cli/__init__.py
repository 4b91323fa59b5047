"""``spark-2pc``: commands for sinks in doubt, for the state tables, and for a cluster's transactions.

Exit codes: 0 when nothing is in doubt (any more), 3 when something is and was not settled, 4 when the state table has
no row of the sink, 2 for a wrong command line or option, 1 when a side could not be reached or refused. For
``transactions``, 3 means that ``find-hanging`` found a hanging transaction, or that ``abort`` refused because the
coordinator knows the transaction. For ``state``, 3 means that a table is missing, of another version, or not granted.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Final

from spark_2pc_sink.cli.exits import EXIT_FAILED, EXIT_IN_DOUBT, EXIT_USAGE
from spark_2pc_sink.errors import (
    AbortRefusedError,
    ConfigurationError,
    DualWriteError,
    HaltError,
    InDoubtError,
    TakeOverRefusedError,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

#: The module of each command. Only that of the command at hand is loaded: the coordinator is ready in a fraction of a
#: second, and needs neither SQLAlchemy nor Arrow.
_HOMES: Final = {
    "status": "sinks",
    "recover": "sinks",
    "state": "state",
    "transactions": "transactions",
    "coordinator": "coordinator",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: the words after the program's name; those of this process by default.

    Returns:
        The exit code, see the module's docstring.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    given = _parser(words).parse_args(words)
    try:
        code: int = given.run(given)
    except ConfigurationError as error:
        return _fail(error, EXIT_USAGE)
    except (AbortRefusedError, HaltError, InDoubtError, TakeOverRefusedError) as error:
        return _fail(error, EXIT_IN_DOUBT)
    except DualWriteError as error:
        return _fail(error, EXIT_FAILED)
    return code


def _parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """A parser that knows the command in ``words``, or all of them where there is none, for help and errors."""
    parser = argparse.ArgumentParser(
        prog="spark-2pc", description="Look after exactly-once writes to Kafka and PostgreSQL."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    home = _HOMES.get(words[0]) if words else None
    for name in dict.fromkeys(_HOMES.values()) if home is None else (home,):
        import_module(f"{__name__}.{name}").add_commands(commands)
    return parser


def _fail(error: DualWriteError, code: int) -> int:
    sys.stderr.write(f"spark-2pc: {error}\n")
    return code
