"""``spark-2pc exporter``: the figures of all sinks of a database for Prometheus."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from spark_2pc_sink.cli.exits import EXIT_SETTLED
from spark_2pc_sink.cli.listening import add_host_names, add_watching, host_and_port, own_names, read_token, watched
from spark_2pc_sink.cli.output import CommandResult
from spark_2pc_sink.extras import extra
from spark_2pc_sink.metrics_server import MetricsAccess

_HELP: Final = """\
Serves /metrics: of every sink of the database what is in doubt and since when, what is prepared, whether its driver
lives, its claims, resends, batches, rows, records, bytes and times; and whether both sides answer. Both are asked at
each scrape; nothing is claimed or changed. docs/metrics.md has the names and the alerts.
"""


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to those of the program."""
    parser = commands.add_parser("exporter", help="serve the figures of all sinks to Prometheus", description=_HELP)
    add_watching(parser, listen="127.0.0.1:9939")
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="a file with the token that Prometheus has to send (Authorization: Bearer); without it nobody is asked",
    )
    add_host_names(parser, option="--host-name", reader="Prometheus reaches the figures")
    parser.set_defaults(run=_run)


def _run(given: argparse.Namespace) -> CommandResult:
    host, port = host_and_port(given.listen, option="--listen")
    with extra("metrics"):
        from spark_2pc_sink.monitoring.exporter import serve  # noqa: PLC0415 - optional
    token = None if given.token_file is None else read_token(given.token_file)
    access = MetricsAccess(own_names(host, given.host_name), token)
    serve(watched(given), access, host, port)
    return CommandResult(exit_code=EXIT_SETTLED)
