"""One recovery for every case: claim, look at both sides, resolve, act, and take a fresh pair.

A start, a driver that was fenced or stuck in mid-run, a COMMIT whose outcome is unknown, a batch that is tried
again, and the command line all come through here (KIP-939, "Recovery recipe"). The order is fixed:

1. **claim** the state row. From here on no older driver can decide, whatever it still does.
2. **look** at what Kafka's transaction coordinator says. A look before the claim could be stale.
3. **resolve** both with the pure table of `spark_2pc_sink.recipe.resolve`, and act on the verdict, until nothing is
   in doubt.
4. **InitProducerId**, always and last. Only the pair that it answers is used next: a zombie may know every pair that
   was handed out before (it learns (P, E+1) by repeating its EndTxn, and tasks of a dead driver still hold its pair).

A state row that was lost is made again by the claim, from the history that the deciding transaction has written. That
is the one thing for which recovery reads the history. Without it a decided transaction would look like one that nobody
has decided, and be aborted, while the table has its rows.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING

from spark_2pc_sink.clock import Clock, Deadline
from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import (
    ConfigurationError,
    HaltCause,
    HaltError,
    InDoubtError,
    KafkaError,
    KafkaTimeoutError,
    RemoteProtocolError,
)
from spark_2pc_sink.ids import (
    NO_TRANSACTION,
    BatchRange,
    PreparedTxnState,
    ProducerIdAndEpoch,
    TransactionState,
)
from spark_2pc_sink.recipe.open_transaction import OpenTransactionEnd, heed
from spark_2pc_sink.recipe.resolve import (
    Halt,
    KafkaView,
    Resolution,
    RowStatus,
    RowView,
    Verdict,
    behind_kafka,
    is_next,
    may_hide_commits,
    resolve,
)
from spark_2pc_sink.recovery.control_marker import ask_the_log
from spark_2pc_sink.recovery.kept_batches import check_kept, explain_outcome_lost
from spark_2pc_sink.recovery.lost_commits import LostCommits
from spark_2pc_sink.recovery.open_transaction import began_at, explained, note_decision
from spark_2pc_sink.recovery.report import RecoveryReport

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jdbc_state import StateRow, StateStore
    from spark_2pc_sink.producer.transaction_client import InitializedProducer
    from spark_2pc_sink.recovery.kafka_side import KafkaSide

_log = logging.getLogger(__name__)

#: What a broker answers that does not keep prepared transactions (every released Kafka), or not for this principal.
_KEEP_PREPARED_REFUSED = frozenset({Code.UNSUPPORTED_VERSION, Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED})


class OperatorDecision(Enum):
    """What a person has decided about a batch that the database has and Kafka may lack."""

    ACCEPT_REPLAY = "send to Kafka what Spark replays, whatever its digest"
    DROP = "leave Kafka without the batch"


@dataclass(frozen=True)
class Recovered:
    """The state from which the next batch may start.

    Attributes:
        row: the claimed state row, never ``decided``.
        initialized: the pair to use next, whether it never times out (2PC), and its timeout otherwise.
        report: what was done.
    """

    row: StateRow
    initialized: InitializedProducer
    report: RecoveryReport


@dataclass
class _Findings:
    """What one recovery has seen and done so far."""

    before: StateRow
    kafka_before: KafkaView | None = None
    kafka_last: KafkaView | None = None
    actions: list[str] = field(default_factory=list)
    reason: str = ""


def view_of(row: StateRow) -> RowView:
    """The part of a state row that `resolve` decides by."""
    return RowView(
        status=RowStatus(row.status),
        prepared=PreparedTxnState(row.prepared_transaction_state),
        settled=PreparedTxnState(row.settled),
        cluster_id=row.cluster_id,
    )


def standing_row(store: StateStore, transactional_id: str) -> StateRow | None:
    """The state row; or, where it is lost, what the history says that it was; or None where nothing is known."""
    row = store.read(transactional_id)
    if row is not None:
        return row
    lines = store.read_history(transactional_id, last=1)
    return lines[0].row if lines else None


def _line(row: StateRow, number: int) -> str:
    batch = "no batch" if row.batch_id is None else f"batch {row.batch_id}"
    return f"line {number} of its history ({batch}, {view_of(row)})"


class Recovery:
    """Recovers one transactional id, as often as it is asked to.

    Args:
        transactional_id: the sink's id.
        kafka: the coordinator and the log.
        store: the state rows.
        clock: measures and waits.
        settle_deadline_ms: how long the two sides may take to settle before `InDoubtError`, and how long the logs of
            one transaction are read at a time, in milliseconds.
        adopt: the user has said that the row takes over an id, or a row of another cluster, whatever is there.
        accept_loss: the batches that the user has named as lost to the database.
        topics: of the sink, as far as they are known: where lost batches are looked for, beside the row's own.
        decision: what a person has decided, for a batch that is owed or whose outcome Kafka can no longer tell.
        batch_id: the batch that was decided about; no other is touched. Needed where Kafka cannot tell the outcome.
        open_transaction: how a person says that an open transaction ends whose decision is lost; see
            `spark_2pc_sink.recipe.open_transaction`.
    """

    def __init__(
        self,
        *,
        transactional_id: str,
        kafka: KafkaSide,
        store: StateStore,
        clock: Clock,
        settle_deadline_ms: int,
        adopt: bool = False,
        accept_loss: BatchRange | None = None,
        topics: Iterable[str] = (),
        decision: OperatorDecision | None = None,
        batch_id: int | None = None,
        open_transaction: OpenTransactionEnd | None = None,
    ) -> None:
        self._transactional_id = transactional_id
        self._kafka = kafka
        self._store = store
        self._clock = clock
        self._settle_deadline_ms = settle_deadline_ms
        self._adopt = adopt
        #: What the database lacks that Kafka has.
        self.losses = LostCommits(
            kafka, store, topics=tuple(topics), accept_loss=accept_loss, limit_ms=settle_deadline_ms
        )
        self._decision = decision
        self._batch_id = batch_id
        self._open_transaction = open_transaction

    def run(self, *, query_id: str | None, run_id: str | None, expected_generation: int | None = None) -> Recovered:
        """Claim, settle, and take a fresh pair.

        Args:
            query_id: Spark's id of the query, None from the command line.
            run_id: Spark's id of this run of it, None from the command line.
            expected_generation: the claim that this driver holds already; None for the first claim of a run.

        Raises:
            ClaimRefusedError: the row belongs to another query or cluster; nothing was changed.
            SupersededError: a newer driver has claimed since.
            HaltError: the two sides disagree in a way that must not be settled by code; Kafka was left as it is.
            InDoubtError: the sides could not be settled within the deadline; the next recovery goes on from there.
            KafkaError, KafkaTimeoutError, StateStoreError: one side cannot be used.
            RemoteProtocolError: Kafka shows the transaction in a state that this version does not know.
        """
        self._kafka.refresh()
        self._store.prepare_schema()
        row = self._store.claim(
            transactional_id=self._transactional_id,
            cluster_id=self._kafka.cluster_id,
            query_id=query_id,
            run_id=run_id,
            adopt=self._adopt,
            expected_generation=expected_generation,
        )
        findings = _Findings(before=row)
        if row.rebuilt_from is not None:
            findings.actions.append(f"made the lost state row again from {_line(row, row.rebuilt_from)}")
            # Said now too: what follows may be refused.
            _log.warning("%s: %s", self._transactional_id, findings.actions[-1])
        row = self._decide_owed(self._settle(row, findings), findings)
        if query_id is None:
            row = self.losses.pass_over_unread(row, findings.actions)
        initialized = self._kafka.usable_producer()
        if findings.kafka_last is not None and not is_next(findings.kafka_last, initialized.producer):
            # Somebody was there since the look, or an answer was lost. A driver that stood still may have missed both
            # batches and the restored backup that lacks them, and has its claim.
            row = self._settle(row, findings)
        # A command knows no topics, so it cannot have looked into their logs: the job is still to do that.
        if query_id is not None and view_of(row).fresh:
            row = self._store.mark_initialized(self._transactional_id, row.generation, str(initialized.producer))
        report = self._report(findings, row)
        if report.actions:
            _log.warning("recovered %s: %s", self._transactional_id, "; ".join(report.actions))
        return Recovered(row=row, initialized=initialized, report=report)

    def look(self) -> RecoveryReport:
        """Say what `run` would do, without claiming and without changing either side.

        Raises:
            KafkaError, KafkaTimeoutError, StateStoreError: one side cannot be read.
            RemoteProtocolError: Kafka shows the transaction in a state that this version does not know.
        """
        self._kafka.refresh()
        there = self._store.read(self._transactional_id)
        row = standing_row(self._store, self._transactional_id) if there is None else there
        kafka = self._view_kafka()
        resolution = self._resolve(row, kafka)
        behind = row is not None and isinstance(resolution, Halt) and resolution.cause is HaltCause.DATABASE_BEHIND
        passed = self.losses.would_pass(row) if row is not None and behind else None
        if row is not None and isinstance(resolution, Halt) and behind:
            resolution = self.losses.explain(row, resolution)
        database = "no state row" if row is None else str(view_of(row))
        lost: tuple[str, ...] = ()
        if row is not None and there is None:
            lost = (f"would make the lost state row again from {_line(row, row.decision)}",)
            database = f"no state row; {database}"
        report = RecoveryReport(
            transactional_id=self._transactional_id,
            database_before=database,
            kafka_before=str(kafka),
            actions=lost,
            database_after=database,
            settled=False,
            reason=resolution.reason,
            known=row is not None,
            age_s=None if row is None else row.age_s,
            in_doubt_s=None if row is None else row.in_doubt_s,
        )
        if passed is not None:
            return replace(report, actions=(f"would go on without batches {passed}",))
        if isinstance(resolution, Halt):
            refusal = (*lost, "would refuse to choose")
            return replace(report, actions=refusal, remedies=resolution.remedies, cause=resolution.cause)
        if resolution.verdict is not Verdict.NOTHING:
            return replace(report, actions=(*lost, f"would {resolution.verdict.value}"))
        return replace(report, settled=not lost and (row is None or row.status != RowStatus.OWED))

    def _settle(self, row: StateRow, findings: _Findings) -> StateRow:
        """Act until the row and Kafka agree; returns the row as it is then."""
        deadline = Deadline(self._clock, self._settle_deadline_ms)
        while True:
            kafka = self._view_kafka()
            if findings.kafka_before is None:
                findings.kafka_before = kafka
            findings.kafka_last = kafka
            resolution = self._resolve(row, kafka)
            findings.reason = resolution.reason
            acted = self._act(row, kafka, resolution, findings)
            # A row that was only just decided is to be committed. And what a log has told of one transaction is not the
            # last word on the id.
            if acted is not None:
                row = acted
                by_log = isinstance(resolution, Resolution) and resolution.from_log
                if row.status != RowStatus.DECIDED and not (by_log and row.status == RowStatus.OWED):
                    return row
            if deadline.passed:
                raise InDoubtError(
                    transactional_id=self._transactional_id,
                    prepared=row.prepared_transaction_state,
                    detail=f"after {deadline.limit_ms} ms Kafka still shows {kafka}: {resolution.reason}",
                )
            if deadline.got_long():
                waiting = f"recovery is still waiting, for up to {deadline.remaining_s:.0f} s more"
                _log.warning("%s: %s: Kafka shows %s, %s", self._transactional_id, waiting, kafka, resolution.reason)
            deadline.pause()

    def _resolve(self, row: StateRow | None, kafka: KafkaView) -> Resolution | Halt:
        """What to do, asked of the log where the coordinator does not tell."""
        view = RowView(RowStatus.NONE) if row is None else view_of(row)
        resolution = heed(view, kafka, resolve(view, kafka, adopt=self._adopt), self._open_transaction)
        if row is not None and isinstance(resolution, Halt) and resolution.cause is HaltCause.DATABASE_BEHIND:
            nothing_lost = self.losses.nothing_is_lost(row)
            resolution = resolve(view, kafka, adopt=self._adopt, nothing_lost=nothing_lost)
        if isinstance(resolution, Halt):
            asks = resolution.cause is HaltCause.OPEN_TRANSACTION and kafka.state is TransactionState.ONGOING
            return self._explained(resolution) if asks else resolution
        if row is None:
            return resolution
        if resolution.verdict is Verdict.ASK_THE_LOG:
            told = self._ask_the_log(row)
            if isinstance(told, Halt):
                return explain_outcome_lost(self._kafka, row, told)
            resolution = told
        if may_hide_commits(view_of(row), kafka, resolution) and self.losses.shows(row):
            return behind_kafka()
        return check_kept(self._kafka, row, resolution)

    def _explained(self, halt: Halt) -> Halt:
        deadline = Deadline(self._clock, self._settle_deadline_ms)
        return explained(halt, self._transactional_id, began_at(self._kafka, deadline))

    def _act(
        self, row: StateRow, kafka: KafkaView, resolution: Resolution | Halt, findings: _Findings
    ) -> StateRow | None:
        """Carry out one verdict; None, or a decided row, means: look again."""
        if isinstance(resolution, Halt):
            return self._decided_by_operator(row, kafka, resolution, findings)
        verdict = resolution.verdict
        if verdict is Verdict.WAIT:
            return None
        if verdict is Verdict.COMMIT:
            return self._complete(row, kafka, resolution, findings)
        if verdict is Verdict.MARK_DONE:
            findings.actions.append(f"noted {row.prepared_transaction_state} as done: {resolution.reason}")
            return self._note_done(row, PreparedTxnState.of(kafka.producer) if kafka.producer else NO_TRANSACTION)
        if verdict is Verdict.MARK_OWED:
            findings.actions.append(f"noted that Kafka is owed batch {row.batch_id}: {resolution.reason}")
            return self._store.mark_owed(self._transactional_id, row.generation)
        if verdict is Verdict.ABORT:
            # Nothing more to do here: the InitProducerId that ends every recovery fences and aborts it (KIP-98).
            findings.actions.append(f"aborted the open transaction {kafka.producer}: {resolution.reason}")
        return self._take_open(row, kafka, findings) if verdict is Verdict.TAKE_OPEN else row

    def _complete(
        self, row: StateRow, kafka: KafkaView, resolution: Resolution, findings: _Findings
    ) -> StateRow | None:
        """Commit in Kafka, see that the records are there, and note it; None means: look again."""
        settled = self._commit(row)
        if settled is None:
            return None
        findings.actions.append(f"committed {row.prepared_transaction_state} in Kafka: {resolution.reason}")
        # The records may have gone between the look before and the commit, which asks no log.
        kept = check_kept(self._kafka, row, Resolution(Verdict.MARK_DONE, resolution.reason))
        if isinstance(kept, Halt):
            return self._decided_by_operator(row, kafka, kept, findings)
        return self._note_done(row, settled)

    def _take_open(self, row: StateRow, kafka: KafkaView, findings: _Findings) -> StateRow:
        word, producer = self._open_transaction, kafka.producer
        if word is None or word.batch_id is None or producer is None:
            message = "an open transaction has a pair, and the person who takes it for decided names its batch"
            raise AssertionError(message)
        findings.actions.append(f"noted {producer} as the decision of batch {word.batch_id}, as the operator says")
        began = began_at(self._kafka, Deadline(self._clock, self._settle_deadline_ms))
        return note_decision(self._store, row, producer, word.batch_id, began)

    def _decided_by_operator(self, row: StateRow, kafka: KafkaView, halt: Halt, findings: _Findings) -> StateRow:
        """Carry out what a person has decided about a halt, or raise it."""
        # To a driver that stood still since its claim, what a newer one did looks like a contradiction.
        self._store.check_generation(self._transactional_id, row.generation)
        if halt.cause is HaltCause.DATABASE_BEHIND:
            passed = self.losses.pass_over(row, findings.actions)
            if passed is None:
                raise self._halt(row, kafka, self.losses.explain(row, halt))
            return passed
        # The halt asks to compare first. Who names the batch has read that; a flag from another night has not.
        named = self._batch_id is not None or row.batch_id is None
        if self._decision is None or row.status != RowStatus.DECIDED or not named:
            raise self._halt(row, kafka, halt)
        return self._apply_decision(row, findings)

    def _commit(self, row: StateRow) -> PreparedTxnState | None:
        """End the row's transaction with COMMIT; None when the answer was anything but success."""
        prepared = PreparedTxnState(row.prepared_transaction_state)
        producer = prepared.producer
        if producer is None:
            message = "a decided row always names a pair"
            raise AssertionError(message)
        if self._kafka.offers_keep_prepared:
            kept = self._keep_prepared(prepared)
            if kept is None:
                return None
            producer = kept
        try:
            answer = self._kafka.end(producer, commit=True)
        except KafkaTimeoutError as error:
            raise InDoubtError(
                transactional_id=self._transactional_id, prepared=str(prepared), detail=str(error)
            ) from error
        if answer.code != Code.NONE:
            _log.info("EndTxn(commit, %s) answered %s; looking again", producer, answer.name)
            return None
        return PreparedTxnState.of(answer.producer or producer)

    def _keep_prepared(self, prepared: PreparedTxnState) -> ProducerIdAndEpoch | None:
        """Take the prepared transaction over (KIP-939); the pair that can end it, or None to look again.

        Only ever called when the coordinator has just shown the transaction as ongoing: with nothing ongoing,
        InitProducerId would replace the outcome that the coordinator still shows.
        """
        try:
            initialized = self._kafka.init_producer_id(keep_prepared=True)
        except KafkaError as error:
            if error.code not in _KEEP_PREPARED_REFUSED:
                raise
            return prepared.producer
        return initialized.producer if initialized.ongoing == prepared else None

    def _ask_the_log(self, row: StateRow) -> Resolution | Halt:
        """Read how the row's transaction ended from the logs of the partitions that it wrote."""
        return ask_the_log(
            self._kafka,
            PreparedTxnState(row.prepared_transaction_state).producer,
            row.kafka_offsets,
            Deadline(self._clock, self._settle_deadline_ms),
            recover=f"spark-2pc recover --transactional-id {self._transactional_id} --batch {row.batch_id}",
        )

    def _decide_owed(self, row: StateRow, findings: _Findings) -> StateRow:
        """Carry out what a person has decided about an owed batch."""
        if self._decision is None or row.status != RowStatus.OWED:
            return row
        return self._apply_decision(row, findings)

    def _apply_decision(self, row: StateRow, findings: _Findings) -> StateRow:
        if self._batch_id not in (None, row.batch_id):
            raise ConfigurationError(
                option="batch",
                value=self._batch_id,
                rule=f"it is the batch in doubt, which is {row.batch_id}",
                remedy="look again (spark-2pc status), and decide about that one",
            )
        if self._decision is OperatorDecision.DROP:
            findings.actions.append(f"gave up the Kafka half of batch {row.batch_id}, as decided by the operator")
            return self._store.drop_batch(self._transactional_id, row.generation, row.prepared_transaction_state)
        findings.actions.append(f"batch {row.batch_id} will be sent as Spark replays it, as decided by the operator")
        return self._store.accept_replay(self._transactional_id, row.generation)

    def _note_done(self, row: StateRow, settled: PreparedTxnState) -> StateRow:
        if row.status == RowStatus.DONE:
            return row
        return self._store.mark_done(self._transactional_id, row.generation, str(settled))

    def _view_kafka(self) -> KafkaView:
        described = self._kafka.describe()
        try:
            state = TransactionState(described.state)
        except ValueError as error:
            shown = f"{self._transactional_id!r} in state {described.state!r}"
            raise RemoteProtocolError(
                peer="the transaction coordinator", detail=f"it shows {shown}, which this version does not know"
            ) from error
        return KafkaView(
            state=state,
            producer=described.producer,
            transaction_version=self._kafka.transaction_version,
            cluster_id=self._kafka.cluster_id,
            keeps_prepared=self._kafka.offers_keep_prepared,
        )

    def _halt(self, row: StateRow, kafka: KafkaView, halt: Halt) -> HaltError:
        return HaltError(
            transactional_id=self._transactional_id,
            cause=halt.cause,
            database_side=f"batch {row.batch_id}, {view_of(row)}",
            kafka_side=str(kafka),
            reason=halt.reason,
            remedies=halt.remedies,
        )

    def _report(self, findings: _Findings, row: StateRow) -> RecoveryReport:
        owed = row.status == RowStatus.OWED
        return RecoveryReport(
            transactional_id=self._transactional_id,
            database_before=str(view_of(findings.before)),
            kafka_before=str(findings.kafka_before),
            actions=tuple(findings.actions),
            database_after=str(view_of(row)),
            settled=not owed,
            reason=f"Kafka is owed batch {row.batch_id}, which Spark will replay" if owed else findings.reason,
            remedies=_OWED_REMEDIES if owed else (),
            in_doubt_s=row.in_doubt_s,
        )


_OWED_REMEDIES = (
    "start the job: it sends the Kafka half of the batch again",
    "spark-2pc recover --drop: give up the Kafka half (its rows stay in the table)",
)
