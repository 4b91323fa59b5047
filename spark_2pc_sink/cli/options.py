"""Options of `RecoveryOptions` on a command line: flags, kinds and help are made of their declaration."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import Any, Final, get_args, get_type_hints

from spark_2pc_sink.cli.connection_sources import TABLES, add_once, environment_options, file_of
from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options import RecoveryOptions
from spark_2pc_sink.options.settings import setting_of

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


def add_database(command: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Add the database and its tables, and the file that may name them with Kafka's properties.

    Args:
        command: takes the flags.
        required: False where the command does without a database.
    """
    command.add_argument(
        "--connection",
        metavar="FILE",
        help="a Java properties file with database=URL, names of the state tables, and Kafka client properties",
    )
    command.add_argument(
        "--database", metavar="URL", help="SQLAlchemy URL of the database (default: SPARK_2PC_DATABASE)"
    )
    command.set_defaults(database_required=required)
    add_options(command, *TABLES)


def given_options(given: argparse.Namespace) -> dict[str, Any]:
    """What flags, the connection file and the environment say, as keywords of `recover`.

    Raises:
        ConfigurationError: two of the command line contradict each other, a file cannot be read, or nothing names the
            database and the command needs one.
    """
    said = {name: value for name, value in vars(given).items() if name in _DECLARED and name != "kafka"}
    if not hasattr(given, "database_required"):
        return said
    if said["database"] is None:
        del said["database"]
    file = file_of(given)
    if file is not None:
        add_once(said, file.options.items(), source="--connection")
    said = {**environment_options(), **said}
    if given.database_required and "database" not in said:
        raise ConfigurationError(
            option="--database",
            value=None,
            rule="it says where the state table is, and neither --connection nor SPARK_2PC_DATABASE does",
            remedy="pass --database postgresql://user@host/database",
        )
    return said
