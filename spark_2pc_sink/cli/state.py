"""``spark-2pc state``: make, migrate and check the tables in the database."""

from __future__ import annotations

import argparse
from contextlib import closing
from typing import Final

from jdbc_state import SqlStateStore, ddl
from spark_2pc_sink.cli.exits import EXIT_IN_DOUBT, EXIT_NOT_KNOWN, EXIT_SETTLED
from spark_2pc_sink.cli.options import add_database, add_options, given_options
from spark_2pc_sink.cli.output import CommandResult
from spark_2pc_sink.options import RecoveryOptions
from spark_2pc_sink.options.settings import Theme, options_of, setting_of
from spark_2pc_sink.recovery.api import open_store

_EXITS: Final = (
    "exit codes: 0 a driver of this version can start; 1 the database refused, or could not be reached; 2 wrong "
    "command line or option; 3 something is missing, or has another version; 4 there is no state table"
)


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    state = commands.add_parser("state", help="create, migrate and check the tables in the database", epilog=_EXITS)
    within = state.add_subparsers(required=True, metavar="COMMAND")

    printing = within.add_parser("ddl", help="print the statements that create the tables; connects to nothing")
    add_options(printing, *(item.name for item in options_of(RecoveryOptions) if setting_of(item).group is Theme.STATE))
    printing.add_argument("--role", help="role that gets the privileges of a driver")
    printing.set_defaults(run=_ddl)

    about = "migrate the tables to this version, as their owner; safe to run twice, and while jobs run"
    migrating = within.add_parser("migrate", help=about, epilog=_EXITS)
    add_database(migrating)
    migrating.set_defaults(run=_migrate)

    checking = within.add_parser("check", help="show the version of the tables and what is missing", epilog=_EXITS)
    add_database(checking)
    checking.add_argument("--role", help="role whose privileges are checked (default: the connected role)")
    checking.set_defaults(run=_check)


def _ddl(given: argparse.Namespace) -> CommandResult:
    # The statements need no database, but the options require one.
    options = RecoveryOptions.of_every_sink(**{"database": "postgresql://", **given_options(given)})
    statements = ddl(options.store_settings(), role=given.role)
    return CommandResult(fields={"ddl": statements}, text=f"{statements}\n")


def _migrate(given: argparse.Namespace) -> CommandResult:
    with _store(given) as store:
        done = store.migrate()
    lines = done or ["nothing to do: the tables have this version"]
    return CommandResult(fields={"done": done}, text="".join(f"{line}\n" for line in lines))


def _check(given: argparse.Namespace) -> CommandResult:
    with _store(given) as store:
        report = store.check_schema(given.role)
    code = (EXIT_SETTLED if report.ready else EXIT_IN_DOUBT) if report.there else EXIT_NOT_KNOWN
    fields = {"there": report.there, "ready": report.ready, "lines": list(report.lines)}
    return CommandResult(exit_code=code, fields=fields, text="".join(f"{line}\n" for line in report.lines))


def _store(given: argparse.Namespace) -> closing[SqlStateStore]:
    return closing(open_store(RecoveryOptions.of_every_sink(**given_options(given))))
