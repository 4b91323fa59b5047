"""Commands that need only the database.

``spark-2pc history`` lists the batches of sinks, and who did what to them, when and why; ``state`` makes, migrates and
checks the tables.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import closing
from datetime import datetime, timezone
from itertools import compress
from typing import Any, Final

from jdbc_state import ActionLine, ddl
from spark_2pc_sink.cli.options import add_database, add_options, add_sink, given_options
from spark_2pc_sink.cli.output import EXIT_IN_DOUBT, EXIT_NOT_KNOWN, EXIT_SETTLED, CommandResult, as_table
from spark_2pc_sink.options import RecoveryOptions
from spark_2pc_sink.options.settings import Theme, options_of, refused, setting_of
from spark_2pc_sink.plural import counted, first_of
from spark_2pc_sink.recovery.api import LAST, BatchEntry, Entry, history, open_store, utc

_EXITS: Final = (
    "exit codes: 0 there are entries; 1 the database refused or could not be reached; 2 wrong command line or option; "
    "4 no entries: no sink of that name has run, or none since then"
)
_OF_STATE: Final = (
    "exit codes: 0 a driver of this version can start; 1 the database refused, or could not be reached; 2 wrong "
    "command line or option; 3 something is missing, or has another version; 4 there is no state table"
)
_COLUMNS: Final = ("Time", "TransactionalId", "What", "Batch", "Who", "Reason", "Detail")
#: How many of a batch's partitions a line names; JSON has all.
_PARTITIONS_MAX: Final = 3


def add_commands(commands: Any) -> None:
    about = "list the batches, and what drivers and people did: who, when, why; reads only the database"
    command = commands.add_parser("history", help=about, epilog=_EXITS)
    add_database(command, positional=True)
    add_sink(command, about="one sink (default: that of --config, or else all)")
    about = f"the newest N entries (default: {LAST}, or with --since all)"
    command.add_argument("--last", type=int, metavar="N", help=about)
    about = "no entries before this time: ISO 8601, such as 2026-11-24T03:00; UTC unless a zone is given"
    command.add_argument("--since", metavar="TIME", help=about)
    only = command.add_mutually_exclusive_group()
    only.add_argument("--batches-only", action="store_true", help="without what drivers and people did")
    only.add_argument("--actions-only", action="store_true", help="without the batches")
    command.set_defaults(run=_history)

    state = commands.add_parser("state", help="create, migrate and check the tables in the database", epilog=_OF_STATE)
    within = state.add_subparsers(required=True, metavar="COMMAND")
    printing = within.add_parser("ddl", help="print the statements that create the tables; connects to nothing")
    add_options(printing, *(item.name for item in options_of(RecoveryOptions) if setting_of(item).group is Theme.STATE))
    printing.add_argument("--role", help="role that gets the privileges of a driver")
    printing.set_defaults(run=_ddl)
    about = "migrate the tables to this version, as their owner; safe to run twice, and while jobs run"
    migrating = within.add_parser("migrate", help=about, epilog=_OF_STATE)
    add_database(migrating)
    migrating.set_defaults(run=_migrate)
    checking = within.add_parser("check", help="show the version of the tables and what is missing", epilog=_OF_STATE)
    add_database(checking)
    checking.add_argument("--role", help="role whose privileges are checked (default: the connected role)")
    checking.set_defaults(run=_check)


def _history(given: argparse.Namespace) -> CommandResult:
    since = None if given.since is None else _moment(given.since)
    kinds: dict[str, Any] = {"batches": not given.actions_only, "actions": not given.batches_only}
    report = history(**given_options(given), last=given.last, since=since, **kinds)
    code = EXIT_SETTLED if report.entries else EXIT_NOT_KNOWN
    return CommandResult(exit_code=code, fields={"entries": report.as_json()}, text=_table(report.entries))


def _table(entries: Sequence[Entry]) -> str:
    """One line for each; columns that are always empty are omitted, and the sink if it is always the same."""
    if not entries:
        return "no entries\n"
    lines = [_line(entry) for entry in entries]
    told = [any(cells) for cells in zip(*lines, strict=True)]
    told[_COLUMNS.index("TransactionalId")] = len({entry.transactional_id for entry in entries}) > 1
    return as_table(list(compress(_COLUMNS, told)), [list(compress(line, told)) for line in lines])


def _moment(text: str) -> datetime:
    try:
        # Python 3.10 does not accept Z.
        moment = datetime.fromisoformat(f"{text[:-1]}+00:00" if text.endswith(("Z", "z")) else text)
    except ValueError as error:
        rule, remedy = "must be a time in ISO 8601", "pass 2026-11-24T03:00, or 2026-11-24T04:00+01:00"
        raise refused("--since", text, rule, remedy) from error
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=timezone.utc)


def _line(entry: Entry) -> tuple[str, ...]:
    what, who, reason, detail = _batch(entry) if isinstance(entry, BatchEntry) else _action(entry)
    batch = "" if entry.batch_id is None else str(entry.batch_id)
    return utc(entry.at, timespec="seconds"), entry.transactional_id, what, batch, who, reason, detail


def _batch(entry: BatchEntry) -> tuple[str, ...]:
    partitions = [f"{name} {first}..{last}" for name, (first, last) in sorted(entry.kafka_offsets.items())]
    settled = "" if entry.settled_at is None else f" at {utc(entry.settled_at, timespec='seconds')}"
    counts = f"{counted(entry.row_count, 'row')}, {counted(entry.record_count, 'record')}"
    shown = first_of(partitions, _PARTITIONS_MAX, "partition")
    return "batch", "", "", "; ".join([f"{entry.event}, now {entry.status}{settled}", counts, *shown])


def _action(line: ActionLine) -> tuple[str, ...]:
    who = f"{line.os_user}@{line.host} by {line.program}, role {line.role}"
    detail = str(line.detail.get("did", ""))
    if line.generation is not None and not detail:
        detail = f"generation {line.generation}"
    if "rebuilt_from" in line.detail:
        detail += f"; rebuilt the lost row from line {line.detail['rebuilt_from']} of its history"
    if "outcome" in line.detail:
        detail = f"{line.detail['outcome']}: {detail}" if detail else str(line.detail["outcome"])
    return line.action, who, " ".join((line.reason or "").split()), " ".join(detail.split())


def _ddl(given: argparse.Namespace) -> CommandResult:
    # The statements need no database, but the options require one.
    options = RecoveryOptions.of_every_sink(**{"database": "postgresql://", **given_options(given)})
    statements = ddl(options.store_settings(), role=given.role)
    return CommandResult(fields={"ddl": statements}, text=f"{statements}\n")


def _migrate(given: argparse.Namespace) -> CommandResult:
    with closing(open_store(RecoveryOptions.of_every_sink(**given_options(given)))) as store:
        done = store.migrate()
    lines = done or ["nothing to do: the tables have this version"]
    return CommandResult(fields={"done": done}, text="".join(f"{line}\n" for line in lines))


def _check(given: argparse.Namespace) -> CommandResult:
    with closing(open_store(RecoveryOptions.of_every_sink(**given_options(given)))) as store:
        report = store.check_schema(given.role)
    code = (EXIT_SETTLED if report.ready else EXIT_IN_DOUBT) if report.there else EXIT_NOT_KNOWN
    fields = {"there": report.there, "ready": report.ready, "lines": list(report.lines)}
    return CommandResult(exit_code=code, fields=fields, text="".join(f"{line}\n" for line in report.lines))
