"""``spark-2pc status`` and ``recover``: show the sinks that are in doubt, and settle them."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any, Final

from spark_2pc_sink.cli.exits import EXIT_IN_DOUBT, EXIT_NOT_KNOWN, EXIT_SETTLED
from spark_2pc_sink.cli.kafka_properties import add_connection, read_connection
from spark_2pc_sink.errors import HaltError, TakeOverRefusedError
from spark_2pc_sink.options import OperatorDecision
from spark_2pc_sink.recipe.open_transaction import ABORT, COMMIT
from spark_2pc_sink.recovery.api import recover, status
from spark_2pc_sink.recovery.report import RecoveryReport

if TYPE_CHECKING:
    from collections.abc import Sequence


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
    settling.add_argument("--dry-run", action="store_true", help="only say what would be done")
    settling.add_argument(
        "--take-over", action="store_true", help="also when its driver lives, or may live, which this then stops"
    )
    settling.add_argument(
        "--adopt",
        action="store_true",
        help="take over a row of another Kafka cluster, or an id that Kafka knows already",
    )
    settling.add_argument(
        "--accept-loss",
        metavar="FIRST..LAST",
        help="with --adopt: go on without these batches, which the database has lost ('none': it has lost none)",
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
    settling.add_argument(
        "--open-transaction",
        choices=[COMMIT, ABORT],
        help="with --adopt, where the state row and its history are lost and Kafka has a transaction open: commit when "
        "the table has the rows of its records, abort when it has none of them",
    )
    settling.add_argument(
        "--batch",
        type=int,
        metavar="N",
        help="with --open-transaction commit its batch: the newest in the checkpoint's offsets/ that is not in its "
        "commits/; with --drop or --accept-replay the batch that is meant, which a refusal names: no other is touched",
    )
    settling.set_defaults(run=_recover)


def _add_common(command: argparse.ArgumentParser) -> None:
    add_connection(command)
    command.add_argument("--database", required=True, metavar="URL", help="SQLAlchemy URL of the database")
    command.add_argument("--state-schema", help="schema of the state table (default: public)")
    command.add_argument("--state-table", help="name of the state table (default: kafka_transaction_state)")
    command.add_argument("--history-table", help="name of the history table (default: the state table's, _history)")
    command.add_argument(
        "--history-batches",
        type=int,
        metavar="N",
        help="lines of the history, as on the sink (default: 1000)",
    )
    command.add_argument("--json", action="store_true", help="print JSON, one object per sink in a list")


def _status(given: argparse.Namespace) -> int:
    return _report(status(transactional_id=given.transactional_id, **_common(given)), as_json=given.json)


def _recover(given: argparse.Namespace) -> int:
    try:
        report = recover(
            transactional_id=given.transactional_id,
            dry_run=given.dry_run,
            take_over=given.take_over,
            decision=given.decision,
            open_transaction=given.open_transaction,
            batch=given.batch,
            adopt=given.adopt,
            accept_loss=given.accept_loss,
            **_common(given),
        )
    except (HaltError, TakeOverRefusedError) as error:
        # The caller prints the error on standard error, for people.
        if given.json:
            _show([_report_of(error)], as_json=True)
        raise
    return _report([report], as_json=given.json)


def _report_of(error: HaltError | TakeOverRefusedError) -> RecoveryReport:
    """The report of an error; of a halt that the database itself has raised, with what the error tells."""
    if isinstance(error.report, RecoveryReport):
        return error.report
    cause, reason = (error.cause, error.reason) if isinstance(error, HaltError) else (None, error.driver)
    return RecoveryReport(
        transactional_id=error.transactional_id, settled=False, cause=cause, reason=reason, remedies=error.remedies
    )


def _report(reports: Sequence[RecoveryReport], *, as_json: bool) -> int:
    _show(reports, as_json=as_json)
    if not all(report.settled for report in reports):
        return EXIT_IN_DOUBT
    return EXIT_SETTLED if reports and all(report.known for report in reports) else EXIT_NOT_KNOWN


def _common(given: argparse.Namespace) -> dict[str, Any]:
    named = {name: getattr(given, name) for name in ("state_schema", "state_table", "history_table", "history_batches")}
    return {
        "kafka": read_connection(given),
        "database": given.database,
        **{name: value for name, value in named.items() if value is not None},
    }


def _show(reports: Sequence[RecoveryReport], *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps([report.as_json() for report in reports], indent=2) + "\n")
        return
    if not reports:
        sys.stdout.write("no state row: no sink has run against this database with a state table of this name\n")
    sys.stdout.write("".join(f"{report}\n" for report in reports))
