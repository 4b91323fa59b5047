"""Options of `RecoveryOptions` on a command line: flags, kinds and help are made of their declaration."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import Any, Final, get_args, get_type_hints

from spark_2pc_sink.options import RecoveryOptions
from spark_2pc_sink.options.settings import setting_of

#: The tables in the database, for every command that looks into them.
TABLES: Final = ("state_schema", "state_table", "history_table", "history_batches")
_DECLARED: Final = {item.name: item for item in fields(RecoveryOptions)}


def add_options(command: argparse.ArgumentParser, *names: str) -> None:
    """Add the flag of each option; one that is not given has the default of its declaration."""
    hints = get_type_hints(RecoveryOptions)
    for name in names:
        item, about = _DECLARED[name], setting_of(_DECLARED[name])
        parts = [choice for part in get_args(hints[name]) for choice in get_args(part)]
        default = "" if item.default in (None, False) else f" (default: {item.default})"
        how: dict[str, Any] = {"help": f"{about.why}{default}".replace("%", "%%"), "default": argparse.SUPPRESS}
        if item.default is False:
            how["action"] = "store_true"
        elif parts:
            how["choices"] = parts
        else:
            how |= {"type": int, "metavar": "N"} if "int" in str(item.type) else {"metavar": "TEXT"}
        command.add_argument(f"--{name.replace('_', '-')}", **how)


def add_database(command: argparse.ArgumentParser) -> None:
    """Add the database and its tables."""
    command.add_argument("--database", required=True, metavar="URL", help="SQLAlchemy URL of the database")
    add_options(command, *TABLES)


def given_options(given: argparse.Namespace) -> dict[str, Any]:
    """What was given, as keywords of `recover`."""
    return {name: value for name, value in vars(given).items() if name in _DECLARED and name != "kafka"}
