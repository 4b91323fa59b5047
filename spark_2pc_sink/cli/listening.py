"""Common parts of commands that serve pages or metrics: the address they listen on, and the systems they read."""

from __future__ import annotations

import argparse
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spark_2pc_sink.cli.kafka_properties import add_connection, read_connection
from spark_2pc_sink.cli.options import add_database, given_options
from spark_2pc_sink.errors import ConfigurationError

if TYPE_CHECKING:
    from spark_2pc_sink.monitoring.watched import Watched

PORT_MAX: Final = 65_535
#: A shorter token can be guessed by trial.
TOKEN_CHARACTERS_MIN: Final = 20


def add_watching(command: argparse.ArgumentParser, *, listen: str) -> None:
    """Add both sides, the address, and the time limit of a look.

    Args:
        command: receives the flags.
        listen: the default of the address.
    """
    add_connection(command)
    add_database(command)
    command.add_argument(
        "--listen", metavar="HOST:PORT", default=listen, help="where to listen; port 0: any (default: %(default)s)"
    )
    command.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=int,
        default=8,
        help="how long both sides have for one look; what does not answer is shown as such (default: %(default)s)",
    )


def add_host_names(command: argparse.ArgumentParser, *, option: str, reader: str) -> None:
    """Add the flag for the names of this server, against DNS rebinding.

    Args:
        command: receives the flag.
        option: its name.
        reader: user of the names, with its verb.
    """
    command.add_argument(
        option,
        action="append",
        default=[],
        metavar="NAME",
        help=f"a name by which {reader}, beside the address of the listener and this machine's own name; may be "
        "repeated. Another name in the Host header is refused",
    )


def own_names(host: str, names: Iterable[str]) -> frozenset[str]:
    """The names of a server in the Host header, in lower case.

    Args:
        host: where it listens.
        names: additional names from the command line.
    """
    return frozenset(name.lower() for name in (host, socket.gethostname(), socket.getfqdn(), *names))


def read_token(path: Path) -> str:
    """The token in the file of --token-file.

    Raises:
        ConfigurationError: it cannot be read, or its token is too short.
    """
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            option="--token-file", value=str(path), rule=f"it can be read: {error}", remedy="make it readable"
        ) from error
    if len(token) < TOKEN_CHARACTERS_MIN:
        raise ConfigurationError(
            option="--token-file",
            value=str(path),
            rule=f"the token has at least {TOKEN_CHARACTERS_MIN} characters",
            remedy="write for example what `openssl rand -base64 32` prints into it",
        )
    return token


def watched(given: argparse.Namespace) -> Watched:
    """The systems named on the command line.

    Raises:
        ConfigurationError: an option is wrong.
    """
    # Imported for these commands only.
    from spark_2pc_sink.monitoring.watched import Watched  # noqa: PLC0415

    if given.timeout < 1:
        raise ConfigurationError(
            option="--timeout", value=given.timeout, rule="it is at least 1 second", remedy="pass for example 8"
        )
    options = given_options(given)
    database = options.pop("database")
    return Watched(kafka=read_connection(given), database=database, timeout_s=given.timeout, tables=options)


def host_and_port(text: str, *, option: str) -> tuple[str, int]:
    """Split ``HOST:PORT``, removing the brackets of an IPv6 address.

    Raises:
        ConfigurationError: it is something else.
    """
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > PORT_MAX:
        rule = f"it is HOST:PORT, and no port is above {PORT_MAX}"
        raise ConfigurationError(option=option, value=text, rule=rule, remedy="pass for example 127.0.0.1:9404")
    return host.removeprefix("[").removesuffix("]"), int(port)
