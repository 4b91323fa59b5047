"""``spark-2pc dashboard``: a web page of all sinks, from which one can be recovered."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spark_2pc_sink.cli.exits import EXIT_SETTLED
from spark_2pc_sink.cli.listening import add_host_names, add_watching, host_and_port, own_names, read_token, watched
from spark_2pc_sink.cli.output import CommandResult
from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.extras import extra

if TYPE_CHECKING:
    from spark_2pc_sink.monitoring.dashboard.access import Access

_HELP: Final = """\
Serves web pages of all sinks: both sides, what is in doubt and since when, batches and their times, what people did.
One sink can be recovered after a confirmation. On a loopback address whoever has an account on this machine may come
in; on any other address a token is asked for. docs/dashboard.md says more.
"""


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to those of the program."""
    parser = commands.add_parser("dashboard", help="serve a web page of all sinks", description=_HELP)
    add_watching(parser, listen="127.0.0.1:8939")
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="a file with the token that visitors have to know; without it one is made and printed where --listen is "
        "no loopback address",
    )
    add_host_names(parser, option="--host-name", reader="browsers reach the page")
    parser.set_defaults(run=_run)


def _run(given: argparse.Namespace) -> CommandResult:
    host, port = host_and_port(given.listen, option="--listen")
    if ":" in host:
        rule = "the check of the Host header knows names and IPv4 addresses"
        raise ConfigurationError(option="--listen", value=given.listen, rule=rule, remedy="pass localhost:8939")
    with extra("dashboard"):
        from spark_2pc_sink.monitoring.dashboard.server import serve  # noqa: PLC0415 - optional
    serve(watched(given), _access(given, host), host, port)
    return CommandResult(exit_code=EXIT_SETTLED)


def _access(given: argparse.Namespace, host: str) -> Access:
    """The access rules; a generated token is printed, this once.

    Raises:
        ConfigurationError: the file cannot be read, or its token is too short.
    """
    from spark_2pc_sink.monitoring.dashboard.access import Access, is_loopback, new_token  # noqa: PLC0415 - optional

    token = None if given.token_file is None else read_token(given.token_file)
    if is_loopback(host):
        return Access(token=token, hosts=given.host_name)
    if token is None:
        token = new_token()
        sys.stdout.write(f"token: {token}\n")
    return Access(token=token, hosts=own_names(host, given.host_name))
