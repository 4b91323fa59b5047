"""``spark-2pc transactions``: the commands of ``kafka-transactions.sh``, its flags and its columns (KIP-664)."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from typing import Any, Final, TypeAlias

from spark_2pc_sink.choices.choice import RECOVER
from spark_2pc_sink.cli import options
from spark_2pc_sink.cli.output import EXIT_IN_DOUBT, EXIT_SETTLED, CommandResult, as_table
from spark_2pc_sink.errors import AbortRefusedError, StateStoreError
from spark_2pc_sink.ids import ProducerIdAndEpoch, TransactionState
from spark_2pc_sink.options import KafkaOptions, RecoveryOptions
from spark_2pc_sink.options.settings import refused
from spark_2pc_sink.recovery.api import open_store
from spark_2pc_sink.recovery.report import kafka_connection
from spark_2pc_sink.transactions import ListFilter, TransactionTool, ending

_log = logging.getLogger(__name__)

_MINUTE_MS: Final = 60_000
#: Columns of Kafka's tool: the header, and the field of the value or a function of it.
Columns: TypeAlias = Mapping[str, str | Callable[[Any], object]]
_PRODUCER: Final = {"ProducerId": "producer_id", "ProducerEpoch": "producer_epoch"}
_OPEN: Final = {
    "Topic": "topic",
    "Partition": "partition",
    **_PRODUCER,
    "CoordinatorEpoch": "coordinator_epoch",
    "StartOffset": "start_offset",
}
_RUNBOOK: Final = """\
when read_committed consumers are blocked:
  1. find-hanging lists open transactions that no coordinator will end, with the reason; exit code 3 if there is one.
     A transaction that a coordinator knows is not listed, however old it is.
  2. abort ends one of those, in one partition. It checks the partition and every coordinator, twice, and refuses if a
     coordinator knows the transaction: its producer could still commit what readers skipped.
  3. list --state Ongoing --running-longer-than-ms 600000 lists the ids of those that a coordinator knows, and describe
     their partitions and age. One with two-phase commit never times out: only its owner ends it. If that is a sink,
     `spark-2pc recover` ends it as its database has decided. With --database, sinks are marked, with the command.
  4. force-terminate is for those whose owner is gone: the coordinator itself aborts, in every partition, and fences
     the producer. If the id belongs to a sink after all, and its database has decided the batch, the row becomes
     `owed`, and `spark-2pc recover` or the next start of the job settles it. Two-phase commit is off for the id
     until its owner starts again.

permissions: DESCRIBE on every transactional id, DESCRIBE and READ on the topics; for abort CLUSTER_ACTION or ALTER on
the cluster; for force-terminate WRITE on the transactional id.

exit codes: 0 done, nothing hangs; 1 a broker refused or could not be reached; 2 wrong command line; 3 a transaction
hangs, or abort refused.
"""


def add_commands(commands: Any) -> None:
    about = "list the transactions of a Kafka cluster, find those that hang, and end them"
    parser = commands.add_parser(
        "transactions",
        help=about,
        description=f"{about[0].upper()}{about[1:]}.",
        epilog=_RUNBOOK,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_connection(parser, prefix=options.OUTER)
    within = parser.add_subparsers(required=True, metavar="COMMAND")

    listing = _command(within, "list", _list, "list transactional ids and the state of their transactions")
    names = ("--duration-filter", "--running-longer-than-ms")
    about = "only transactions that began longer ago, and ids without an open transaction. Negative: all"
    listing.add_argument(*names, dest="running_longer_than_ms", type=int, metavar="MS", help=about)
    about = "only ids that this regular expression matches as a whole"
    listing.add_argument("--transactional-id-pattern", metavar="RE2", help=about)
    about = "only this state, such as Ongoing; may be repeated"
    listing.add_argument("--state", action="append", default=[], metavar="STATE", help=about)
    about = "only this one; may be repeated"
    listing.add_argument("--producer-id", action="append", default=[], type=int, metavar="N", help=about)
    about = "ask only this broker, for the ids that it coordinates; the others may be down"
    listing.add_argument("--broker-id", "--broker", type=int, metavar="N", help=about)

    describing = _command(within, "describe", _describe, "describe the transaction of one transactional id")
    describing.add_argument("--transactional-id", required=True, metavar="ID")

    about = "describe the producers that a partition remembers"
    producers = _command(within, "describe-producers", _describe_producers, about)
    _add_partition(producers)
    producers.add_argument("--broker-id", type=int, metavar="N", help="the replica to ask (default: the leader)")

    about = "find open transactions that no coordinator will end; without --topic or --broker-id in the whole cluster"
    finding = _command(within, "find-hanging", _find_hanging, about)
    finding.add_argument("--broker-id", type=int, metavar="N", help="only partitions with a copy on this broker")
    finding.add_argument("--topic", metavar="TOPIC", help="only this topic")
    finding.add_argument("--partition", type=int, metavar="N", help="only this partition of --topic")
    about = "leave out transactions whose last record has a later timestamp than this long ago (default: 15)"
    finding.add_argument("--max-transaction-timeout", type=int, default=15, metavar="MINUTES", help=about)

    aborting = _command(within, "abort", _abort, "end a hanging transaction with an abort marker in one partition")
    _add_partition(aborting)
    about = "first offset of the transaction; alternatively:"
    aborting.add_argument("--start-offset", type=int, metavar="OFFSET", help=about)
    aborting.add_argument("--producer-id", type=int, metavar="N")
    aborting.add_argument("--producer-epoch", type=int, metavar="N")
    about = "coordinator epoch of the marker; negative means 0"
    aborting.add_argument("--coordinator-epoch", type=int, metavar="N", help=about)

    about = "have the coordinator abort what an id has open, and fence its producer"
    # The alias and the second spelling are used by Kafka's own command.
    aliases = ["forceTerminateTransaction"]
    terminating = _command(within, "force-terminate", _force_terminate, about, aliases=aliases)
    terminating.add_argument("--transactional-id", "--transactionalId", required=True, metavar="ID")
    options.add_options(terminating, "reason")


def _command(within: Any, name: str, run: Any, about: str, *, aliases: Sequence[str] = ()) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = within.add_parser(name, help=about, description=about, aliases=aliases)
    # The state table shows whether an id is a sink's, whose transactions `recover` ends.
    options.add_sides(parser, required=False)
    parser.set_defaults(run=run)
    return parser


def _add_partition(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--topic", required=True, metavar="TOPIC")
    parser.add_argument("--partition", required=True, type=int, metavar="N")


def _list(given: argparse.Namespace) -> CommandResult:
    asked = {name: getattr(given, name) for name in ("running_longer_than_ms", "transactional_id_pattern", "broker_id")}
    wanted = ListFilter(states=tuple(given.state), producer_ids=tuple(given.producer_id), **asked)
    kafka = options.read_connection(given)
    with TransactionTool(kafka=kafka) as tool:
        rows = tool.list_transactions(wanted)
    sinks = look_up_sinks(given, kafka)
    columns = {"TransactionalId": "transactional_id", "Coordinator": "coordinator", "ProducerId": "producer_id"}
    found = [{**asdict(row), "sink": _is_sink(sinks, row.transactional_id)} for row in rows]
    open_ids = [row["transactional_id"] for row in found if row["sink"] and row["state"] == TransactionState.ONGOING]
    ends = _complete(kafka, [ending.about_id(RECOVER, name, ending.AS_DECIDED) for name in open_ids])
    text = _table(rows, {**columns, "TransactionState": "state"})
    return CommandResult(fields={"transactions": found}, text=text, remedies=ends)


def _describe(given: argparse.Namespace) -> CommandResult:
    kafka = options.read_connection(given)
    with TransactionTool(kafka=kafka) as tool:
        found = tool.describe(given.transactional_id)
    is_sink = _is_sink(look_up_sinks(given, kafka), found.transactional_id)
    columns: Columns = {
        "CoordinatorId": "coordinator",
        "TransactionalId": "transactional_id",
        **_PRODUCER,
        "TransactionState": "state",
        "TransactionTimeoutMs": "timeout_ms",
        "CurrentTransactionStartTimeMs": "start_time_ms",
        "TransactionDurationMs": "duration_ms",
        "TopicPartitions": lambda row: ",".join(map(str, row.partitions)),
    }
    ends = ending.end_known(found, is_sink=is_sink) if found.state == TransactionState.ONGOING else ()
    fields = {"transaction": {**asdict(found), "sink": is_sink}}
    return CommandResult(fields=fields, text=_table([found], columns), remedies=_complete(kafka, ends))


def _describe_producers(given: argparse.Namespace) -> CommandResult:
    with TransactionTool(kafka=options.read_connection(given)) as tool:
        rows = tool.describe_producers(given.topic, given.partition, broker_id=given.broker_id)
    columns: Columns = {
        **_PRODUCER,
        "LatestCoordinatorEpoch": "coordinator_epoch",
        "LastSequence": "last_sequence",
        "LastTimestamp": "last_timestamp_ms",
        "CurrentTransactionStartOffset": "start_offset",
    }
    return CommandResult(fields={"producers": [asdict(row) for row in rows]}, text=_table(rows, columns))


def _find_hanging(given: argparse.Namespace) -> CommandResult:
    if given.max_transaction_timeout < 0:
        rule = "must be a number of minutes, 0 or more"
        remedy = "pass transaction.max.timeout.ms of the brokers in minutes"
        raise refused("--max-transaction-timeout", given.max_transaction_timeout, rule, remedy)
    kafka, place = options.read_connection(given), {"topic": given.topic, "partition": given.partition}
    limit_ms = given.max_transaction_timeout * _MINUTE_MS
    with TransactionTool(kafka=kafka) as tool:
        rows = tool.find_hanging(**place, broker_id=given.broker_id, max_timeout_ms=limit_ms)
    sinks = look_up_sinks(given, kafka) if rows else None
    columns: Columns = {
        **_OPEN,
        "LastTimestamp": "last_timestamp_ms",
        "Duration(min)": lambda row: row.duration_ms // _MINUTE_MS,
        "Reason": "reason",
    }
    hanging: list[dict[str, Any]] = []
    for row in rows:
        sink = None if sinks is None else sinks.producers.get(row.producer_id)
        remedies = _complete(kafka, ending.end_hanging(row, sink=sink))
        hanging.append({**asdict(row), "sink": sink, "remedies": list(remedies)})
    return CommandResult(
        exit_code=EXIT_IN_DOUBT if rows else EXIT_SETTLED,
        fields={"hanging": hanging},
        text=_table(rows, columns),
        # Not on stdout, where Kafka's tool prints only the table.
        remedies=tuple(remedy for one in hanging for remedy in one["remedies"]),
    )


def _abort(given: argparse.Namespace) -> CommandResult:
    found = {"start_offset": given.start_offset, "producer": _producer(given)}
    kafka = options.read_connection(given)
    with TransactionTool(kafka=kafka) as tool:
        try:
            done = tool.abort(given.topic, given.partition, **found, coordinator_epoch=given.coordinator_epoch)
        except AbortRefusedError as error:
            sinks = None if error.owner is None else look_up_sinks(given, kafka)
            if sinks is None:
                raise
            ends = ending.end_known(error.owner, is_sink=_is_sink(sinks, error.owner.transactional_id))
            raise replace(error, remedies=_complete(kafka, ends)) from error
    text = _table([done], {**_OPEN, "Reason": "reason"})
    return CommandResult(fields={"aborted": asdict(done)}, text=text)


def _is_sink(sinks: ending.KnownSinks | None, transactional_id: str) -> bool | None:
    return None if sinks is None else transactional_id in sinks.ids


def _complete(kafka: Mapping[str, str], remedies: Sequence[str]) -> tuple[str, ...]:
    return ending.with_cluster(remedies, kafka_connection(KafkaOptions.parse(kafka))) if remedies else ()


def _producer(given: argparse.Namespace) -> ProducerIdAndEpoch | None:
    """The producer, named with both epochs instead of --start-offset, as in Kafka's tool; otherwise None."""
    parts = {
        "--producer-id": given.producer_id,
        "--producer-epoch": given.producer_epoch,
        "--coordinator-epoch": given.coordinator_epoch,
    }
    by_offset = given.start_offset is not None
    wrong = [name for name, value in parts.items() if (value is not None) == by_offset]
    if wrong:
        names = "by --start-offset, or by --producer-id, --producer-epoch and --coordinator-epoch together"
        remedy = "leave it out" if by_offset else "pass --start-offset as find-hanging shows it"
        raise refused(wrong[0], parts[wrong[0]], f"the transaction must be named either {names}", remedy)
    return None if by_offset else ProducerIdAndEpoch(given.producer_id, given.producer_epoch)


def _force_terminate(given: argparse.Namespace) -> CommandResult:
    said = options.given_options(given)
    note: dict[str, Any] = {name: said[name] for name in ("database", "state_schema", "state_table") if name in said}
    if "database" in note or "reason" in said:
        note["reason"] = options.reason_for(given, "force-terminate")
    kafka = options.read_connection(given)
    with TransactionTool(kafka=kafka) as tool:
        done = tool.force_terminate(given.transactional_id, **note)
    not_logged = "this action was not logged: pass --database URL and --reason to record it in spark-2pc history"
    notes = done.warnings if "database" in note else (*done.warnings, not_logged)
    aborted = done.state_before == TransactionState.ONGOING
    may_be_sink = aborted and _is_sink(look_up_sinks(given, kafka), done.transactional_id) is not False
    check = ending.about_id(RECOVER, done.transactional_id, ending.AFTER_TERMINATION)
    remedies = _complete(kafka, [check] if may_be_sink else [])
    columns = {"TransactionalId": "transactional_id", "StateBefore": "state_before"}
    text = _table([done], {**columns, **_PRODUCER, "TransactionTimeoutMs": "timeout_ms"})
    return CommandResult(fields={"terminated": asdict(done)}, text=text, notes=notes, remedies=remedies)


def _table(values: Sequence[Any], columns: Columns) -> str:
    cells = columns.values()
    rows = [[getattr(value, cell) if isinstance(cell, str) else cell(value) for cell in cells] for value in values]
    return as_table(list(columns), rows)


def look_up_sinks(given: argparse.Namespace, kafka: Mapping[str, str]) -> ending.KnownSinks | None:
    """The sinks, for remedies; None if no database is named, or, as the log then says, it cannot be read."""
    known = options.given_options(given).items()
    said = {name: value for name, value in known if name not in ("transactional_id", "reason")}
    if "database" not in said:
        return None
    try:
        with closing(open_store(RecoveryOptions.of_every_sink(kafka=kafka, **said))) as store:
            return ending.KnownSinks.of([*store.read_all(), *store.read_lost()])
    except StateStoreError as error:
        _log.warning("cannot tell which transactions belong to sinks: %s", error)
        return None
