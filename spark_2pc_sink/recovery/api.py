"""What operators call, without Spark: `recover`, `status` and `history`. The command line calls them.

A history is the batches of sinks and the actions of drivers and people, in one timeline: the batches are from the
history that each decision writes, the rest from the table of actions (`jdbc_state.actions`). Kafka is not contacted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime, timezone
from typing import Any, Final, Literal, TypeAlias

from jdbc_state import Actor, HistoryLine, SqlStateStore, StateRow
from jdbc_state.actions import ActionLine
from jdbc_state.history import ADOPTED, CLAIMED, EMPTY, NOTED, PASSED
from jdbc_state.sink_log import log_for_sink
from spark_2pc_sink.choices import Symptom, remedies
from spark_2pc_sink.clock import Deadline, SystemClock
from spark_2pc_sink.errors import TakeOverRefusedError
from spark_2pc_sink.kafka.cluster import Cluster
from spark_2pc_sink.kafka.produce_session import BatchListSender
from spark_2pc_sink.kafka.transaction_client import TransactionClient
from spark_2pc_sink.options import OperatorDecision, RecoveryOptions, StatusOptions, checks_keywords
from spark_2pc_sink.options.settings import refused
from spark_2pc_sink.recipe.resolve import OpenTransactionEnd
from spark_2pc_sink.recovery.recovery import OperatorChoice, Recovery, kept_for, resend
from spark_2pc_sink.recovery.report import RecoveryReport, StatusReport, sink_flags
from spark_2pc_sink.recovery.sink_survey import SinkSurvey

#: How long a live driver may be missing from the database: it checks its session every second, and reopens it if it
#: broke (the database was restarted, a connection was cut).
DRIVER_RETURN_MS: Final = 5_000
_CLOCK: Final = SystemClock()


@checks_keywords
def recover(
    *,
    transactional_id: str,
    kafka: Mapping[str, str | int | Callable[[str], Any]],
    database: str,
    dry_run: bool = False,
    take_over: bool = False,
    decision: OperatorDecision | None = None,
    batch: int | None = None,
    open_transaction: Literal["commit", "abort"] | None = None,
    takeover_grace_s: int = 300,
    database_password: Callable[[], str] | None = None,
    password_command: str | None = None,
    require_tls: bool = False,
    accept_database: str | None = None,
    adopt: bool = False,
    accept_loss: str | None = None,
    reason: str | None = None,
    state_schema: str = "public",
    state_table: str = "kafka_transaction_state",
    history_table: str | None = None,
    history_batches: int = 1_000,
    connect_timeout_s: int = 10,
    connect_deadline_ms: int = 30_000,
    claim_lock_timeout_ms: int = 2_000,
    claim_deadline_ms: int = 30_000,
    lock_timeout_ms: int = 30_000,
    statement_timeout_ms: int = 600_000,
    idle_in_transaction_timeout_ms: int = 60_000,
    commit_timeout_ms: int = 60_000,
    settle_deadline_ms: int = 120_000,
) -> RecoveryReport:
    """Settle what a crashed job left, as the sink does before its first batch of a run. It is safe to run twice.

    It claims the sink's row, which stops a job that still runs with this transactional id: its next batch raises
    `SupersededError`. So a row whose driver is alive, or may be, is left alone unless ``take_over`` is given. A
    service's records that Kafka lacks are resent. docs/reference/options.md explains all options and their defaults.

    Args:
        transactional_id, kafka, database and those of the database: as for the sink.
        dry_run: only report what would be done; nothing is claimed or changed.
        take_over: also if the driver is alive, or may be.
        decision, batch, open_transaction: the operator's decision, and the batch it is about; see `RecoveryOptions`.

    Raises:
        ConfigurationError: an option is wrong, or contradicts another. Nothing was changed.
        TakeOverRefusedError: something is in doubt, and the driver is alive, or may be. Nothing was claimed or written.
        ClaimRefusedError, HaltError, InDoubtError, KafkaError, StateStoreError and others: see `Recovery.run`.
    """
    options = RecoveryOptions.parse(**locals())
    with log_for_sink(transactional_id), Cluster(options.kafka) as cluster, closing(open_store(options)) as store:
        client = TransactionClient(cluster, transactional_id, options.kafka)
        end = None if options.open_transaction is None else OpenTransactionEnd(options.batch)
        choice = OperatorChoice(options.decision, options.batch, end)
        recovery = Recovery(options, kafka=client, store=store, clock=_CLOCK, choice=choice)
        row = store.read_standing(transactional_id)
        if dry_run or (row is None and not adopt):
            report = recovery.diagnosis.dry_run()
            return report if row is None else replace(report, driver=store.liveness(row))
        if row is not None and not take_over and (left := _left_alone(recovery, store, row, options)) is not None:
            return left
        recovered = recovery.run(query_id=None, run_id=None)
        if kept_for(store, recovered.row) is None:
            return recovered.report
        with recovery.explaining():
            sender = BatchListSender(cluster, transactional_id, options.kafka)
            return resend(recovered, kafka=client, store=store, send=sender.send).report


@checks_keywords
def status(
    *,
    kafka: Mapping[str, str | int | Callable[[str], Any]],
    database: str,
    transactional_id: str | None = None,
    match: str | None = None,
    timeout_s: int = 10,
    database_password: Callable[[], str] | None = None,
    password_command: str | None = None,
    require_tls: bool = False,
    state_schema: str = "public",
    state_table: str = "kafka_transaction_state",
    history_table: str | None = None,
    history_batches: int = 1_000,
) -> StatusReport:
    """Look at both sides of one sink, or of every sink that has or had a state row; nothing is claimed or changed.

    It returns within ``timeout_s``. If one side does not answer in time, or refuses, the report says so, and shows what
    the other side knows.

    Args:
        kafka, database and those of the database: as for the sink.
        transactional_id: one sink; None for all.

    Raises:
        ConfigurationError: an option is wrong.
    """
    given = locals()
    asked = StatusOptions(match=given.pop("match"), timeout_s=given.pop("timeout_s"))
    if transactional_id is not None and match is not None:
        raise refused("match", match, "must not be combined with transactional_id", "leave one of the two out")
    options = RecoveryOptions.of_every_sink(**given)
    return SinkSurvey(options, transactional_id=transactional_id, **vars(asked)).run()


def open_store(options: RecoveryOptions) -> SqlStateStore:
    """The state store, for actions of a person in this process."""
    return SqlStateStore(options.database, options.store_settings(), actor=Actor.of_this_process(reason=options.reason))


def _left_alone(
    recovery: Recovery, store: SqlStateStore, row: StateRow, options: RecoveryOptions
) -> RecoveryReport | None:
    """The report for a row that is not taken over, because its driver is or may be alive; None if it is not."""
    # A missing driver may be reopening its session, so the check is repeated.
    deadline = Deadline(_CLOCK, DRIVER_RETURN_MS)
    while (driver := store.liveness(row)).alive is False and row.run_id is not None and not deadline.passed:
        deadline.pause()
    if not (driver.alive or (driver.alive is None and row.age_s < options.takeover_grace_s)):
        return None
    found = replace(recovery.diagnosis.dry_run(), driver=driver)
    if found.settled:
        return found
    why = f"its driver is running ({driver.detail}) and settles it by itself"
    if not driver.alive:
        changed = f"the state row was changed {row.age_s:.0f} s ago, so it may be"
        why = f"it is unknown whether its driver is running ({driver.detail}); {changed}"
    flags = sink_flags(options)
    *safe, take_over = remedies(Symptom.DRIVER_ALIVE, found.incident, flags)
    decision = () if found.cause is None else remedies(found.cause, found.incident, flags)
    # Taking over is last: it stops a job, and is of no use if a person has to decide.
    lines = (*safe, *decision, take_over)
    report = replace(found, reason=f"{found.reason}; {why}", remedies=lines)
    raise TakeOverRefusedError(transactional_id=found.transactional_id, driver=why, remedies=lines, report=report)


#: Default number of entries, if neither a number nor a time is given.
LAST: Final = 50
#: The maximum that can be requested.
LAST_MAX: Final = 1_000_000
#: History events without a batch: their actions are listed instead.
_NO_BATCH: Final = (CLAIMED, ADOPTED)
#: History events whose batch was not decided together with rows: their time is that of settling.
_SETTLED_ONLY: Final = (EMPTY, PASSED, NOTED)


@dataclass(frozen=True, kw_only=True)
class BatchEntry:
    """A batch in the database."""

    #: When it was decided; for a batch without rows (`event`), when it was noted.
    at: datetime
    transactional_id: str
    event: str
    status: str
    batch_id: int | None
    row_count: int
    record_count: int
    kafka_offsets: Mapping[str, tuple[int, int]]
    prepared_transaction_state: str
    generation: int
    decided_at: datetime | None
    settled_at: datetime | None

    @classmethod
    def of(cls, line: HistoryLine) -> BatchEntry:
        row = line.row
        at = row.settled_at if line.event in _SETTLED_ONLY else row.decided_at
        copied = {each.name: getattr(row, each.name) for each in fields(cls) if each.name not in ("at", "event")}
        return cls(at=at or row.claimed_at, event=line.event, **copied)


#: Both have `at`, `transactional_id` and `batch_id`.
Entry: TypeAlias = BatchEntry | ActionLine


@dataclass(frozen=True)
class HistoryReport:
    """Batches and actions, the newest last."""

    entries: tuple[Entry, ...]

    def as_json(self) -> list[dict[str, Any]]:
        """The entries as JSON has them: ``kind`` is ``batch`` or ``action``, times are ISO 8601 in UTC."""
        return [
            {
                "kind": "batch" if isinstance(entry, BatchEntry) else "action",
                **{name: utc(each) if isinstance(each, datetime) else each for name, each in asdict(entry).items()},
            }
            for entry in self.entries
        ]


@checks_keywords
def history(
    *,
    database: str,
    transactional_id: str | None = None,
    last: int | None = None,
    since: datetime | None = None,
    batches: bool = True,
    actions: bool = True,
    database_password: Callable[[], str] | None = None,
    password_command: str | None = None,
    require_tls: bool = False,
    state_schema: str = "public",
    state_table: str = "kafka_transaction_state",
    history_table: str | None = None,
    history_batches: int = 1_000,
    connect_timeout_s: int = 10,
    lock_timeout_ms: int = 30_000,
    statement_timeout_ms: int = 600_000,
) -> HistoryReport:
    """The batches of one sink, or of all, and who did what to it, when and why; nothing is claimed or changed.

    Args:
        database and those of the database: as for the sink.
        transactional_id: one sink; None for all.
        last: maximum number of entries, the newest; None: 50, or with ``since`` all.
        since: none older than this; needs a time zone.
        batches: include the batches.
        actions: include the actions of drivers and people.

    Raises:
        ConfigurationError: an option is wrong.
        StateStoreError: the database cannot be read.
    """
    given = locals()
    if since is not None and since.tzinfo is None:
        raise refused("since", str(since), "must have a time zone", "pass datetime(…, tzinfo=timezone.utc)")
    if last is not None and not 1 <= last <= LAST_MAX:
        raise refused("last", last, f"must be between 1 and {LAST_MAX}", "pass a number in that range")
    own = {"last", "since", "batches", "actions"}
    options = RecoveryOptions.of_every_sink(**{name: value for name, value in given.items() if name not in own})
    number = last or (LAST if since is None else LAST_MAX)
    found: list[Entry] = []
    with closing(open_store(options)) as store:
        if batches:
            lines = store.read_history(transactional_id, last=number)
            entries = [BatchEntry.of(line) for line in lines if line.event not in _NO_BATCH]
            found += [entry for entry in entries if since is None or entry.at >= since]
        if actions:
            found += store.read_actions(transactional_id, last=number, since=since)
    # Actions on a batch follow it, and two actions of one instant keep their order.
    found.sort(key=lambda entry: (entry.at, entry.number if isinstance(entry, ActionLine) else -1))
    return HistoryReport(tuple(found[-number:]))


def utc(moment: datetime, *, timespec: str = "milliseconds") -> str:
    return moment.astimezone(timezone.utc).isoformat(timespec=timespec).replace("+00:00", "Z")
