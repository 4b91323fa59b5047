"""``spark-2pc coordinator``: the reference coordinator as a server of its own."""

from __future__ import annotations

import argparse
from pathlib import Path

from spark_2pc_sink.cli.output import CommandResult
from spark_2pc_sink.cli.serving import add_host_names, host_and_port, own_names
from spark_2pc_sink.metrics_server import MetricsAccess
from spark_2pc_sink.options.sources import read_properties_file
from spark_2pc_sink.reference.broker import serve
from spark_2pc_sink.reference.config.properties import BrokerProperties, parse_assignments

_HELP = """\
Starts a single Kafka node without Java: real Kafka clients use it like Apache Kafka 4.4.0, including transactions,
two-phase commit and consumer groups. Stop it with SIGTERM; a kill loses nothing that was acknowledged.

Properties have Kafka's names and defaults; an unknown one is refused. Keeping a prepared transaction over
InitProducerId (KIP-939), which no released Kafka can do, is switched on by
  --set transaction.keep.prepared.enable=true --set transaction.two.phase.commit.enable=true
  --set unstable.api.versions.enable=true
"""


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "coordinator",
        help="start the reference coordinator, a Kafka of one node",
        description=_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--listen", metavar="HOST:PORT", help="short for listeners=PLAINTEXT://HOST:PORT; port 0: any free port"
    )
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--data-dir", type=Path, metavar="DIR", help="data directory; created if it does not exist")
    place.add_argument("--in-memory", action="store_true", help="keep nothing across restarts")
    parser.add_argument("--config", type=Path, metavar="FILE", help="a Java properties file; --set overrides it")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a property; may be repeated")
    parser.add_argument("--metrics", metavar="HOST:PORT", help="serve Prometheus metrics at /metrics")
    add_host_names(parser, option="--metrics-host-name", reader="Prometheus reaches the metrics")
    parser.set_defaults(run=_run)


def _run(given: argparse.Namespace) -> CommandResult:
    values = {} if given.config is None else dict(read_properties_file(given.config, option="--config"))
    values.update(parse_assignments(given.set))
    if given.listen is not None:
        values["listeners"] = f"PLAINTEXT://{given.listen}"
    metrics = None if given.metrics is None else host_and_port(given.metrics, option="--metrics")
    access = MetricsAccess() if metrics is None else MetricsAccess(own_names(metrics[0], given.metrics_host_name))
    properties = BrokerProperties.from_mapping(values)
    return CommandResult(exit_code=serve(properties, given.data_dir, metrics, access))
