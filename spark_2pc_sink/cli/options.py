"""Options of `RecoveryOptions` on a command line: flags, kinds and help are made of their declaration."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import Any, Final, get_args, get_type_hints

from spark_2pc_sink.cli.connection_sources import environment_options, file_of
from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options import RecoveryOptions, SinkOptions
from spark_2pc_sink.options.common import READER_OPTIONS
from spark_2pc_sink.options.settings import kind_of, options_of, setting_of
from spark_2pc_sink.options.sources import SourcedOptions, add_once, sourced_value

#: Options that a file or the environment may supply if the flags are missing.
_NAMED_ELSEWHERE: Final = ("database", "transactional_id")
#: Options of the connection that have a flag with every command that reads the database.
CONNECTION_FLAGS: Final = tuple(name for name in READER_OPTIONS if name != "database_password")
#: Options whose flags have another form, or are added by another function.
_OTHER_FLAGS: Final = ("kafka", "database", "transactional_id", *CONNECTION_FLAGS)
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
        command.add_argument(_flag(name), **how)


def add_sink_options(command: argparse.ArgumentParser, options: type[SinkOptions] = SinkOptions) -> None:
    """Add a flag for each option of a sink that no other flag gives and that has a text; see `sourced_value`."""
    for item in options_of(options):
        if item.name not in _OTHER_FLAGS and "Callable" not in kind_of(item):
            command.add_argument(
                _flag(item.name),
                default=argparse.SUPPRESS,
                metavar="VALUE",
                help=setting_of(item).why.replace("%", "%%"),
            )


def given_sink_options(given: argparse.Namespace) -> dict[str, Any]:
    """The values of these flags, and of the others that name an option of a sink, without ``kafka``."""
    said = {}
    for item in options_of(SinkOptions):
        text = getattr(given, item.name, None)
        if item.name != "kafka" and text is not None:
            said[item.name] = sourced_value(item.name, text, source=_flag(item.name)) if isinstance(text, str) else text
    return said


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


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
    add_options(command, *CONNECTION_FLAGS)


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
    names = {"database", *CONNECTION_FLAGS}
    if hasattr(given, "sink_required") and getattr(given, "match", None) is None:
        names.add("transactional_id")
    return {name: value for name, value in found.options.items() if name in names}
