"""``spark-2pc coordinator``, ``exporter`` and ``dashboard``: servers; their listen address, and who has access."""

from __future__ import annotations

import argparse
import secrets
import socket
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spark_2pc_sink.cli.options import add_sides, add_timeout, given_sides
from spark_2pc_sink.cli.output import CommandResult
from spark_2pc_sink.extras import extra
from spark_2pc_sink.options.common import is_loopback
from spark_2pc_sink.options.settings import refused
from spark_2pc_sink.options.sources import read_properties_file
from spark_2pc_sink.reference.config.properties import BrokerProperties, parse_assignments
from spark_2pc_sink.web_server import MetricsAccess

if TYPE_CHECKING:
    from spark_2pc_sink.monitoring import Watched

PORT_MAX: Final = 65_535
#: A shorter token can be guessed by trial.
TOKEN_CHARACTERS_MIN: Final = 20


def add_host_names(command: argparse.ArgumentParser, *, option: str, reader: str) -> None:
    """Add the flag for the names of this server, against DNS rebinding."""
    about = (
        f"a name by which {reader}, in addition to the listen address and this machine's own name; may be repeated. "
        "Other names in the Host header are refused"
    )
    command.add_argument(option, action="append", default=[], metavar="NAME", help=about)


def own_names(host: str, names: Iterable[str]) -> frozenset[str]:
    return frozenset(name.lower() for name in (host, socket.gethostname(), socket.getfqdn(), *names))


def read_token(path: Path | None) -> str | None:
    """The token in the file of --token-file, if there is one."""
    if path is None:
        return None
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        remedy = "correct the name or the permissions"
        raise refused("--token-file", str(path), f"must be readable: {error}", remedy) from error
    if len(token) < TOKEN_CHARACTERS_MIN:
        rule = f"the token must have at least {TOKEN_CHARACTERS_MIN} characters"
        remedy = "write for example the output of `openssl rand -base64 32` to it"
        raise refused("--token-file", str(path), rule, remedy)
    return token


def watched(given: argparse.Namespace) -> Watched:
    # Imported for these commands only.
    from spark_2pc_sink.monitoring import Watched  # noqa: PLC0415

    if given.timeout_s < 1:
        raise refused("--timeout", given.timeout_s, "must be at least 1 second", "pass for example 8")
    return Watched(connections=given_sides(given), timeout_s=given.timeout_s)


def host_and_port(text: str, *, option: str) -> tuple[str, int]:
    """Split ``HOST:PORT``, removing the brackets of an IPv6 address."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > PORT_MAX:
        rule = f"must be HOST:PORT, with a port up to {PORT_MAX}"
        raise refused(option, text, rule, "pass for example 127.0.0.1:9404")
    return host.removeprefix("[").removesuffix("]"), int(port)


_COORDINATOR = """\
Starts a single Kafka node without Java: real Kafka clients use it like Apache Kafka 4.4.0, including transactions,
two-phase commit and consumer groups. Stop it with SIGTERM; a kill loses nothing that was acknowledged.

Properties have Kafka's names and defaults; an unknown one is refused. Keeping a prepared transaction over
InitProducerId (KIP-939), which no released Kafka can do, is switched on by
  --set transaction.keep.prepared.enable=true --set transaction.two.phase.commit.enable=true
  --set unstable.api.versions.enable=true
"""
_EXPORTER: Final = """\
Serves /metrics for every sink of the database: what is in doubt and for how long, what is prepared, whether the driver
is running, claims, resends, batches, rows, records, bytes and times; and whether both sides answer. Both sides are read
at each scrape; nothing is claimed or changed. docs/metrics.md lists the names and the alerts.
"""
_DASHBOARD: Final = """\
Serves web pages of all sinks: both sides, what is in doubt and for how long, batches and their times, what people did.
One sink can be recovered after a confirmation. On a loopback address every account on this machine has access; on any
other address a token is required. See docs/dashboard.md.
"""


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    about, form = "start the reference coordinator, a Kafka of one node", argparse.RawDescriptionHelpFormatter
    parser = commands.add_parser("coordinator", help=about, description=_COORDINATOR, formatter_class=form)
    about = "short for listeners=PLAINTEXT://HOST:PORT; port 0: any free port"
    parser.add_argument("--listen", metavar="HOST:PORT", help=about)
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--data-dir", type=Path, metavar="DIR", help="data directory; created if it does not exist")
    place.add_argument("--in-memory", action="store_true", help="keep nothing across restarts")
    parser.add_argument("--config", type=Path, metavar="FILE", help="a Java properties file; --set overrides it")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a property; may be repeated")
    parser.add_argument("--metrics", metavar="HOST:PORT", help="serve Prometheus metrics at /metrics")
    add_host_names(parser, option="--metrics-host-name", reader="Prometheus reaches the metrics")
    parser.set_defaults(run=_coordinate)

    about = "serve metrics of all sinks to Prometheus"
    exporter = commands.add_parser("exporter", help=about, description=_EXPORTER)
    note = "that Prometheus must send (Authorization: Bearer); without it no token is required"
    _add_server(exporter, listen="127.0.0.1:9939", note=note, reader="Prometheus reaches the metrics")
    exporter.set_defaults(run=_export)
    dashboard = commands.add_parser("dashboard", help="serve a web page of all sinks", description=_DASHBOARD)
    note = "that visitors must enter; without it one is generated and printed if --listen is not a loopback address"
    _add_server(dashboard, listen="127.0.0.1:8939", note=note, reader="browsers reach the page")
    dashboard.set_defaults(run=_show)


def _add_server(parser: argparse.ArgumentParser, *, listen: str, note: str, reader: str) -> None:
    """Add the options of a server: both sides, where it listens, and who has access; ``note`` is about the token."""
    add_sides(parser)
    address = "address to listen on; port 0: any free port (default: %(default)s)"
    parser.add_argument("--listen", metavar="HOST:PORT", default=listen, help=address)
    # Less than Prometheus' usual time limit of a scrape, which is 10 s.
    add_timeout(parser, default=8)
    parser.add_argument("--token-file", type=Path, metavar="FILE", help=f"a file with the token {note}")
    add_host_names(parser, option="--host-name", reader=reader)


def _coordinate(given: argparse.Namespace) -> CommandResult:
    from spark_2pc_sink.reference.broker import serve  # noqa: PLC0415 - for this command only

    values = {} if given.config is None else dict(read_properties_file(given.config, option="--config"))
    values.update(parse_assignments(given.set))
    if given.listen is not None:
        values["listeners"] = f"PLAINTEXT://{given.listen}"
    metrics = None if given.metrics is None else host_and_port(given.metrics, option="--metrics")
    access = MetricsAccess() if metrics is None else MetricsAccess(own_names(metrics[0], given.metrics_host_name))
    properties = BrokerProperties.from_mapping(values)
    return CommandResult(exit_code=serve(properties, given.data_dir, metrics, access))


def _export(given: argparse.Namespace) -> CommandResult:
    host, port = host_and_port(given.listen, option="--listen")
    with extra("metrics"):
        from spark_2pc_sink.monitoring.exporter import serve  # noqa: PLC0415 - optional
    token = read_token(given.token_file)
    serve(watched(given), MetricsAccess(own_names(host, given.host_name), token), host, port)
    return CommandResult()


def _show(given: argparse.Namespace) -> CommandResult:
    host, port = host_and_port(given.listen, option="--listen")
    if ":" in host:
        rule = "must be a name or an IPv4 address, because of the check of the Host header"
        raise refused("--listen", given.listen, rule, "pass localhost:8939")
    with extra("dashboard"):
        from spark_2pc_sink.monitoring.dashboard.access import DashboardAccess  # noqa: PLC0415 - optional
        from spark_2pc_sink.monitoring.dashboard.app import serve  # noqa: PLC0415 - optional
    systems, token = watched(given), read_token(given.token_file)
    hosts = given.host_name if is_loopback(host) else own_names(host, given.host_name)
    if token is None and not is_loopback(host):
        token = secrets.token_urlsafe()
        # Shown this once.
        sys.stdout.write(f"token: {token}\n")
    serve(systems, DashboardAccess(token=token, hosts=hosts), host, port)
    return CommandResult()
