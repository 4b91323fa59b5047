"""``spark-2pc recover``: settle the sink that a crashed job left."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, Final

from spark_2pc_sink.cli.exits import EXIT_IN_DOUBT, EXIT_NOT_KNOWN, EXIT_SETTLED
from spark_2pc_sink.cli.options import (
    add_connection,
    add_database,
    add_options,
    add_sink,
    given_options,
    read_connection,
    reason_for,
)
from spark_2pc_sink.cli.output import CommandResult
from spark_2pc_sink.errors import HaltError, TakeOverRefusedError
from spark_2pc_sink.options import OperatorDecision
from spark_2pc_sink.recovery.api import recover

if TYPE_CHECKING:
    from collections.abc import Mapping

_EXITS: Final = (
    "exit codes: 0 nothing is in doubt (any more); 1 a side refused or could not be reached; 2 wrong command line or "
    "option; 3 something is in doubt (normal for a moment during a batch); 4 the state table has no row for the sink"
)

_DECISIONS: Final = {OperatorDecision.DROP: "--drop", OperatorDecision.ACCEPT_REPLAY: "--accept-replay"}


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    settling = commands.add_parser("recover", help="settle what a crashed job left; safe to run twice", epilog=_EXITS)
    add_connection(settling)
    add_database(settling, positional=True)
    add_sink(settling, about="the sink (default: that of --config)", required=True)
    add_options(settling, "dry_run", "take_over", "adopt", "accept_loss", "open_transaction", "batch", "reason")
    add_options(settling, "accept_database")
    choice = settling.add_mutually_exclusive_group()
    choice.add_argument(
        "--accept-replay",
        dest="decision",
        action="store_const",
        const=OperatorDecision.ACCEPT_REPLAY,
        help="for a batch that Kafka lacks: send Spark's replay although it differs",
    )
    choice.add_argument(
        "--drop",
        dest="decision",
        action="store_const",
        const=OperatorDecision.DROP,
        help="for a batch that Kafka lacks: leave Kafka without it",
    )
    settling.set_defaults(run=_recover)


def _recover(given: argparse.Namespace) -> CommandResult:
    said = given_options(given)
    if decided := _decided(said):
        said["reason"] = reason_for(given, decided)
    try:
        report = recover(kafka=read_connection(given), **said)
    except (HaltError, TakeOverRefusedError) as error:
        # The error has the same text. A halt of the state table has no report, because Kafka was not read.
        found = [] if error.report is None else [error.report.as_json()]
        return CommandResult(exit_code=EXIT_IN_DOUBT, fields={"sinks": found}, error=error)
    code = (EXIT_SETTLED if report.known else EXIT_NOT_KNOWN) if report.settled else EXIT_IN_DOUBT
    return CommandResult(exit_code=code, fields={"sinks": [report.as_json()]}, text=f"{report}\n")


def _decided(said: Mapping[str, Any]) -> str:
    """The flag after which data may differ, so that a reason is required; '' for none."""
    if said.get("dry_run"):
        return ""
    if said["decision"] is not None:
        return _DECISIONS[said["decision"]]
    flags = {"accept_loss": "--accept-loss", "open_transaction": "--open-transaction"}
    return next((flag for name, flag in flags.items() if name in said), "")
