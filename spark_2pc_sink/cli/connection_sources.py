"""The sources of connection arguments in addition to flags: a file and the environment, hidden from process lists.

The command line is flags and the files that they name; values given twice must be equal. The environment supplies what
the command line omits. Commands printed for people name the same sources, and contain no secrets.
"""

from __future__ import annotations

import argparse
import logging
import os
import shlex
from dataclasses import fields
from typing import Final

from spark_2pc_sink.options.database import has_secret, without_secrets
from spark_2pc_sink.options.kafka_security import SecurityOptions
from spark_2pc_sink.options.settings import setting_of, shown_name
from spark_2pc_sink.options.sources import (
    BOOTSTRAP_SERVER,
    COMMAND_CONFIG,
    CONFIG,
    PREFIX,
    SourcedOptions,
    read_environment,
    read_toml_file,
)

_log = logging.getLogger(__name__)

#: The tables in the database, for every command that reads them.
TABLES: Final = ("state_schema", "state_table", "history_table", "history_batches")
#: Environment variables of flags. Every option and Kafka property has one in addition.
ENVIRONMENT: Final = {
    f"{PREFIX}{CONFIG}": "--config",
    f"{PREFIX}DATABASE": "--database",
    f"{PREFIX}{BOOTSTRAP_SERVER}": "--bootstrap-server",
    f"{PREFIX}{COMMAND_CONFIG}": "--command-config",
}
BOOTSTRAP: Final = "bootstrap.servers"
#: Accepted names; the second is librdkafka's.
BOOTSTRAP_NAMES: Final = frozenset({BOOTSTRAP, "metadata.broker.list"})
_SECRETS: Final = {
    name
    for item in fields(SecurityOptions)
    if setting_of(item).secret
    for name in setting_of(item).properties or (shown_name(item),)
} | {"sasl.jaas.config"}


def file_of(given: argparse.Namespace) -> SourcedOptions:
    """The options in the file of ``--config``; empty if no file was given.

    Raises:
        ConfigurationError: see `read_toml_file`.
    """
    path = getattr(given, "sink_file", None)
    return SourcedOptions() if path is None else read_toml_file(path)


def environment_options() -> SourcedOptions:
    """The options in the environment. Other variables are ignored: the job's own start refuses them.

    Raises:
        ConfigurationError: see `read_environment`.
    """
    return read_environment(os.environ, strict=False)


def warn_of_secrets(given: argparse.Namespace) -> None:
    """Log a warning for each secret on the command line, where every user of the machine can read it."""
    url = getattr(given, "database", None)
    if url is not None and has_secret(url):
        _log.warning(
            "--database has a password, which ps shows: put it into SPARK_2PC_DATABASE, PGPASSWORD or ~/.pgpass, or "
            "pass --password-command"
        )
    for text in _kafka_flags(given):
        name = text.partition("=")[0]
        if name in _SECRETS:
            _log.warning("--kafka %s=… is a secret, which ps shows: put it into a file for --command-config", name)


def connection_as_given(given: argparse.Namespace) -> str | None:
    """The flags that name both sides, as given and without secrets; None if the command has none.

    Values of the environment are omitted: the environment of the printed command has them too.
    """
    if not hasattr(given, "database"):
        return None
    words = []
    for name, flag in (("sink_file", "config"), ("bootstrap_server",) * 2, ("command_config",) * 2):
        for prefix in ("", "outer_"):
            if (value := getattr(given, f"{prefix}{name}", None)) is not None:
                words += [f"--{flag.replace('_', '-')}", value]
    secrets = False
    for text in _kafka_flags(given):
        secret = text.partition("=")[0] in _SECRETS
        secrets |= secret
        words += [] if secret else ["--kafka", text]
    if given.database is not None:
        words += ["--database", without_secrets(given.database)]
    for name in ("password_command", *TABLES):
        if hasattr(given, name):
            words += [f"--{name.replace('_', '-')}", str(getattr(given, name))]
    if hasattr(given, "require_tls"):
        words += ["--require-tls"]
    return shlex.join(words) + (" --command-config FILE" if secrets else "")


def _kafka_flags(given: argparse.Namespace) -> list[str]:
    return [*getattr(given, "outer_kafka", []), *getattr(given, "kafka", [])]
