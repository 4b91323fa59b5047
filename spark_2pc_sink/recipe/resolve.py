"""The table of recovery: a pure function decides from the state row and the view of Kafka's coordinator.

``resolve(row, kafka)`` takes the state row returned by a claim, and the coordinator's view of the transactional id. It
returns a verdict, or a halt if a person has to decide; docs/design/recovery.md has the table. It rests on three facts:

* The row is written in the transaction that writes the data, so the transaction in a *decided* row must be committed,
  and one that no row ever named was never decided and must be aborted (KIP-939, "Recovery recipe").
* On transaction.version 2 the coordinator bumps the epoch at the end of each transaction, so (P, E+1) in a Complete
  state is the outcome of exactly the transaction (P, E) (KIP-890, "Bump epoch on each transaction"). Below version 2
  the outcome is shown at (P, E) itself, and an abort there cannot be told from a later one.
* If the coordinator no longer shows that transaction, the control marker in the log of any partition that it wrote
  still shows the outcome.

A commit that Kafka shows belongs to a decision of the newest claim, because every recovery ends with
InitProducerId, which hides the earlier commits. A row without such a decision is therefore older than Kafka, in every
status, and halts. Counter-example without that rule: the first batch is decided and committed in Kafka, the database
fails over to a standby that lacks the decision, no transaction is ongoing, and Spark's replay is written to Kafka a
second time. A row *decided* may be older than Kafka too: its marker in the log says COMMIT, and the decision after it
was lost.

A lost row is rebuilt from its history before this function is called. If the history is lost too, an open transaction
halts, even with ``adopt``: see `OpenTransactionEnd`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from spark_2pc_sink.choices import NO_FACTS, Facts, HaltCause
from spark_2pc_sink.ids import (
    ENDING_STATES,
    EPOCH_BUMP_VERSION,
    NO_TRANSACTION,
    PreparedTxnState,
    ProducerIdAndEpoch,
    TransactionState,
)


@dataclass(frozen=True)
class OpenTransactionEnd:
    """An operator's choice of how to end an open transaction whose decision is lost, after inspecting the table.

    Row and history are lost, and Kafka shows an open transaction. Either the batch was not decided, and no table has
    its rows; or it was decided, and the table has them: aborting it and writing the batch again would duplicate them.
    Only the table tells, so a person is asked even with ``adopt``.
    """

    #: Commit it, as the table has the rows of this batch; None: abort it.
    batch_id: int | None

    def __str__(self) -> str:
        return "abort" if self.batch_id is None else "commit"


def apply_operator_choice(
    row: RowView, kafka: KafkaView, found: Resolution | Halt, choice: OpenTransactionEnd | None
) -> Resolution | Halt:
    """Apply an operator's choice of how to end the open transaction to what `resolve` has found.

    Returns:
        ``found`` if the choice is not needed: the row names a decision, or a recovery has finished with it. Otherwise
        the verdict that the choice leads to, or a halt if Kafka now shows a different outcome.
    """
    if choice is None or not row.fresh or kafka.state in ENDING_STATES:
        return found
    if kafka.state is TransactionState.ONGOING:
        if choice.batch_id is not None:
            return Resolution(Verdict.TAKE_OPEN, "the operator found its rows in the table")
        return Resolution(Verdict.ABORT, "the operator found none of its rows in the table")
    if choice.batch_id is not None or kafka.state is TransactionState.COMPLETE_COMMIT:
        return Halt(
            HaltCause.OPEN_TRANSACTION,
            f"no transaction is open that could end with {choice}: Kafka shows {kafka}. Neither a state row nor its "
            "history says whether both sides have the batch",
            Facts(known=frozenset({"ended"})),
        )
    return found


class RowStatus(str, Enum):
    """Status of a state row, equal to its text there. ``none → decided → done | owed``, ``owed → decided``."""

    NONE = "none"
    DECIDED = "decided"
    DONE = "done"
    OWED = "owed"


class Verdict(Enum):
    """The next action of recovery."""

    COMMIT = "commit the transaction that the database has decided"
    ABORT = "abort the open transaction, which was never decided"
    TAKE_OPEN = "take the open transaction for decided, as a person has found its rows in the table"
    NOTHING = "do nothing: nothing is in doubt"
    MARK_DONE = "note that Kafka has committed it"
    MARK_OWED = "note that Kafka has aborted it, and is owed the batch"
    ASK_THE_LOG = "read the control marker, as the coordinator no longer shows the transaction"
    WAIT = "wait for an end that is under way"


@dataclass(frozen=True)
class RowView:
    """The part of a claimed state row that the decision depends on; see `jdbc_state.StateRow`."""

    status: RowStatus
    prepared: PreparedTxnState = NO_TRANSACTION
    settled: PreparedTxnState = NO_TRANSACTION
    cluster_id: str | None = None

    @property
    def fresh(self) -> bool:
        """True until a recovery has finished with this row for the first time."""
        return self.status is RowStatus.NONE and not self.settled.has_transaction

    def __str__(self) -> str:
        pair = f" {self.prepared}" if self.prepared.has_transaction else ""
        settled = f", settled at {self.settled}" if self.settled.has_transaction else ""
        return f"{self.status.value}{pair}{settled}"


@dataclass(frozen=True)
class KafkaView:
    """What the coordinator shows for a transactional id."""

    state: TransactionState
    producer: ProducerIdAndEpoch | None
    transaction_version: int
    cluster_id: str
    #: The cluster may end a prepared transaction at another producer id and epoch (KIP-939).
    keeps_prepared: bool = False
    #: Start of its newest transaction, in ms since 1970 by the coordinator's clock; None if there was none.
    began_ms: int | None = None
    #: The coordinator does not time it out (two-phase commit).
    never_expires: bool = False

    def __str__(self) -> str:
        return self.state.value if self.producer is None else f"{self.state.value} {self.producer}"


@dataclass(frozen=True)
class Resolution:
    """A verdict, and its reason as a sentence for the report."""

    verdict: Verdict
    reason: str
    #: The reason is a control marker, which does not show later transactions.
    from_log: bool = False


@dataclass(frozen=True)
class Halt:
    """No safe automatic verdict. Kafka is left unchanged."""

    cause: HaltCause
    reason: str
    facts: Facts = NO_FACTS
    #: The row lacks batches from before the one that was passed.
    lacking: bool = False


_COMMITTED = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT})


def resolve(row: RowView, kafka: KafkaView, *, adopt: bool = False, nothing_lost: bool = False) -> Resolution | Halt:
    """Decide what recovery does next.

    Args:
        row: the row returned by the claim.
        kafka: the coordinator's view, read after the claim (an earlier view may be stale: an older driver could still
            have decided in between).
        adopt: the operator allows taking over a row of another cluster, and a new row for an id that Kafka knows.
        nothing_lost: the operator says that the commit which Kafka shows and the row lacks is not of a batch.
    """
    if row.cluster_id is not None and row.cluster_id != kafka.cluster_id:
        reason = f"the state row belongs to Kafka cluster {row.cluster_id}, this is cluster {kafka.cluster_id}"
        # Adopting the row is refused for a decided one: it would forget the decision.
        decided = row.status is RowStatus.DECIDED
        return Halt(HaltCause.OTHER_CLUSTER, reason, Facts(known=frozenset({"decided"}) if decided else frozenset()))
    if not nothing_lost and _is_behind(row, kafka):
        return database_behind()
    if row.status is RowStatus.DECIDED:
        return _resolve_decided(row, kafka)
    if row.status is RowStatus.DONE:
        return _resolve_done(row, kafka)
    return _resolve_undecided(row, kafka, adopt=adopt)


def _resolve_undecided(row: RowView, kafka: KafkaView, *, adopt: bool) -> Resolution | Halt:
    if row.fresh and not adopt and kafka.state not in {TransactionState.UNKNOWN, TransactionState.EMPTY}:
        return Halt(
            HaltCause.ID_IN_USE,
            "the state row is new, but Kafka has transactions of this id: another application uses it, or the row "
            "was lost, with its history",
        )
    if row.fresh and kafka.state is TransactionState.ONGOING:
        # Even if the user adopts: the row that might have named it is lost, with its history.
        return Halt(
            HaltCause.OPEN_TRANSACTION,
            f"neither a state row nor its history says whether the database has decided {kafka.producer}, which Kafka "
            "holds open",
        )
    if kafka.state is TransactionState.ONGOING:
        return Resolution(Verdict.ABORT, "no decision names the ongoing transaction")
    if kafka.state in ENDING_STATES:
        return Resolution(Verdict.WAIT, "an undecided transaction is just being ended")
    return Resolution(Verdict.NOTHING, "no transaction is open")


def _resolve_done(row: RowView, kafka: KafkaView) -> Resolution | Halt:
    if kafka.state is TransactionState.ONGOING:
        if kafka.producer == row.prepared.producer:
            return Resolution(Verdict.COMMIT, "Kafka shows the done transaction as open: its log lost the end")
        return Resolution(Verdict.ABORT, "no decision names the ongoing transaction")
    if kafka.state in ENDING_STATES:
        return Resolution(Verdict.WAIT, "a settled or undecided transaction is just being ended")
    return Resolution(Verdict.NOTHING, "the last decision is settled")


def _is_behind(row: RowView, kafka: KafkaView) -> bool:
    """Whether Kafka shows a commit that the row lacks."""
    # A new row that was adopted has no decision.
    if kafka.state not in _COMMITTED or row.fresh:
        return False
    own, outcome = row.prepared.producer, _outcome_pairs(row, kafka)
    if row.status is RowStatus.DECIDED:
        # The commit of a later transaction: none starts before the row's own is noted as done, so the note is lost, and
        # the later decision with it. This can only be told on transaction.version 2: below it, and after a change of
        # the feature level, the next transaction's commit may be shown where this one's would be. It cannot be told
        # either on a cluster that keeps prepared transactions, as a takeover ends this one at a later epoch.
        tells = own is not None and kafka.transaction_version >= EPOCH_BUMP_VERSION and not kafka.keeps_prepared
        return tells and kafka.producer not in {own, *outcome}
    if row.status is RowStatus.DONE:
        return kafka.producer not in {*outcome, row.settled.producer}
    # A person may have declared a batch owed whose records were lost after their commit. Any other undecided row has no
    # decision that Kafka has committed, at any producer id and epoch.
    return row.status is not RowStatus.OWED or kafka.producer not in outcome


def database_behind() -> Halt:
    """The coordinator or the logs of Kafka show commits that the row lacks."""
    return Halt(
        HaltCause.DATABASE_BEHIND,
        "Kafka has committed a transaction that the database does not know: the database is behind Kafka "
        "(a restored backup, or a failover that lost commits), or another application uses this id",
    )


def _resolve_decided(row: RowView, kafka: KafkaView) -> Resolution | Halt:
    if kafka.state is TransactionState.ONGOING and kafka.producer == row.prepared.producer:
        return Resolution(Verdict.COMMIT, "the database has decided, Kafka still holds the transaction open")
    if kafka.producer in _outcome_pairs(row, kafka):
        if kafka.state is TransactionState.COMPLETE_COMMIT:
            return Resolution(Verdict.MARK_DONE, "Kafka has committed the decided transaction")
        if kafka.state is TransactionState.COMPLETE_ABORT and kafka.transaction_version >= EPOCH_BUMP_VERSION:
            cause = "" if kafka.never_expires else "as it timed out, or "
            return Resolution(
                Verdict.MARK_OWED, f"Kafka has aborted the decided transaction, {cause}for another client"
            )
        if kafka.state is TransactionState.PREPARE_COMMIT or (
            kafka.state is TransactionState.PREPARE_ABORT and kafka.transaction_version >= EPOCH_BUMP_VERSION
        ):
            return Resolution(Verdict.WAIT, "the decided transaction is just being ended")
    return Resolution(
        Verdict.ASK_THE_LOG, f"the coordinator shows {kafka}, which does not tell how {row.prepared} ended"
    )


def may_hide_commits(row: RowView, kafka: KafkaView, resolution: Resolution) -> bool:
    """Whether commits that the row lacks may be hidden by a verdict that leaves nothing in doubt.

    The coordinator shows only the last transaction of an id. A producer id and epoch that is neither that of the row's
    own transaction nor the one returned after it was taken by a recovery since, or belongs to a later transaction. A
    control marker in a log shows how one transaction ended, and none of the later ones. A new row names no transaction:
    if Kafka knows the id, the previous row may have been lost.
    """
    if resolution.from_log:
        return resolution.verdict is Verdict.MARK_DONE
    quiet = resolution.verdict in {Verdict.NOTHING, Verdict.ABORT}
    known = _outcome_pairs(row, kafka) | {row.settled.producer}
    unused = row.fresh and kafka.producer is None
    return quiet and not unused and row.status is not RowStatus.DECIDED and kafka.producer not in known


def is_next(kafka: KafkaView, producer: ProducerIdAndEpoch) -> bool:
    """Whether the id was unused between a look that showed no open transaction and the InitProducerId that followed.

    InitProducerId increments the epoch by one, and uses a new producer id if there was none or no epoch is left.
    It first ends a transaction that is open or ending, which increments the epoch too.
    """
    before = kafka.producer
    if kafka.state is TransactionState.ONGOING or kafka.state in ENDING_STATES:
        return True
    if before is None or before.producer_id != producer.producer_id:
        return producer.epoch == 0
    return producer.epoch == before.epoch + 1


def _outcome_pairs(row: RowView, kafka: KafkaView) -> set[ProducerIdAndEpoch | None]:
    """Producer ids and epochs at which the coordinator shows the end of the row's own transaction."""
    producer = row.prepared.producer
    if producer is None:
        return set()
    return {producer.bumped() if kafka.transaction_version >= EPOCH_BUMP_VERSION else producer}
