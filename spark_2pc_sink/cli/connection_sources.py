"""The sources of connection arguments beside the flags: a file and the environment, where no list of processes looks.

The command line is flags and the files that they name; what it says twice must be the same. The environment fills in
what the command line leaves out. What a command prints for people to run names the same sources, and no secret.
"""

from __future__ import annotations

import argparse
import logging
import os
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options.database import has_secret, without_secrets
from spark_2pc_sink.options.kafka_security import SecurityOptions
from spark_2pc_sink.options.properties_file import read_properties_file
from spark_2pc_sink.options.settings import nearest, setting_of

_log = logging.getLogger(__name__)

#: The tables in the database, for every command that looks into them.
TABLES: Final = ("state_schema", "state_table", "history_table", "history_batches")
#: What a connection file may say beside Kafka's properties, whose names have no underscore.
FILE_OPTIONS: Final = ("database", *TABLES)
#: Each variable, and the flag that it stands for.
ENVIRONMENT: Final = {
    "SPARK_2PC_CONNECTION": "--connection",
    "SPARK_2PC_DATABASE": "--database",
    "SPARK_2PC_BOOTSTRAP_SERVER": "--bootstrap-server",
    "SPARK_2PC_COMMAND_CONFIG": "--command-config",
}
BOOTSTRAP: Final = "bootstrap.servers"
#: What it is called where it may be said: the second is librdkafka's.
BOOTSTRAP_NAMES: Final = frozenset({BOOTSTRAP, "metadata.broker.list"})
_SECRETS: Final = frozenset(
    ["sasl.jaas.config"]
    + [name for item in fields(SecurityOptions) if setting_of(item).secret for name in setting_of(item).properties]
)


@dataclass(frozen=True)
class ConnectionFile:
    """What a connection file says: options by their names, and Kafka's properties by theirs."""

    options: Mapping[str, str | int]
    kafka: Mapping[str, str]


def add_once(said: dict[str, Any], more: Iterable[tuple[str, Any]], *, source: str) -> None:
    """Add what a source says.

    Raises:
        ConfigurationError: it was said before, and differently.
    """
    for name, value in more:
        if said.setdefault(name, value) != value:
            raise ConfigurationError(
                option=source,
                # The value may be a secret.
                value=name,
                rule="a property has one value, and this one was given before with another",
                remedy="give it once",
            )


def file_of(given: argparse.Namespace) -> ConnectionFile | None:
    """The file of ``--connection``; None where none was given."""
    path = getattr(given, "connection", None)
    return None if path is None else read_connection_file(path, source="--connection")


def read_connection_file(path: str, *, source: str) -> ConnectionFile:
    """Read a connection file: Java properties.

    Args:
        path: of the file.
        source: the flag or variable that named it, for errors.

    Raises:
        ConfigurationError: the file cannot be read, says one thing twice and differently, or has a name that is none.
            Its values are not shown.
    """
    said: dict[str, str] = {}
    add_once(said, read_properties_file(Path(path), option=source), source=source)
    options: dict[str, str | int] = {name: said.pop(name) for name in FILE_OPTIONS if name in said}
    for name in said:
        if "_" in name:
            rule = f"{path} names an option that a connection file has not"
            raise ConfigurationError(option=source, value=name, rule=rule, remedy=nearest(name, FILE_OPTIONS))
    kept = str(options.get("history_batches", "0"))
    if not kept.isdecimal():
        rule, remedy = "history_batches is a whole number", "write history_batches=1000"
        raise ConfigurationError(option=source, value=kept, rule=rule, remedy=remedy)
    if "history_batches" in options:
        options["history_batches"] = int(kept)
    return ConnectionFile(options, said)


def environment_options() -> dict[str, str | int]:
    """What the environment says of the database and its tables.

    Raises:
        ConfigurationError: as `read_connection_file`; or two variables contradict each other.
    """
    said: dict[str, str | int] = {}
    if path := os.environ.get("SPARK_2PC_CONNECTION"):
        said |= read_connection_file(path, source="SPARK_2PC_CONNECTION").options
    if url := os.environ.get("SPARK_2PC_DATABASE"):
        add_once(said, [("database", url)], source="SPARK_2PC_DATABASE")
    return said


def environment_properties() -> dict[str, str]:
    """What the environment says of Kafka.

    Raises:
        ConfigurationError: as `environment_options`.
    """
    said: dict[str, str] = {}
    if path := os.environ.get("SPARK_2PC_CONNECTION"):
        said |= read_connection_file(path, source="SPARK_2PC_CONNECTION").kafka
    if path := os.environ.get("SPARK_2PC_COMMAND_CONFIG"):
        file = read_properties_file(Path(path), option="SPARK_2PC_COMMAND_CONFIG")
        add_once(said, file, source="SPARK_2PC_COMMAND_CONFIG")
    if servers := os.environ.get("SPARK_2PC_BOOTSTRAP_SERVER"):
        add_once(said, [(BOOTSTRAP, servers)], source="SPARK_2PC_BOOTSTRAP_SERVER")
    return said


def warn_of_secrets(given: argparse.Namespace) -> None:
    """Log a warning for each secret that stands on the command line, where every user of the machine can read it."""
    url = getattr(given, "database", None)
    if url is not None and has_secret(url):
        _log.warning(
            "--database has a password, which ps shows: put it into SPARK_2PC_DATABASE, PGPASSWORD or ~/.pgpass"
        )
    for text in _kafka_flags(given):
        name = text.partition("=")[0]
        if name in _SECRETS:
            _log.warning("--kafka %s=… is a secret, which ps shows: put it into a file for --command-config", name)


def connection_as_given(given: argparse.Namespace) -> str | None:
    """The flags that name both sides, as they were given and without a secret; None where the command has none.

    What comes from the environment is not among them: a person who runs the printed command has it there.
    """
    if not hasattr(given, "database"):
        return None
    words = []
    for flag in ("connection", "bootstrap_server", "command_config"):
        for prefix in ("", "outer_"):
            if (value := getattr(given, f"{prefix}{flag}", None)) is not None:
                words += [f"--{flag.replace('_', '-')}", value]
    secrets = False
    for text in _kafka_flags(given):
        secret = text.partition("=")[0] in _SECRETS
        secrets |= secret
        words += [] if secret else ["--kafka", text]
    if given.database is not None:
        words += ["--database", without_secrets(given.database)]
    for name in TABLES:
        if hasattr(given, name):
            words += [f"--{name.replace('_', '-')}", str(getattr(given, name))]
    return shlex.join(words) + (" --command-config FILE" if secrets else "")


def _kafka_flags(given: argparse.Namespace) -> list[str]:
    return [*getattr(given, "outer_kafka", []), *getattr(given, "kafka", [])]
