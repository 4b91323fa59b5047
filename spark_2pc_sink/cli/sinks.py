"""``spark-2pc status`` and ``recover``: show the sinks that are in doubt, and settle them."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Final

from spark_2pc_sink.cli.exits import EXIT_IN_DOUBT, EXIT_NOT_KNOWN, EXIT_SETTLED
from spark_2pc_sink.cli.kafka_properties import add_connection, read_connection
from spark_2pc_sink.cli.options import add_database, add_options, given_options
from spark_2pc_sink.errors import HaltError, TakeOverRefusedError
from spark_2pc_sink.options import OperatorDecision
from spark_2pc_sink.recovery.api import recover, status

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_2pc_sink.recovery.report import RecoveryReport

_EXITS: Final = (
    "exit codes: 0 nothing is in doubt (any more); 1 a side refused or could not be reached; 2 wrong command line or "
    "option; 3 something is in doubt (a job in mid-batch is, for a moment); 4 the state table has no row of the sink"
)


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands to those of the program."""
    looking = commands.add_parser("status", help="look at both sides of every sink; changes nothing", epilog=_EXITS)
    _add_common(looking)
    looking.add_argument("--transactional-id", help="one sink (default: every row of the state table)")
    looking.set_defaults(run=_status)

    settling = commands.add_parser("recover", help="settle what a crashed job left; safe to run twice", epilog=_EXITS)
    _add_common(settling)
    settling.add_argument("--transactional-id", required=True, help="the sink")
    add_options(settling, "dry_run", "take_over", "adopt", "accept_loss", "open_transaction", "batch")
    choice = settling.add_mutually_exclusive_group()
    choice.add_argument(
        "--accept-replay",
        dest="decision",
        action="store_const",
        const=OperatorDecision.ACCEPT_REPLAY,
        help="of a batch that Kafka lacks: send what Spark replays, although it differs",
    )
    choice.add_argument(
        "--drop",
        dest="decision",
        action="store_const",
        const=OperatorDecision.DROP,
        help="of a batch that Kafka lacks: leave Kafka without it",
    )
    settling.set_defaults(run=_recover)


def _add_common(command: argparse.ArgumentParser) -> None:
    add_connection(command)
    add_database(command)
    command.add_argument("--json", action="store_true", help="print JSON, one object per sink in a list")


def _status(given: argparse.Namespace) -> int:
    return _report(status(kafka=read_connection(given), **given_options(given)).sinks, as_json=given.json)


def _recover(given: argparse.Namespace) -> int:
    try:
        report = recover(kafka=read_connection(given), **given_options(given))
    except (HaltError, TakeOverRefusedError) as error:
        # The caller prints the error on standard error, for people.
        if given.json:
            _show([error.report], as_json=True)
        raise
    return _report([report], as_json=given.json)


def _report(reports: Sequence[RecoveryReport], *, as_json: bool) -> int:
    _show(reports, as_json=as_json)
    if not all(report.settled for report in reports):
        return EXIT_IN_DOUBT
    return EXIT_SETTLED if reports and all(report.known for report in reports) else EXIT_NOT_KNOWN


def _show(reports: Sequence[RecoveryReport], *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps([report.as_json() for report in reports], indent=2) + "\n")
        return
    if not reports:
        sys.stdout.write("no state row: no sink has run against this database with a state table of this name\n")
    sys.stdout.write("".join(f"{report}\n" for report in reports))
