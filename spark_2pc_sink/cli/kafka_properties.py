"""The connection to Kafka on a command line: ``--bootstrap-server``, ``--kafka`` and ``--command-config``."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options.properties_file import read_properties_file

_BOOTSTRAP: Final = "bootstrap.servers"
#: What it is called where it may be said: the second is librdkafka's.
_BOOTSTRAP_NAMES: Final = frozenset({_BOOTSTRAP, "metadata.broker.list"})
_DESTINATIONS: Final = ("bootstrap_server", "kafka", "command_config")


def add_connection(parser: argparse.ArgumentParser, *, prefix: str = "") -> None:
    """Add the options; ``prefix`` tells those before the command's name from those behind it."""
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


def read_connection(given: argparse.Namespace, *prefixes: str) -> dict[str, str]:
    """All that was said, by options without a prefix and by those with one of ``prefixes``.

    Raises:
        ConfigurationError: the file cannot be read, a property has no value, two sources contradict each other, or none
            names the brokers.
    """
    properties: dict[str, str] = {}
    for prefix in ("", *prefixes):
        server, named, file = (getattr(given, f"{prefix}{name}") for name in _DESTINATIONS)
        if file is not None:
            _add(properties, read_properties_file(Path(file), option="--command-config"), option="--command-config")
        _add(properties, [as_property(text) for text in named], option="--kafka")
        if server is not None:
            _add(properties, [(_BOOTSTRAP, server)], option="--bootstrap-server")
    if not properties.keys() & _BOOTSTRAP_NAMES:
        raise ConfigurationError(
            option="--bootstrap-server",
            value=None,
            rule="it says where Kafka is, and there is no bootstrap.servers in --kafka or --command-config either",
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


def _add(properties: dict[str, str], more: Iterable[tuple[str, str]], *, option: str) -> None:
    for name, value in more:
        if properties.setdefault(name, value) != value:
            raise ConfigurationError(
                option=option,
                # The value may be a secret.
                value=name,
                rule="a property has one value, and this one was given before with another",
                remedy="give it once",
            )
