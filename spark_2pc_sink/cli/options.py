"""The parser of commands; their flags, and where else values come from: options of both sides, by their declarations.

The command line is flags and the files that they name; values given twice must be equal. The environment supplies what
the command line omits. Commands printed for people name the same sources, and contain no secrets.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

from spark_2pc_sink.choices.choice import flags
from spark_2pc_sink.cli.output import LEVELS
from spark_2pc_sink.options import RecoveryOptions, SinkOptions, StatusOptions, sources
from spark_2pc_sink.options.common import READER_FLAGS
from spark_2pc_sink.options.database import has_secret, without_secrets
from spark_2pc_sink.options.kafka import FIELD_OF
from spark_2pc_sink.options.settings import choices_of, kind_of, options_of, refused, setting_of

_log = logging.getLogger(__name__)

PROGRAM: Final = "spark-2pc"


class CommandLineError(Exception):
    """Words that are not a command, or that it does not accept; the message ends with those that it does."""

    def __init__(self, message: str, *, command: str | None) -> None:
        super().__init__(message)
        self.command = command


class CommandParser(argparse.ArgumentParser):
    """Gives each command ``--json`` and the log options, which may also precede its name."""

    def __init__(self, **named: Any) -> None:
        super().__init__(**named)
        # A default would override a value given before the command's name.
        add = partial(self.add_argument, default=argparse.SUPPRESS)
        add("--json", action="store_true", help="print one JSON object, as described by spark-2pc --json-schema")
        add("--log-level", choices=LEVELS, help="minimum level of log lines (default: WARNING)")
        add("--log-json", action="store_true", help="log one JSON object per line, with the transactional id")
        self.set_defaults(command=self.command)

    @property
    def command(self) -> str | None:
        """The command's words, without the program's name; None for the program itself."""
        return self.prog.removeprefix(PROGRAM).strip() or None

    def error(self, message: str) -> NoReturn:
        """Raise what argparse would print and exit for."""
        raise CommandLineError(f"{message}\n{self.format_usage()}".rstrip(), command=self.command)


BOOTSTRAP: Final = "bootstrap.servers"
BOOTSTRAP_NAMES: Final = frozenset(setting_of(FIELD_OF[BOOTSTRAP]).properties)
#: Distinguishes the flags of Kafka's connection before the command's name from those after it.
OUTER: Final = "outer_"
_PLACES: Final = (OUTER, "")
_OF_KAFKA: Final = ("bootstrap_server", "command_config")
_SECRETS: Final = {"sasl.jaas.config", *(name for name, item in FIELD_OF.items() if setting_of(item).secret)}


def file_of(given: argparse.Namespace) -> sources.SourcedOptions:
    """The options in the file of ``--config``, read once, as it may be a pipe; empty if no file was given."""
    if not hasattr(given, "options_of_file"):
        path = getattr(given, "sink_file", None)
        given.options_of_file = sources.SourcedOptions() if path is None else sources.read_toml_file(path)
    found: sources.SourcedOptions = given.options_of_file
    return found


def environment_options() -> sources.SourcedOptions:
    """The options in the environment. Other variables are ignored: the job's own start refuses them."""
    return sources.read_environment(os.environ, strict=False)


def warn_of_secrets(given: argparse.Namespace) -> None:
    """Log a warning for each secret on the command line, where every user of the machine can read it."""
    url = getattr(given, "database", None)
    if url is not None and has_secret(url):
        _log.warning(
            "--database contains a password, which ps shows: put it into SPARK_2PC_DATABASE, PGPASSWORD or ~/.pgpass, "
            "or pass --password-command"
        )
    for text in _kafka_flags(given):
        name = text.partition("=")[0]
        if name in _SECRETS:
            _log.warning("--kafka %s=… is a secret, which ps shows: put it into a file for --command-config", name)


def connection_as_given(given: argparse.Namespace) -> str | None:
    """The flags that name both sides, as given and without secrets; None if the command has none."""
    # Values of the environment are omitted: the environment of the printed command has them too.
    if not hasattr(given, "database"):
        return None
    properties = _kafka_flags(given)
    public = [text for text in properties if text.partition("=")[0] not in _SECRETS]
    named = [
        ("config", given.sink_file),
        *((name, getattr(given, f"{prefix}{name}", None)) for name in _OF_KAFKA for prefix in _PLACES),
        *(("kafka", text) for text in public),
        ("database", None if given.database is None else without_secrets(given.database)),
        *((name, getattr(given, name, None)) for name in READER_FLAGS),
    ]
    words = [word for name, value in named if value is not None for word in flags({name: value})]
    return " ".join([*words, *(["--command-config FILE"] if len(public) < len(properties) else [])])


def _kafka_flags(given: argparse.Namespace) -> list[str]:
    return [text for prefix in _PLACES for text in getattr(given, f"{prefix}kafka", [])]


#: Options whose flags have another form, or are added by another function.
_OTHER_FLAGS: Final = ("kafka", "database", "transactional_id", *READER_FLAGS)
_DECLARED: Final = {item.name: item for item in fields(RecoveryOptions) if item.name != "kafka"}


def add_options(command: argparse.ArgumentParser, *names: str) -> None:
    for name in names:
        item, about = _DECLARED[name], setting_of(_DECLARED[name])
        default = "" if item.default in (None, False) else f" (default: {item.default})"
        how: dict[str, Any] = {"help": f"{about.why}{default}".replace("%", "%%"), "default": argparse.SUPPRESS}
        if item.default is False:
            how["action"] = "store_true"
        elif choices := choices_of(item):
            how["choices"] = choices
        else:
            how |= {"type": int, "metavar": "N"} if "int" in str(item.type) else {"metavar": "TEXT"}
        command.add_argument(_flag(name), **how)


def add_sink_options(command: argparse.ArgumentParser, options: type[SinkOptions] = SinkOptions) -> None:
    """Add a flag for each option of a sink that no other flag gives and that has a text."""
    for item in options_of(options):
        if item.name not in _OTHER_FLAGS and "Callable" not in kind_of(item):
            why = setting_of(item).why.replace("%", "%%")
            command.add_argument(_flag(item.name), default=argparse.SUPPRESS, metavar="VALUE", help=why)


def given_sink_options(given: argparse.Namespace) -> SinkOptions:
    """The options of a sink from these flags, all others that name one, the file and the environment."""
    said: dict[str, Any] = {}
    for item in options_of(SinkOptions):
        text = getattr(given, item.name, None)
        if item.name != "kafka" and text is not None:
            said[item.name] = (
                sources.sourced_value(item.name, text, source=_flag(item.name)) if isinstance(text, str) else text
            )
    sources.add_once(said, file_of(given).options.items(), source="--config")
    return SinkOptions.parse(**{**environment_options().options, **said, "kafka": read_connection(given)})


def add_timeout(command: argparse.ArgumentParser, *, default: int = StatusOptions.timeout_s) -> None:
    """Add the time limit of a look at both sides, in seconds: the option ``timeout_s`` of `status`."""
    [why] = [setting_of(item).why for item in options_of(StatusOptions) if item.name == "timeout_s"]
    about = f"{why} (default: %(default)s)"
    command.add_argument("--timeout", dest="timeout_s", type=int, default=default, metavar="SECONDS", help=about)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def add_database(command: argparse.ArgumentParser, *, required: bool = True, positional: bool = False) -> None:
    """Add the database and its tables, and the file that may name them and the Kafka properties."""
    file = "the TOML file of the sink, as DualWriteSink.from_toml reads it (default: SPARK_2PC_CONFIG)"
    command.add_argument("--config", dest="sink_file", metavar="FILE", help=file)
    if positional:
        about = "the same as --config FILE"
        command.add_argument("sink_file", nargs="?", default=argparse.SUPPRESS, metavar="FILE", help=about)
    about = "SQLAlchemy URL of the database (default: SPARK_2PC_DATABASE)"
    command.add_argument("--database", metavar="URL", help=about)
    command.set_defaults(database_required=required)
    add_options(command, *READER_FLAGS)


def add_sides(command: argparse.ArgumentParser, *, required: bool = True, positional: bool = False) -> None:
    add_connection(command)
    add_database(command, required=required, positional=positional)


def add_sink(command: argparse._ActionsContainer, *, about: str, required: bool = False) -> None:
    command.add_argument("--transactional-id", metavar="ID", help=about)
    command.set_defaults(sink_required=required)


def given_options(given: argparse.Namespace) -> dict[str, Any]:
    """The keywords of `recover` from flags, the sink's file and the environment."""
    flagged = {name: value for name, value in vars(given).items() if name in _DECLARED and value is not None}
    if not hasattr(given, "database_required"):
        return flagged
    # A flag may name another sink of the same database than the file.
    said = {name: value for name, value in flagged.items() if name != "transactional_id"}
    sources.add_once(said, _known_here(file_of(given), given).items(), source="--config")
    said = {**_known_here(environment_options(), given), **said, **flagged}
    if given.database_required and "database" not in said:
        rule = "is required to find the state table, and is not in --config or SPARK_2PC_DATABASE either"
        raise refused("--database", None, rule, "pass --database postgresql://user@host/database")
    if getattr(given, "sink_required", False) and "transactional_id" not in said:
        rule = "is required, and is not in --config or the environment either"
        raise refused("--transactional-id", None, rule, "pass --transactional-id ID")
    return said


def given_sides(given: argparse.Namespace) -> dict[str, Any]:
    """The same, with Kafka's properties."""
    return {"kafka": read_connection(given), **given_options(given)}


def _known_here(found: sources.SourcedOptions, given: argparse.Namespace) -> dict[str, Any]:
    """The sink options that the command accepts. Options for one start only are never read from a file."""
    names = {"database", *READER_FLAGS}
    if hasattr(given, "sink_required") and getattr(given, "match", None) is None:
        names.add("transactional_id")
    return {name: value for name, value in found.options.items() if name in names}


def add_connection(parser: argparse.ArgumentParser, *, prefix: str = "") -> None:
    """Add the flags; ``prefix`` is `OUTER` for those before the command's name."""
    about = "brokers, separated by commas"
    parser.add_argument("--bootstrap-server", dest=f"{prefix}bootstrap_server", metavar="HOST:PORT", help=about)
    about = "a Kafka client property, such as sasl.username=admin; may be repeated"
    parser.add_argument("--kafka", dest=f"{prefix}kafka", action="append", default=[], metavar="KEY=VALUE", help=about)
    about = "a file of Kafka client properties, one KEY=VALUE per line, for secrets"
    parser.add_argument("--command-config", dest=f"{prefix}command_config", metavar="FILE", help=about)


def read_connection(given: argparse.Namespace) -> dict[str, Any]:
    """All values of flags and of the sink's file; the environment's for the rest."""
    properties: dict[str, Any] = {}
    for prefix in _PLACES:
        server, file, named = (getattr(given, f"{prefix}{name}", None) for name in (*_OF_KAFKA, "kafka"))
        if file is not None:
            read = sources.read_properties_file(Path(file), option="--command-config")
            sources.add_once(properties, read, source="--command-config")
        sources.add_once(properties, map(_as_property, named or ()), source="--kafka")
        if server is not None:
            sources.add_once(properties, [(BOOTSTRAP, server)], source="--bootstrap-server")
    sources.add_once(properties, file_of(given).kafka.items(), source="--config")
    located = bool(properties.keys() & BOOTSTRAP_NAMES)
    for name, value in environment_options().kafka.items():
        if not (located and name in BOOTSTRAP_NAMES):
            properties.setdefault(name, value)
    if not properties.keys() & BOOTSTRAP_NAMES:
        places = "--kafka, --command-config, --config or SPARK_2PC_BOOTSTRAP_SERVER"
        rule = f"is required, and bootstrap.servers is not in {places} either"
        raise refused("--bootstrap-server", None, rule, "pass --bootstrap-server HOST:PORT")
    return properties


def _as_property(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise refused("--kafka", text, "must have the form KEY=VALUE", "pass bootstrap.servers=host:9092")
    return name, value


def reason_for(given: argparse.Namespace, decided: str) -> str:
    """The given reason, or one that the person types now."""
    reason: str | None = getattr(given, "reason", None)
    if reason is not None:
        return reason
    remedy = f"pass --reason 'why' with {decided}"
    if not sys.stdin.isatty():
        rule = "a reason is required for the history of operators' decisions, and there is no terminal to ask for it"
        raise refused("--reason", None, rule, remedy)
    # Not on standard output, which may be read by a program.
    print(f"Why {decided}? (The reason is kept in spark-2pc history): ", end="", file=sys.stderr, flush=True)
    typed = sys.stdin.readline().strip()
    if not typed:
        raise refused("--reason", typed, "must not be empty", remedy)
    return typed
