"""``spark-2pc state``: make, migrate and check the tables in the database."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from jdbc_state import SqlStateStore, StoreSettings, ddl
from spark_2pc_sink.cli.exits import EXIT_IN_DOUBT, EXIT_NOT_KNOWN, EXIT_SETTLED
from spark_2pc_sink.options import RecoveryOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

_EXITS: Final = (
    "exit codes: 0 a driver of this version can start; 1 the database refused, or could not be reached; 2 wrong "
    "command line or option; 3 something is missing, or of another version; 4 there is no state table"
)
_NAMES: Final = ("state_schema", "state_table", "history_table", "history_batches")


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands to those of the program."""
    state = commands.add_parser("state", help="make, migrate and check the tables in the database", epilog=_EXITS)
    within = state.add_subparsers(required=True, metavar="COMMAND")

    printing = within.add_parser("ddl", help="print the statements that make the tables; connects to nothing")
    _add_names(printing)
    printing.add_argument("--role", help="grant it what a driver needs")
    printing.set_defaults(run=_ddl)

    migrating = within.add_parser(
        "migrate",
        help="bring the tables of an earlier version to this one, as their owner; safe to run twice, and beside jobs",
        epilog=_EXITS,
    )
    _add_database(migrating)
    migrating.set_defaults(run=_migrate)

    checking = within.add_parser("check", help="say which version is there and what is missing", epilog=_EXITS)
    _add_database(checking)
    checking.add_argument("--role", help="whose privileges (default: those of the connected role)")
    checking.add_argument("--json", action="store_true", help="print JSON")
    checking.set_defaults(run=_check)


def _add_names(command: argparse.ArgumentParser) -> None:
    command.add_argument("--state-schema", help="schema of the tables (default: public)")
    command.add_argument("--state-table", help="name of the state table (default: kafka_transaction_state)")
    command.add_argument("--history-table", help="name of the history table (default: the state table's, _history)")
    command.add_argument("--history-batches", type=int, metavar="N", help="0: without a history (default: 1000)")


def _add_database(command: argparse.ArgumentParser) -> None:
    command.add_argument("--database", required=True, metavar="URL", help="SQLAlchemy URL of the database")
    _add_names(command)


def _ddl(given: argparse.Namespace) -> int:
    # The statements need no database, and the options want one.
    settings = StoreSettings(**_options(given, database="postgresql://").store_settings())
    sys.stdout.write(ddl(settings, role=given.role) + "\n")
    return EXIT_SETTLED


def _migrate(given: argparse.Namespace) -> int:
    with _store(given) as store:
        done = store.migrate()
    sys.stdout.write("".join(f"{line}\n" for line in done or ["nothing to do: the tables are of this version"]))
    return EXIT_SETTLED


def _check(given: argparse.Namespace) -> int:
    with _store(given) as store:
        report = store.check_schema(given.role)
    if given.json:
        sys.stdout.write(json.dumps(asdict(report), indent=2) + "\n")
    else:
        sys.stdout.write("".join(f"{line}\n" for line in report.lines))
    if not report.there:
        return EXIT_NOT_KNOWN
    return EXIT_SETTLED if report.ready else EXIT_IN_DOUBT


def _store(given: argparse.Namespace) -> closing[SqlStateStore]:
    options = _options(given, database=given.database)
    return closing(SqlStateStore(options.database, StoreSettings(**options.store_settings())))


def _options(given: argparse.Namespace, *, database: str) -> RecoveryOptions:
    """Names and time-outs, as the other commands have them. Kafka is not asked here, and no sink is meant."""
    named: Mapping[str, Any] = {name: getattr(given, name) for name in _NAMES if getattr(given, name) is not None}
    sides = {"kafka": {"bootstrap.servers": "unused:9092"}, "database": database}
    return RecoveryOptions.parse(transactional_id="state", **sides, **named)
