"""The connection to Kafka on a command line: ``--bootstrap-server``, ``--kafka`` and ``--command-config``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Final

from spark_2pc_sink.cli.connection_sources import BOOTSTRAP, BOOTSTRAP_NAMES, environment_options, file_of
from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options.sources import add_once, read_properties_file

_DESTINATIONS: Final = ("bootstrap_server", "kafka", "command_config")


def add_connection(parser: argparse.ArgumentParser, *, prefix: str = "") -> None:
    """Add the options; ``prefix`` distinguishes those before the command's name from those after it."""
    parser.add_argument(
        "--bootstrap-server", dest=f"{prefix}bootstrap_server", metavar="HOST:PORT", help="brokers, with commas between"
    )
    parser.add_argument(
        "--kafka",
        dest=f"{prefix}kafka",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a Kafka client property, such as sasl.username=admin; may be repeated",
    )
    parser.add_argument(
        "--command-config",
        dest=f"{prefix}command_config",
        metavar="FILE",
        help="a file of Kafka client properties, KEY=VALUE in each line, for those that are secret",
    )


def read_connection(given: argparse.Namespace, *prefixes: str) -> dict[str, Any]:
    """All values of flags and the sink's file, and the environment's for the rest.

    Args:
        given: the command line.
        prefixes: prefixes of options, in addition to none.

    Raises:
        ConfigurationError: a file cannot be read, a property has no value, two sources of the command line contradict
            each other, or none names the brokers.
    """
    properties: dict[str, Any] = {}
    for prefix in ("", *prefixes):
        server, named, file = (getattr(given, f"{prefix}{name}") for name in _DESTINATIONS)
        if file is not None:
            read = read_properties_file(Path(file), option="--command-config")
            add_once(properties, read, source="--command-config")
        add_once(properties, [as_property(text) for text in named], source="--kafka")
        if server is not None:
            add_once(properties, [(BOOTSTRAP, server)], source="--bootstrap-server")
    add_once(properties, file_of(given).kafka.items(), source="--config")
    located = bool(properties.keys() & BOOTSTRAP_NAMES)
    for name, value in environment_options().kafka.items():
        if not (located and name in BOOTSTRAP_NAMES):
            properties.setdefault(name, value)
    if not properties.keys() & BOOTSTRAP_NAMES:
        raise ConfigurationError(
            option="--bootstrap-server",
            value=None,
            rule="it says where Kafka is, and no bootstrap.servers is in --kafka, --command-config, --config or "
            "SPARK_2PC_BOOTSTRAP_SERVER either",
            remedy="pass --bootstrap-server HOST:PORT",
        )
    return properties


def as_property(text: str) -> tuple[str, str]:
    """``KEY=VALUE`` as a pair.

    Raises:
        ConfigurationError: there is no ``=``.
    """
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigurationError(
            option="--kafka", value=text, rule="it has the form KEY=VALUE", remedy="pass bootstrap.servers=host:9092"
        )
    return name, value
