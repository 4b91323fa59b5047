"""``spark-2pc status`` and ``recover``: what is in doubt, and the command that settles it."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from spark_2pc_sink.cli.exits import EXIT_IN_DOUBT, EXIT_SETTLED
from spark_2pc_sink.cli.kafka_properties import add_connection, read_connection
from spark_2pc_sink.recovery import OperatorDecision, RecoveryReport
from spark_2pc_sink.runbook import recover, status

if TYPE_CHECKING:
    from collections.abc import Sequence


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands to those of the program."""
    looking = commands.add_parser("status", help="look at both sides of every sink; changes nothing")
    _add_common(looking)
    looking.add_argument("--transactional-id", help="one sink (default: every row of the state table)")
    looking.set_defaults(run=_status)

    settling = commands.add_parser("recover", help="settle what a crashed job left; safe to run twice")
    _add_common(settling)
    settling.add_argument("--transactional-id", required=True, help="the sink")
    settling.add_argument("--dry-run", action="store_true", help="only say what would be done")
    settling.add_argument(
        "--take-over", action="store_true", help="also when the job seems to be running, which this then stops"
    )
    settling.add_argument(
        "--adopt",
        action="store_true",
        help="take over a row of another Kafka cluster, or an id that Kafka knows already",
    )
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
    command.add_argument("--database", required=True, metavar="URL", help="SQLAlchemy URL of the database")
    command.add_argument("--state-schema", help="schema of the state table (default: public)")
    command.add_argument("--state-table", help="name of the state table (default: kafka_transaction_state)")
    command.add_argument("--history-table", help="name of the history table (default: kafka_transaction_history)")
    command.add_argument(
        "--history-batches", type=int, metavar="N", help="as on the sink, so that its history has this too (default: 0)"
    )
    command.add_argument("--json", action="store_true", help="print JSON, one object per sink in a list")


def _status(given: argparse.Namespace) -> int:
    return _report(status(transactional_id=given.transactional_id, **_common(given)), as_json=given.json)


def _recover(given: argparse.Namespace) -> int:
    report = recover(
        transactional_id=given.transactional_id,
        dry_run=given.dry_run,
        take_over=given.take_over,
        decision=given.decision,
        adopt=given.adopt,
        **_common(given),
    )
    return _report([report], as_json=given.json)


def _report(reports: Sequence[RecoveryReport], *, as_json: bool) -> int:
    _show(reports, as_json=as_json)
    return EXIT_SETTLED if all(report.settled for report in reports) else EXIT_IN_DOUBT


def _common(given: argparse.Namespace) -> dict[str, Any]:
    named = {name: getattr(given, name) for name in ("state_schema", "state_table", "history_table", "history_batches")}
    return {
        "kafka": read_connection(given),
        "database": given.database,
        **{name: value for name, value in named.items() if value is not None},
    }


def _show(reports: Sequence[RecoveryReport], *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps([asdict(report) for report in reports], indent=2) + "\n")
        return
    if not reports:
        sys.stdout.write("the state table has no row: no sink has run against this database\n")
    for report in reports:
        sys.stdout.write("\n".join(_lines(report)) + "\n")


def _lines(report: RecoveryReport) -> list[str]:
    return [
        f"{report.transactional_id}: {'nothing is in doubt' if report.settled else 'IN DOUBT'}: {report.reason}",
        f"  database: {report.database_before}",
        f"  Kafka:    {report.kafka_before}",
        *(f"  - {action}" for action in report.actions),
        *([f"  now:      {report.database_after}"] if report.database_after != report.database_before else []),
        *(f"  to settle: {remedy}" for remedy in report.remedies if not report.settled),
    ]
