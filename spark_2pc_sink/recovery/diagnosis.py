"""Diagnosis: what both sides show, and the verdict on it; Kafka's logs are asked where its coordinator cannot tell.

The rules are pure (`spark_2pc_sink.recipe`). This module gets them what they decide by, and changes neither side.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from spark_2pc_sink.clock import Clock, Deadline, now_ms
from spark_2pc_sink.errors import HaltCause, RemoteProtocolError
from spark_2pc_sink.ids import TIMEOUT_NEVER_MS, PreparedTxnState, TransactionState
from spark_2pc_sink.recipe.open_transaction import OpenTransactionEnd, heed
from spark_2pc_sink.recipe.remedies import RECOVER, drop, remedy
from spark_2pc_sink.recipe.resolve import (
    Halt,
    KafkaView,
    Resolution,
    RowStatus,
    RowView,
    Verdict,
    behind_kafka,
    may_hide_commits,
    resolve,
)
from spark_2pc_sink.recovery.control_marker import ask_the_log
from spark_2pc_sink.recovery.kept_batches import check_kept, explain_outcome_lost
from spark_2pc_sink.recovery.open_transaction import began_at, explained
from spark_2pc_sink.recovery.recover_command import with_command
from spark_2pc_sink.recovery.report import Action, ActionKind, RecoveryReport, duration
from spark_2pc_sink.recovery.state_row import owed_reason, shown, view_of

if TYPE_CHECKING:
    from jdbc_state import StateRow, StateStore
    from spark_2pc_sink.options import CommonOptions
    from spark_2pc_sink.producer.coordinator_calls import TransactionDescription
    from spark_2pc_sink.recovery.kafka_side import KafkaSide
    from spark_2pc_sink.recovery.lost_commits import LostCommits


#: What `look` says of a verdict that leads to an action.
_PLANNED: Final[dict[Verdict, ActionKind]] = {
    Verdict.COMMIT: "commit",
    Verdict.ABORT: "abort",
    Verdict.TAKE_OPEN: "take_open",
    Verdict.MARK_DONE: "note_done",
    Verdict.MARK_OWED: "note_owed",
    Verdict.WAIT: "wait",
}


#: What can be done where a recovery would settle it by itself.
_SETTLING: Final = (
    "start the job: it does this before its first batch",
    remedy(RECOVER, "does it now, without the job"),
)
#: The same where the driver lives: both of the others would stop it.
_DRIVER_LIVES: Final = (
    "wait: its driver lives, and settles it by itself. If that does not happen: stop the job, and look again",
)


@dataclass(kw_only=True)
class Diagnosis:
    """Looks at both sides of one transactional id, as often as it is asked to.

    Attributes:
        options: of the sink, or of `recover`; the logs of one transaction are read for ``settle_deadline_ms``.
        kafka: the coordinator and the logs.
        store: the state rows.
        losses: what the database lacks that Kafka has.
        clock: measures and waits.
        open_transaction: how a person says that an open transaction ends whose decision is lost.
    """

    options: CommonOptions
    kafka: KafkaSide
    store: StateStore
    losses: LostCommits
    clock: Clock
    open_transaction: OpenTransactionEnd | None

    def view_kafka(self) -> KafkaView:
        """Ask the coordinator.

        Raises:
            RemoteProtocolError: it shows a state that this version does not know.
        """
        return self.view_of(self.kafka.describe())

    def view_of(self, described: TransactionDescription) -> KafkaView:
        """The same of an answer that is there already.

        Raises:
            RemoteProtocolError: as above.
        """
        try:
            state = TransactionState(described.state)
        except ValueError as error:
            unknown = f"{self.options.transactional_id!r} in state {described.state!r}"
            raise RemoteProtocolError(
                peer="the transaction coordinator", detail=f"it shows {unknown}, which this version does not know"
            ) from error
        return KafkaView(
            state=state,
            producer=described.producer,
            transaction_version=self.kafka.transaction_version,
            cluster_id=self.kafka.cluster_id,
            keeps_prepared=self.kafka.offers_keep_prepared,
            began_ms=described.start_time_ms,
            never_expires=described.timeout_ms == TIMEOUT_NEVER_MS,
        )

    def resolve(self, row: StateRow | None, kafka: KafkaView) -> Resolution | Halt:
        """The verdict on both sides, never `Verdict.ASK_THE_LOG`."""
        view = RowView(RowStatus.NONE) if row is None else view_of(row)
        resolution = heed(view, kafka, resolve(view, kafka, adopt=self.options.adopt), self.open_transaction)
        if row is not None and isinstance(resolution, Halt) and resolution.cause is HaltCause.DATABASE_BEHIND:
            nothing_lost = self.losses.nothing_is_lost(row)
            resolution = resolve(view, kafka, adopt=self.options.adopt, nothing_lost=nothing_lost)
        if isinstance(resolution, Halt):
            asks = resolution.cause is HaltCause.OPEN_TRANSACTION and kafka.state is TransactionState.ONGOING
            return explained(resolution, began_at(self.kafka, self._deadline())) if asks else resolution
        if row is None:
            return resolution
        if resolution.verdict is Verdict.ASK_THE_LOG:
            pair = PreparedTxnState(row.prepared_transaction_state).producer
            told = ask_the_log(self.kafka, pair, row.kafka_offsets, self._deadline(), batch_id=row.batch_id)
            if isinstance(told, Halt):
                return explain_outcome_lost(self.kafka, row, told)
            resolution = told
        if may_hide_commits(view_of(row), kafka, resolution) and self.losses.shows(row):
            return behind_kafka()
        return check_kept(self.kafka, row, resolution)

    def look(self) -> RecoveryReport:
        """Say what a recovery would do, without claiming and without changing either side.

        Raises:
            KafkaError, KafkaTimeoutError, StateStoreError: one side cannot be read.
            RemoteProtocolError: Kafka shows the transaction in a state that this version does not know.
        """
        self.kafka.refresh()
        before = self.store.read(self.options.transactional_id)
        row = self.store.read_standing(self.options.transactional_id) if before is None else before
        return self.judge(before, row, self.view_kafka())

    def judge(self, before: StateRow | None, row: StateRow | None, kafka: KafkaView) -> RecoveryReport:
        """The same with what was read already; Kafka's logs are asked where this does not tell.

        Args:
            before: the state row; None where there is none.
            row: the same; or the line that a lost row would be made again from.
            kafka: what the coordinator says.

        Raises:
            KafkaError, KafkaTimeoutError: the logs cannot be read.
        """
        resolution = self.resolve(row, kafka)
        behind = row is not None and isinstance(resolution, Halt) and resolution.cause is HaltCause.DATABASE_BEHIND
        passed = self.losses.would_pass(row) if row is not None and behind else None
        if row is not None and isinstance(resolution, Halt) and behind:
            resolution = self.losses.explain(row, resolution)
        lost: tuple[Action, ...] = ()
        if row is not None and before is None:
            again = f"would make the lost state row again from {history_line(row, row.decision)}"
            lost = (Action("rebuild_row", again),)
        report = RecoveryReport(
            transactional_id=self.options.transactional_id,
            settled=False,
            known=row is not None,
            dry_run=True,
            before=before,
            row=row,
            kafka=kafka,
            actions=lost,
            prepared_s=_prepared_s(row, kafka),
            elsewhere=row is not None and row.cluster_id not in (None, kafka.cluster_id),
            reason=resolution.reason,
        )
        if passed is not None:
            return replace(report, actions=(Action("accept_loss", f"would go on without batches {passed}"),))
        if isinstance(resolution, Halt):
            if row is None:
                report = replace(report, reason=_unnamed(kafka, resolution))
            remedies = with_command(resolution.remedies, self.options)
            return replace(report, remedies=remedies, cause=resolution.cause)
        planned = _PLANNED.get(resolution.verdict)
        if planned is not None:
            return replace(report, actions=(*lost, Action(planned, _told(resolution.verdict, row, kafka))))
        if row is not None and row.status == RowStatus.OWED:
            return replace(report, reason=owed_reason(row), remedies=with_command(owed_remedies(row), self.options))
        return replace(report, settled=resolution.verdict is Verdict.NOTHING and not lost)

    def _deadline(self) -> Deadline:
        return Deadline(self.clock, self.options.settle_deadline_ms)


def _told(verdict: Verdict, row: StateRow | None, kafka: KafkaView) -> str:
    """What a recovery will do, with the transaction that it will end."""
    if verdict is Verdict.COMMIT and row is not None:
        return f"recovery will commit Kafka transaction {row.prepared_transaction_state}"
    if verdict is Verdict.ABORT:
        return f"recovery will abort Kafka transaction {kafka.producer}, which was never decided"
    return f"recovery will {verdict.value}"


def _unnamed(kafka: KafkaView, halt: Halt) -> str:
    """What Kafka knows of an id of which the database knows nothing."""
    since = open_s(kafka)
    opened = "" if since is None else f", open for {duration(since)}"
    return f"the state table has no row of this id, and its history no line; Kafka has {kafka}{opened}: {halt.reason}"


def owed_remedies(row: StateRow) -> tuple[str, ...]:
    """What can be done about the batch that Kafka is owed."""
    return "start the job: it sends the Kafka half of the batch again", drop(row.batch_id)


def with_ways_on(report: RecoveryReport, options: CommonOptions) -> RecoveryReport:
    """The report of a look, with what a person can do about it also where nobody has to decide anything.

    Args:
        report: with the driver.
        options: for the commands.
    """
    if report.condition not in {"in_doubt", "owed"} or report.cause is not None:
        return report
    if report.driver is not None and report.driver.alive:
        return replace(report, remedies=_DRIVER_LIVES)
    return report if report.remedies else replace(report, remedies=with_command(_SETTLING, options))


def _prepared_s(row: StateRow | None, kafka: KafkaView) -> float | None:
    """For how long Kafka has had a transaction open that the row does not name."""
    decided = None if row is None else view_of(row).prepared.producer
    return None if kafka.producer == decided else open_s(kafka)


def open_s(kafka: KafkaView) -> float | None:
    """Seconds since the open transaction began; None where none is open. Two clocks may differ, hence the 0."""
    if kafka.state is not TransactionState.ONGOING or kafka.began_ms is None:
        return None
    return max(0.0, (now_ms() - kafka.began_ms) / 1000)


def history_line(row: StateRow, number: int) -> str:
    """Where a lost row is made again from."""
    return f"line {number} of its history ({shown(row)})"
