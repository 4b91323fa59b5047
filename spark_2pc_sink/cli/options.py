"""Options of `RecoveryOptions` on a command line: flags, kinds and help are made of their declaration."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import Any, Final, get_args, get_type_hints

from spark_2pc_sink.cli.connection_sources import TABLES, environment_options, file_of
from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options import RecoveryOptions
from spark_2pc_sink.options.settings import setting_of
from spark_2pc_sink.options.sourced_options import SourcedOptions, add_once

#: Options that a file or the environment may supply if the flags are missing.
_NAMED_ELSEWHERE: Final = ("database", "transactional_id")
_DECLARED: Final = {item.name: item for item in fields(RecoveryOptions)}


def add_options(command: argparse.ArgumentParser, *names: str) -> None:
    """Add the flag of each option; its default is that of the declaration."""
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


def add_database(command: argparse.ArgumentParser, *, required: bool = True, positional: bool = False) -> None:
    """Add the database and its tables, and the file that may name them and the Kafka properties.

    Args:
        command: receives the flags.
        required: False if the command can run without a database.
        positional: the file may also be given without its flag.
    """
    file = "the TOML file of the sink, as DualWriteSink.from_toml reads it (default: SPARK_2PC_CONFIG)"
    command.add_argument("--config", dest="sink_file", metavar="FILE", help=file)
    if positional:
        command.add_argument(
            "sink_file", nargs="?", default=argparse.SUPPRESS, metavar="FILE", help="the same as --config FILE"
        )
    command.add_argument(
        "--database", metavar="URL", help="SQLAlchemy URL of the database (default: SPARK_2PC_DATABASE)"
    )
    command.set_defaults(database_required=required)
    add_options(command, "password_command", "require_tls", *TABLES)


def add_sink(command: argparse._ActionsContainer, *, about: str, required: bool = False) -> None:
    """Add the flag that names the sink; the sink's file and the environment may name it too.

    Args:
        command: receives the flag.
        about: its help.
        required: whether the command needs a sink.
    """
    command.add_argument("--transactional-id", metavar="ID", help=about)
    command.set_defaults(sink_required=required)


def given_options(given: argparse.Namespace) -> dict[str, Any]:
    """The keywords of `recover` from flags, the sink's file and the environment.

    Raises:
        ConfigurationError: two sources on the command line contradict each other, a file cannot be read, or the command
            needs a database and none is given.
    """
    said = {name: value for name, value in vars(given).items() if name in _DECLARED and name != "kafka"}
    if not hasattr(given, "database_required"):
        return said
    said = {name: value for name, value in said.items() if value is not None or name not in _NAMED_ELSEWHERE}
    # A flag may name another sink of the same database than the file.
    by_flag = {name: said.pop(name) for name in ("transactional_id",) if name in said}
    from_file = _known_here(file_of(given), given)
    add_once(said, from_file.items(), source="--config")
    said = {**_known_here(environment_options(), given), **said, **by_flag}
    if given.database_required and "database" not in said:
        raise ConfigurationError(
            option="--database",
            value=None,
            rule="it says where the state table is, and neither --config nor SPARK_2PC_DATABASE does",
            remedy="pass --database postgresql://user@host/database",
        )
    if getattr(given, "sink_required", False) and "transactional_id" not in said:
        rule, remedy = "it names the sink, and neither --config nor the environment does", "pass --transactional-id ID"
        raise ConfigurationError(option="--transactional-id", value=None, rule=rule, remedy=remedy)
    return said


def _known_here(found: SourcedOptions, given: argparse.Namespace) -> dict[str, Any]:
    """The sink options that the command accepts. Options for one start only are never read from a file."""
    names = {"database", "password_command", "require_tls", *TABLES}
    if hasattr(given, "sink_required") and getattr(given, "match", None) is None:
        names.add("transactional_id")
    return {name: value for name, value in found.options.items() if name in names}
