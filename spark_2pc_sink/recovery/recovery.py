"""Recovery: one procedure for every case: claim, poll both sides, resolve, act, and take a fresh epoch.

A start, a driver that was fenced or stuck mid-run, a COMMIT whose outcome is unknown, a retried batch, and the command
line all use it (KIP-939, "Recovery recipe"). docs/design/recovery.md has the reasons for the order, which is fixed.

A service's records that Kafka lacks are sent again, from their copies in the database.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from jdbc_state import DONE, OWED, Decision, KeptRecords, StateRow, StateStore
from jdbc_state.actions import ABORT, COMMIT, NOTE_DONE, OPEN_TRANSACTION
from jdbc_state.errors import CommitsLostError
from jdbc_state.sink_log import log_for_sink, sink_log
from jdbc_state.state_store import KeepingStore
from spark_2pc_sink.choices import NO_FACTS, Facts, HaltCause, HaltError, InDoubtError, Problem, Symptom, remedies
from spark_2pc_sink.clock import Clock, Deadline
from spark_2pc_sink.codes import FENCED, Code
from spark_2pc_sink.errors import BatchRetryError, ClaimRefusedError, KafkaError, KafkaTimeoutError, LocalProtocolError
from spark_2pc_sink.ids import EPOCH_BUMP_VERSION, NO_TRANSACTION, PreparedTxnState, ProducerIdAndEpoch
from spark_2pc_sink.kafka.coordinator_calls import InitializedProducer
from spark_2pc_sink.kafka.produce_session import SendBatches, split_batches
from spark_2pc_sink.options import CommonOptions, OperatorDecision
from spark_2pc_sink.options.settings import refused
from spark_2pc_sink.recipe.resolve import Halt, KafkaView, OpenTransactionEnd, Resolution, RowStatus, Verdict, is_next
from spark_2pc_sink.recovery.diagnosis import Diagnosis, KafkaSide, LostCommits, began_at, check_kept, history_line
from spark_2pc_sink.recovery.report import Action, ActionKind, RecoveryReport, owed_reason, shown, sink_flags, view_of
from spark_2pc_sink.wire.record_batch import PlacedBatch

#: Answers of a broker that does not keep prepared transactions (every released Kafka), or not for this principal:
#: INVALID_REQUEST if keeping requires two-phase commit (apache/kafka#22704).
_KEEP_PREPARED_REFUSED: Final = frozenset(
    {Code.UNSUPPORTED_VERSION, Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, Code.INVALID_REQUEST}
)


def commit_prepared(
    kafka: KafkaSide, transactional_id: str, prepared: PreparedTxnState, *, take_over: bool
) -> PreparedTxnState | None:
    """COMMIT a decided row's transaction; returns its pair then, None to poll again. InDoubtError without an answer."""
    assert prepared.producer is not None, "a decided row names a producer id and epoch"
    producer = keep_prepared(kafka, prepared) if take_over else prepared.producer
    if producer is None:
        return None
    try:
        answer = kafka.end(producer, commit=True)
    except KafkaTimeoutError as error:
        raise InDoubtError(transactional_id=transactional_id, prepared=str(prepared), detail=str(error)) from error
    if answer.code != Code.NONE:
        sink_log(__name__, transactional_id).info("EndTxn(commit, %s) answered %s; polling again", producer, answer)
        return None
    return PreparedTxnState.of(answer.producer or producer)


def keep_prepared(kafka: KafkaSide, prepared: PreparedTxnState) -> ProducerIdAndEpoch | None:
    """Take the prepared transaction over (KIP-939); returns the epoch that can end it, or None to poll again."""
    # Only when the coordinator has just shown it as ongoing: otherwise InitProducerId would replace the outcome that it
    # still shows.
    try:
        initialized = kafka.init_producer_id(keep_prepared=True)
    except KafkaError as error:
        if error.code not in _KEEP_PREPARED_REFUSED:
            raise
        return prepared.producer
    return initialized.producer if initialized.ongoing == prepared else None


#: Routine actions after a crash; a person should look at any other.
_ROUTINE: Final[frozenset[ActionKind]] = frozenset({"commit", "abort", "note_done"})


@dataclass(frozen=True)
class Recovered:
    """The state from which the next batch may start."""

    row: StateRow
    #: The producer id and epoch to use next, whether it never times out (2PC), and its timeout otherwise.
    initialized: InitializedProducer
    report: RecoveryReport


@dataclass
class _Findings:
    before: StateRow
    #: What Kafka showed, the newest last.
    views: list[KafkaView] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)
    reason: str = ""

    def did(self, kind: ActionKind, text: str) -> dict[str, str]:
        """Keep it for the report, with the details logged in the database."""
        self.actions.append(Action(kind, text))
        return {"did": text}


@dataclass(frozen=True)
class OperatorChoice:
    """A person's decision if neither side can tell."""

    decision: OperatorDecision | None = None
    #: The batch that the decision is about; required if Kafka cannot tell the outcome.
    batch_id: int | None = None
    open_transaction: OpenTransactionEnd | None = None


NO_CHOICE: Final = OperatorChoice()


@contextmanager
def commits_lost_halt() -> Iterator[None]:
    """In the block, commits that the database has lost raise a `HaltError`."""
    try:
        yield
    except CommitsLostError as lost:
        raise HaltError(
            transactional_id=lost.transactional_id,
            cause=HaltCause.COMMITS_LOST,
            database_side=lost.found,
            kafka_side="not polled; it may have committed what the database lacks",
            reason=f"{lost.reason}: the database has lost commits (a failover to a standby that lacked them, or a "
            "restored backup)",
        ) from lost


class Recovery:
    """Recovers one transactional id, as often as called; searches ``topics`` and the row's own for lost batches."""

    def __init__(
        self,
        options: CommonOptions,
        *,
        kafka: KafkaSide,
        store: StateStore,
        clock: Clock,
        topics: Iterable[str] = (),
        choice: OperatorChoice = NO_CHOICE,
    ) -> None:
        self._options = options
        self._transactional_id = options.transactional_id
        self._log = sink_log(__name__, options.transactional_id)
        self._kafka = kafka
        self._store = store
        self._choice = choice
        #: Reads both sides, without changing either.
        self.diagnosis: Diagnosis = Diagnosis(
            options=options,
            kafka=kafka,
            store=store,
            clock=clock,
            topics=topics,
            open_transaction=choice.open_transaction,
        )
        self.losses: LostCommits = self.diagnosis.losses

    def run(self, *, query_id: str | None, run_id: str | None, expected_generation: int | None = None) -> Recovered:
        """Claim, settle, and take a fresh producer epoch.

        Args:
            query_id: Spark's id of the query, as ``run_id`` is of this run of it; None from the command line.
            expected_generation: the claim that this driver holds already; None for the first claim of a run.

        Raises:
            ClaimRefusedError: the row belongs to another query or cluster; nothing was changed.
            SupersededError: a newer driver has claimed since.
            HaltError: the two sides differ, and there is no safe automatic answer; Kafka was left unchanged.
            InDoubtError: a decision could not be settled within the deadline; the next recovery continues from there.
            KafkaTimeoutError: Kafka did not end a transaction without a decision, or does not answer.
            KafkaError, StateStoreError: one side cannot be used.
            RemoteProtocolError: Kafka shows a transaction state that this version does not know.
        """
        with self.explaining(), log_for_sink(self._transactional_id):
            self._kafka.refresh()
            self._store.prepare_schema()
            layout = self._options.layout
            row = self._store.claim(
                transactional_id=self._transactional_id,
                cluster_id=self._kafka.cluster_id,
                query_id=query_id,
                run_id=run_id,
                adopt=self._options.adopt,
                expected_generation=expected_generation,
                # A run's later claims would only repeat it.
                layout=layout.as_json() if layout is not None and expected_generation is None else None,
            )
            findings = _Findings(before=row)
            if row.rebuilt_from is not None:
                findings.did("rebuild_row", f"rebuilt the lost state row from {history_line(row, row.rebuilt_from)}")
                # Logged now too: the next step may be refused.
                self._log.warning("%s", findings.actions[-1])
            row = self._decide_owed(self._settle(row, findings), findings)
            if query_id is None:
                row = self.losses.pass_over_unread(row, findings.actions)
            initialized = self._kafka.usable_producer()
            if not is_next(findings.views[-1], initialized.producer):
                # Another process has acted since the look, or an answer was lost. A driver that was paused may have
                # missed both batches and the restored backup that lacks them, and still have its claim.
                # With the claim only: drivers that poll again without it would fence each other endlessly.
                self._store.check_generation(self._transactional_id, row.generation)
                row = self._settle(row, findings)
            # A command does not know the topics, so their logs were not read: the job still has to do that.
            if query_id is not None and view_of(row).fresh:
                row = self._store.mark_initialized(self._transactional_id, row.generation, str(initialized.producer))
            report = self._report(findings, row)
            if report.actions:
                routine = all(action.kind in _ROUTINE for action in report.actions)
                level = logging.INFO if routine else logging.WARNING
                self._log.log(level, "recovered: %s", "; ".join(map(str, report.actions)))
            return Recovered(row=row, initialized=initialized, report=report)

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Say in a block what to do about refusals; halts of the driver or the state store also get a report."""
        try:
            with commits_lost_halt():
                yield
        except HaltError as error:
            if error.report is not None:
                raise
            named = self.losses.name(error)
            same = {name: getattr(named, name) for name in ("transactional_id", "cause", "reason", "facts")}
            report = RecoveryReport(settled=False, **same).with_remedies(sink_flags(self._options))
            raise replace(named, remedies=report.remedies, report=report) from error
        except ClaimRefusedError as error:
            problem: Problem = Symptom.OTHER_QUERY if error.what == "query" else HaltCause.OTHER_CLUSTER
            facts = Facts(known=frozenset({"decided"})) if error.decided else NO_FACTS
            raise replace(error, remedies=remedies(problem, facts, sink_flags(self._options))) from error
        except InDoubtError as error:
            raise replace(error, remedies=remedies(Symptom.IN_DOUBT, NO_FACTS, sink_flags(self._options))) from error

    def _settle(self, row: StateRow, findings: _Findings) -> StateRow:
        deadline = self.diagnosis.deadline()
        while True:
            kafka = self.diagnosis.view_kafka()
            findings.views.append(kafka)
            resolution = self.diagnosis.resolve(row, kafka)
            findings.reason = resolution.reason
            row, again = self._act(row, kafka, resolution, findings)
            # A row that was only just decided must still be committed.
            if not again and row.status != RowStatus.DECIDED:
                return row
            if deadline.passed:
                raise self._unsettled(row, kafka, resolution, deadline)
            if deadline.is_due_for_log():
                waiting = f"recovery is still waiting, for up to {deadline.remaining_s:.0f} s more"
                self._log.warning("%s: Kafka shows %s, %s", waiting, kafka, resolution.reason)
            deadline.pause()

    def _unsettled(
        self, row: StateRow, kafka: KafkaView, resolution: Resolution | Halt, deadline: Deadline
    ) -> InDoubtError | KafkaTimeoutError:
        """The error at the deadline. An undecided row has nothing that a person could complete."""
        if row.status == RowStatus.DECIDED:
            return InDoubtError(
                transactional_id=self._transactional_id,
                prepared=row.prepared_transaction_state,
                detail=f"after {deadline.limit_ms} ms Kafka still shows {kafka}: {resolution.reason}",
            )
        return KafkaTimeoutError(
            operation=f"the end of an undecided transaction of {self._transactional_id!r}",
            deadline_ms=deadline.limit_ms,
            last_error=f"Kafka still shows {kafka}: {resolution.reason}. Kafka must write its end marker to each "
            "partition of the transaction: make sure that each has a leader and enough in-sync replicas, then start "
            "again",
        )

    def _act(
        self, row: StateRow, kafka: KafkaView, resolution: Resolution | Halt, findings: _Findings
    ) -> tuple[StateRow, bool]:
        """Carry a verdict out; returns the row, and whether both sides must be read again."""
        if isinstance(resolution, Halt):
            return self._decided_by_operator(row, kafka, resolution, findings), False
        verdict = resolution.verdict
        # A marker shows how one transaction ended, and none of the later ones.
        again = resolution.from_log or verdict is Verdict.WAIT
        if verdict is Verdict.COMMIT:
            return self._complete(row, kafka, resolution, findings)
        if verdict is Verdict.TAKE_OPEN:
            row = self._take_open(row, kafka, findings)
        elif verdict is Verdict.MARK_DONE:
            did = findings.did("note_done", f"noted {row.prepared_transaction_state} as done: {resolution.reason}")
            settled = PreparedTxnState.of(kafka.producer) if kafka.producer else NO_TRANSACTION
            row = self._note_done(row, settled, NOTE_DONE, did)
        elif verdict is Verdict.MARK_OWED:
            did = findings.did("note_owed", f"noted that Kafka is owed batch {row.batch_id}: {resolution.reason}")
            row = self._store.mark_owed(self._transactional_id, row.generation, detail=did)
        elif verdict is Verdict.ABORT:
            did = findings.did("abort", f"aborted the open transaction {kafka.producer}: {resolution.reason}")
            said = self._choice.open_transaction is not None and view_of(row).fresh
            self._note(row, OPEN_TRANSACTION if said else ABORT, did)
            again = not self._abort(row, kafka)
        return row, again

    def _abort(self, row: StateRow, kafka: KafkaView) -> bool:
        """Abort the open transaction at the epoch that was shown; False if it is no longer the open one."""
        # InitProducerId, which ends every recovery, would abort it too (KIP-98). But its answer is the same if a commit
        # in progress has won, which a database restored from a backup does not know.
        assert kafka.producer is not None, "an open transaction has one"
        answer = self._kafka.end(kafka.producer, commit=False)
        # Still open after its epoch was refused: a late copy of a request that kept an earlier transaction has kept
        # this one, at an epoch unknown to all. A commit in flight would be refused too, so keeping replaces no outcome.
        if answer.code in FENCED and self.diagnosis.view_kafka() == kafka and self._takes_over(row, kafka):
            kept = keep_prepared(self._kafka, PreparedTxnState.of(kafka.producer))
            if kept is not None:
                answer = self._kafka.end(kept, commit=False)
        if answer.code != Code.NONE:
            self._log.info("EndTxn(abort, %s) answered %s; polling again", kafka.producer, answer.name)
        return answer.code == Code.NONE

    def _complete(
        self, row: StateRow, kafka: KafkaView, resolution: Resolution, findings: _Findings
    ) -> tuple[StateRow, bool]:
        prepared = PreparedTxnState(row.prepared_transaction_state)
        take_over = self._takes_over(row, kafka)
        settled = commit_prepared(self._kafka, self._transactional_id, prepared, take_over=take_over)
        if settled is None:
            return row, True
        did = findings.did("commit", f"committed {row.prepared_transaction_state} in Kafka: {resolution.reason}")
        # The records may have been lost between the earlier look and the commit, which does not check the logs.
        kept = check_kept(self._kafka, row, Resolution(Verdict.MARK_DONE, resolution.reason))
        if isinstance(kept, Halt):
            self._note(row, COMMIT, did)
            return self._decided_by_operator(row, kafka, kept, findings), False
        return self._note_done(row, settled, COMMIT, did), False

    def _takes_over(self, row: StateRow, kafka: KafkaView) -> bool:
        """Whether the open transaction is to be kept (KIP-939) before it is ended; with the claim, if so."""
        # A broker of apache/kafka#22704 keeps no transaction that may time out, and aborts it if it is asked to.
        if not (self._kafka.offers_keep_prepared and kafka.never_expires):
            return False
        # Keeping the transaction fences the producer that is about to end it: only with the claim.
        self._store.check_generation(self._transactional_id, row.generation)
        return True

    def _take_open(self, row: StateRow, kafka: KafkaView, findings: _Findings) -> StateRow:
        end, producer = self._choice.open_transaction, kafka.producer
        assert end is not None, "only an operator takes an open transaction for decided"
        assert end.batch_id is not None, "and then names its batch"
        noted = f"noted {producer} as the decision of batch {end.batch_id}, as decided by the operator"
        did = findings.did("take_open", noted)
        began = began_at(self._kafka, self.diagnosis.deadline())
        offsets = {str(partition): (at, at) for partition, at in began.items() if isinstance(at, int)}
        # BEFORE the commit: then a crash in between loses nothing. Its end can be read in the log from there on.
        return self._store.accept_open(
            row.transactional_id, row.generation, str(producer), end.batch_id, offsets, detail=did
        )

    def _decided_by_operator(self, row: StateRow, kafka: KafkaView, halt: Halt, findings: _Findings) -> StateRow:
        # To a driver that was paused since its claim, the work of a newer one looks like a contradiction.
        self._store.check_generation(self._transactional_id, row.generation)
        if halt.cause is HaltCause.DATABASE_BEHIND:
            lost, named = self.losses.look(row), self.losses.accepted
            if named is None:
                raise self._halt(row, kafka, lost.explain(halt), findings)
            return self.losses.pass_over(row, lost, named, findings.actions)
        # The halt asks to compare first. Naming the batch shows that it was read; an old flag does not.
        batch_named = self._choice.batch_id is not None or row.batch_id is None
        if self._choice.decision is None or row.status != RowStatus.DECIDED or not batch_named:
            raise self._halt(row, kafka, halt, findings)
        return self._apply_decision(row, findings)

    def _decide_owed(self, row: StateRow, findings: _Findings) -> StateRow:
        """Carry out the operator's decision about an owed batch, unless that is done."""
        done = any(action.kind in ("accept_replay", "drop") for action in findings.actions)
        if self._choice.decision is None or done or row.status != RowStatus.OWED:
            return row
        return self._apply_decision(row, findings)

    def _apply_decision(self, row: StateRow, findings: _Findings) -> StateRow:
        if self._choice.batch_id not in (None, row.batch_id):
            rule = f"must be the batch in doubt, which is {row.batch_id}"
            remedy = "check that batch in spark-2pc status, then decide about it"
            raise refused("batch", self._choice.batch_id, rule, remedy)
        if self._choice.decision is OperatorDecision.DROP:
            did = findings.did("drop", f"gave up the Kafka half of batch {row.batch_id}, as decided by the operator")
            decided = row.prepared_transaction_state
            # An owed batch may be given up because its replay differs. A decided one keeps its digest: if its replay
            # differs, the checkpoint was set back, and the new rows under its id must not be skipped.
            digest = "" if row.status == RowStatus.OWED else row.digest
            return self._store.drop_batch(self._transactional_id, row.generation, decided, digest=digest, detail=did)
        sent = f"batch {row.batch_id} will be sent as Spark replays it, as decided by the operator"
        did = findings.did("accept_replay", sent)
        return self._store.accept_replay(self._transactional_id, row.generation, detail=did)

    def _note_done(self, row: StateRow, settled: PreparedTxnState, action: str, did: Mapping[str, str]) -> StateRow:
        if row.status == RowStatus.DONE:
            self._note(row, action, did)
            return row
        return self._store.mark_done(self._transactional_id, row.generation, str(settled), action=action, detail=did)

    def _note(self, row: StateRow, action: str, did: Mapping[str, str]) -> None:
        self._store.note_action(self._transactional_id, row.generation, action, did)

    def _halt(self, row: StateRow, kafka: KafkaView, halt: Halt, findings: _Findings) -> HaltError:
        told = {name: getattr(halt, name) for name in ("cause", "reason", "facts")}
        report = replace(self._report(findings, row), settled=False, **told).with_remedies(sink_flags(self._options))
        return HaltError(
            transactional_id=self._transactional_id,
            database_side=shown(row),
            kafka_side=str(kafka),
            remedies=report.remedies,
            report=report,
            **told,
        )

    def _report(self, findings: _Findings, row: StateRow) -> RecoveryReport:
        owed = row.status == RowStatus.OWED
        return RecoveryReport(
            transactional_id=self._transactional_id,
            settled=not owed,
            before=findings.before,
            row=row,
            kafka=findings.views[0],
            actions=tuple(findings.actions),
            reason=f"{owed_reason(row)}. Spark will replay it" if owed else findings.reason,
            remedies=remedies(Symptom.OWED, Facts(batch=row.batch_id), sink_flags(self._options)) if owed else (),
        )


# Spark replays micro-batches, but a service's transactions are not replayed. So a decided transaction also stores its
# records, if Kafka may abort it after the decision: without two-phase commit a broker ends every transaction that lasts
# too long, even if its driver has died between the two commits.


def kept_for(store: KeepingStore, row: StateRow) -> KeptRecords | None:
    """The records of the row's batch in the database; None if it is not owed, or they are not there."""
    kept = store.read_kept(row.transactional_id) if row.status == OWED else None
    return kept if kept is not None and kept.batch_id == row.batch_id else None


def resend(recovered: Recovered, *, kafka: KafkaSide, store: KeepingStore, send: SendBatches) -> Recovered:
    """Resend the owed batch of a row that was just recovered, decide it again at the new epoch, and complete it.

    After any error the next recovery continues from there: the row is still owed, or decided at the new epoch.

    Raises:
        HaltError: the kept records are not those of the batch, or there are none.
        BatchRetryError: Kafka could not commit it.
        Everything else: raised by `BatchListSender.send`.
        SupersededError, CommitUnknownError, StateStoreError, OutcomeUnknownError: as in any batch.
    """
    row, producer = recovered.row, recovered.initialized.producer
    batches = _kept_batches(store, row)
    if kafka.transaction_version < EPOCH_BUMP_VERSION:
        kafka.add_partitions(producer, [each.partition for each in batches])
    sent = send(producer, kafka.transaction_version, batches)
    with store.deciding(row.transactional_id, row.generation) as transaction:
        transaction.decide(
            Decision(
                prepared=str(PreparedTxnState.of(producer)),
                expected=row.prepared_transaction_state,
                batch_id=row.batch_id or 0,
                row_count=row.row_count,
                record_count=row.record_count,
                digest=row.digest,
                kafka_offsets={str(partition): at for partition, at in sent.offsets.items()},
                topic_ids=dict(sent.topic_ids),
            )
        )
    answer = kafka.end(producer, commit=True)
    if answer.code != Code.NONE:
        raise BatchRetryError(reason=f"EndTxn(commit) of the resent transaction {producer} answered {answer}")
    row = store.mark_done(row.transactional_id, row.generation, str(answer.producer or producer))
    # Below transaction.version 2 EndTxn returns no new epoch: the next transaction begins with InitProducerId.
    following = answer.producer
    initialized = kafka.usable_producer() if following is None else replace(recovered.initialized, producer=following)
    did = Action("resend", f"resent {row.record_count} records of batch {row.batch_id} from the kept copy")
    report = replace(
        recovered.report,
        settled=row.status == DONE,
        row=row,
        actions=(*recovered.report.actions, did),
        reason="Kafka has the batch that it was owed",
        remedies=(),
    )
    return replace(recovered, row=row, initialized=initialized, report=report)


def _kept_batches(store: KeepingStore, row: StateRow) -> list[PlacedBatch]:
    kept = kept_for(store, row)
    if kept is None:
        raise _lost(
            row,
            "the database has not kept its records: two-phase commit was granted and an operator ended its "
            "transaction, or the table of kept records was changed",
        )
    try:
        batches = list(split_batches(kept.partitions, kept.batches))
    except LocalProtocolError as error:
        raise _lost(row, f"the kept records cannot be read: {error}") from error
    count = sum(each.record_count for each in batches)
    if count != row.record_count:
        raise _lost(row, f"the batch has {row.record_count} records, and {count} are kept")
    return batches


def _lost(row: StateRow, reason: str) -> HaltError:
    return HaltError(
        transactional_id=row.transactional_id,
        cause=HaltCause.RESEND_DIFFERS,
        database_side=shown(row),
        kafka_side="it has aborted the batch",
        reason=f"Kafka is owed batch {row.batch_id} of a service, and {reason}",
        facts=Facts(known=frozenset({"service"}), batch=row.batch_id),
    )
