"""``spark-2pc transactions``: the commands of ``kafka-transactions.sh``, its flags and its columns (KIP-664)."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from spark_2pc_sink.cli.exits import EXIT_IN_DOUBT, EXIT_SETTLED
from spark_2pc_sink.cli.kafka_properties import add_connection, read_connection
from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.ids import ProducerIdAndEpoch
from spark_2pc_sink.transactions import HangingTransaction, ListFilter, TransactionTool

_MINUTE_MS: Final = 60_000
#: Tells the connection's options before the command's name from those behind it.
_OUTER: Final = "outer_"

_RUNBOOK: Final = """\
when readers of committed data stand still:
  1. find-hanging says which open transactions no coordinator will end, and why; exit code 3 if there is one.
     A transaction that its coordinator will still end is not shown, however old it is.
  2. abort ends one of those, in one partition. It looks at the partition and at every coordinator, twice, and
     refuses where a coordinator knows the transaction: its producer could still commit what readers skipped.
  3. list --state Ongoing --running-longer-than-ms 600000 names the ids of those that a coordinator knows, and describe
     their partitions and age. One with two-phase commit never times out: only its owner ends it. If that is a sink,
     `spark-2pc recover` does, as its database has decided.
  4. force-terminate is for those whose owner is gone: the coordinator itself aborts, in every partition, and fences
     the producer. If the id is one of a sink after all, and its database has decided the batch, the row becomes
     `owed`, and `spark-2pc recover` or the next start of the job settles it. Two-phase commit is off for the id
     until its owner starts again.

permissions: DESCRIBE on every transactional id, DESCRIBE and READ on the topics; for abort CLUSTER_ACTION or ALTER on
the cluster; for force-terminate WRITE on the transactional id.

exit codes: 0 done, nothing hangs; 1 a broker refused or could not be reached; 2 wrong command line; 3 something hangs,
or abort refused.
"""


def add_commands(commands: Any) -> None:
    """Add ``transactions`` with its commands to those of ``spark-2pc``."""
    about = "look at the transactions of a Kafka cluster, find those that hang, and end them"
    parser = commands.add_parser(
        "transactions",
        help=about,
        description=f"{about[0].upper()}{about[1:]}.",
        epilog=_RUNBOOK,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_connection(parser, prefix=_OUTER)
    within = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_looking(within)
    _add_hanging(within)
    _add_ending(within)


def _add_looking(within: Any) -> None:
    listing = _command(within, "list", _list, "list transactional ids and the state of their transactions")
    listing.add_argument(
        "--duration-filter",
        "--running-longer-than-ms",
        dest="running_longer_than_ms",
        type=int,
        metavar="MS",
        help="only transactions that began longer ago; ids without an open transaction pass too. Negative: all",
    )
    listing.add_argument(
        "--transactional-id-pattern", metavar="RE2", help="only ids that this regular expression matches as a whole"
    )
    listing.add_argument(
        "--state", action="append", default=[], metavar="STATE", help="only this state, as Ongoing; may be repeated"
    )
    listing.add_argument(
        "--producer-id", action="append", default=[], type=int, metavar="N", help="only this one; may be repeated"
    )

    describing = _command(within, "describe", _describe, "describe the transaction of one transactional id")
    describing.add_argument("--transactional-id", required=True, metavar="ID")

    producers = _command(
        within, "describe-producers", _describe_producers, "describe the producers that a partition remembers"
    )
    _add_partition(producers)
    producers.add_argument("--broker-id", type=int, metavar="N", help="the replica to ask (default: the leader)")


def _add_hanging(within: Any) -> None:
    finding = _command(
        within,
        "find-hanging",
        _find_hanging,
        "find open transactions that no coordinator will end; without --topic or --broker-id in the whole cluster",
    )
    finding.add_argument("--broker-id", type=int, metavar="N", help="only partitions with a copy on this broker")
    finding.add_argument("--topic", metavar="TOPIC", help="only this topic")
    finding.add_argument("--partition", type=int, metavar="N", help="only this partition of --topic")
    finding.add_argument(
        "--max-transaction-timeout",
        type=int,
        default=15,
        metavar="MINUTES",
        help="leave out those whose last record is younger, by its own timestamp (default: 15)",
    )


def _add_ending(within: Any) -> None:
    aborting = _command(within, "abort", _abort, "end a hanging transaction with an abort marker in one partition")
    _add_partition(aborting)
    aborting.add_argument("--start-offset", type=int, metavar="OFFSET", help="where it begins; or else:")
    aborting.add_argument("--producer-id", type=int, metavar="N")
    aborting.add_argument("--producer-epoch", type=int, metavar="N")
    aborting.add_argument("--coordinator-epoch", type=int, metavar="N", help="of the marker; negative stands for 0")

    terminating = _command(
        within,
        "force-terminate",
        _force_terminate,
        "have the coordinator abort what an id has open, and fence its producer",
        aliases=["forceTerminateTransaction"],
    )
    # The second spelling is that of Kafka's own command.
    terminating.add_argument("--transactional-id", "--transactionalId", required=True, metavar="ID")


def _command(within: Any, name: str, run: Any, about: str, *, aliases: Sequence[str] = ()) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = within.add_parser(name, help=about, description=about, aliases=aliases)
    add_connection(parser)
    parser.add_argument("--json", action="store_true", help="print JSON, a list with one object per row")
    parser.set_defaults(run=run)
    return parser


def _add_partition(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--topic", required=True, metavar="TOPIC")
    parser.add_argument("--partition", required=True, type=int, metavar="N")


# --- commands ----------------------------------------------------------------------------------------------------


def _tool(given: argparse.Namespace) -> TransactionTool:
    return TransactionTool(kafka=read_connection(given, _OUTER))


def _list(given: argparse.Namespace) -> int:
    wanted = ListFilter(
        states=tuple(given.state),
        producer_ids=tuple(given.producer_id),
        running_longer_than_ms=given.running_longer_than_ms,
        transactional_id_pattern=given.transactional_id_pattern,
    )
    with _tool(given) as tool:
        rows = tool.list_transactions(wanted)
    _show(
        given,
        rows,
        ("TransactionalId", "Coordinator", "ProducerId", "TransactionState"),
        [(row.transactional_id, row.coordinator, row.producer_id, row.state) for row in rows],
    )
    return EXIT_SETTLED


def _describe(given: argparse.Namespace) -> int:
    with _tool(given) as tool:
        found = tool.describe(given.transactional_id)
    headers = (
        *("CoordinatorId", "TransactionalId", "ProducerId", "ProducerEpoch", "TransactionState"),
        *("TransactionTimeoutMs", "CurrentTransactionStartTimeMs", "TransactionDurationMs", "TopicPartitions"),
    )
    row = (
        *(found.coordinator, found.transactional_id, found.producer_id, found.producer_epoch, found.state),
        *(found.timeout_ms, found.start_time_ms, found.duration_ms, ",".join(map(str, found.partitions))),
    )
    _show(given, [found], headers, [row])
    return EXIT_SETTLED


def _describe_producers(given: argparse.Namespace) -> int:
    with _tool(given) as tool:
        rows = tool.describe_producers(given.topic, given.partition, broker_id=given.broker_id)
    headers = (
        *("ProducerId", "ProducerEpoch", "LatestCoordinatorEpoch", "LastSequence", "LastTimestamp"),
        "CurrentTransactionStartOffset",
    )
    cells = [
        (
            *(row.producer_id, row.producer_epoch, row.coordinator_epoch, row.last_sequence, row.last_timestamp_ms),
            row.start_offset,
        )
        for row in rows
    ]
    _show(given, rows, headers, cells)
    return EXIT_SETTLED


def _find_hanging(given: argparse.Namespace) -> int:
    if given.max_transaction_timeout < 0:
        raise ConfigurationError(
            option="--max-transaction-timeout",
            value=given.max_transaction_timeout,
            rule="it is a number of minutes, 0 or more",
            remedy="pass transaction.max.timeout.ms of the brokers in minutes",
        )
    with _tool(given) as tool:
        rows = tool.find_hanging(
            topic=given.topic,
            partition=given.partition,
            broker_id=given.broker_id,
            max_timeout_ms=given.max_transaction_timeout * _MINUTE_MS,
        )
    headers = (
        *("Topic", "Partition", "ProducerId", "ProducerEpoch", "CoordinatorEpoch"),
        *("StartOffset", "LastTimestamp", "Duration(min)", "Reason"),
    )
    cells = [
        (
            *(row.topic, row.partition, row.producer_id, row.producer_epoch, row.coordinator_epoch),
            *(row.start_offset, row.last_timestamp_ms, row.duration_ms // _MINUTE_MS, row.reason),
        )
        for row in rows
    ]
    _show(given, rows, headers, cells)
    for row in rows:
        # Not on stdout, which may be read by a program.
        sys.stderr.write(f"to end it: {_remedy(row)}\n")
    return EXIT_IN_DOUBT if rows else EXIT_SETTLED


def _remedy(row: HangingTransaction) -> str:
    where = f"--topic {shlex.quote(row.topic)} --partition {row.partition}"
    return f"spark-2pc transactions abort {where} --start-offset {row.start_offset}"


def _abort(given: argparse.Namespace) -> int:
    producer, coordinator_epoch = _producer(given)
    with _tool(given) as tool:
        done = tool.abort(
            given.topic,
            given.partition,
            start_offset=given.start_offset,
            producer=producer,
            coordinator_epoch=coordinator_epoch,
        )
    headers = ("Topic", "Partition", "ProducerId", "ProducerEpoch", "CoordinatorEpoch", "StartOffset", "Reason")
    row = (
        *(done.topic, done.partition, done.producer_id, done.producer_epoch, done.coordinator_epoch),
        *(done.start_offset, done.reason),
    )
    _show(given, [done], headers, [row])
    return EXIT_SETTLED


def _producer(given: argparse.Namespace) -> tuple[ProducerIdAndEpoch | None, int | None]:
    """The pair and the coordinator epoch: all three, instead of --start-offset, as Kafka's tool has it."""
    parts = {
        "--producer-id": given.producer_id,
        "--producer-epoch": given.producer_epoch,
        "--coordinator-epoch": given.coordinator_epoch,
    }
    missing = [name for name, value in parts.items() if value is None]
    present = [name for name, value in parts.items() if value is not None]
    if given.start_offset is None and not missing:
        return ProducerIdAndEpoch(given.producer_id, given.producer_epoch), given.coordinator_epoch
    if given.start_offset is not None and not present:
        return None, None
    wrong = present if given.start_offset is not None else missing
    raise ConfigurationError(
        option=wrong[0],
        value=parts[wrong[0]],
        rule="the transaction is named either by --start-offset, or by --producer-id, --producer-epoch and "
        "--coordinator-epoch together",
        remedy="leave it out" if given.start_offset is not None else "pass --start-offset as find-hanging shows it",
    )


def _force_terminate(given: argparse.Namespace) -> int:
    with _tool(given) as tool:
        done = tool.force_terminate(given.transactional_id)
    headers = ("TransactionalId", "StateBefore", "ProducerId", "ProducerEpoch", "TransactionTimeoutMs")
    row = (done.transactional_id, done.state_before, done.producer_id, done.producer_epoch, done.timeout_ms)
    _show(given, [done], headers, [row])
    for warning in done.warnings:
        sys.stderr.write(f"spark-2pc: {warning}\n")
    return EXIT_SETTLED


# --- printing ----------------------------------------------------------------------------------------------------


def _show(
    given: argparse.Namespace, values: Sequence[Any], headers: Sequence[str], rows: Sequence[Sequence[object]]
) -> None:
    if given.json:
        sys.stdout.write(json.dumps([asdict(value) for value in values], indent=2) + "\n")
        return
    sys.stdout.write(as_table(headers, rows))


def as_table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table as Kafka's tool prints it: columns of one width, a tab behind each; None for what is not there."""
    cells = [list(headers), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(line[index]) for line in cells) for index in range(len(headers))]
    return "".join(
        "\t".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() + "\n" for line in cells
    )
