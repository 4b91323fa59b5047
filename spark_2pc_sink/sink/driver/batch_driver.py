"""The batch driver: KIP-939's recipe for one micro-batch, in order, independent of the work.

`BatchDriver._run` is the recipe on one page; `batch_values` has the values that it passes on. This module does not
depend on Spark: tasks are accessed through `BatchWork`, Kafka through `KafkaSide`, the database through `StateStore`.
A simulation substitutes its own and runs this very code.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from jdbc_state import StateRow
from jdbc_state.actions import ACCEPT_REPLAY
from jdbc_state.errors import CommitsLostError
from jdbc_state.model import lost_commits_error
from jdbc_state.sink_log import sink_log
from spark_2pc_sink.causes import in_words
from spark_2pc_sink.clock import Deadline
from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import (
    AuthorizationError,
    BatchAttemptsExhaustedError,
    BatchRetryError,
    ClaimRefusedError,
    ConfigurationError,
    DataError,
    DualWriteError,
    HaltError,
    InDoubtError,
    LocalProtocolError,
    StateStoreError,
    SupersededError,
    TransactionExpiredError,
)
from spark_2pc_sink.ids import EPOCH_BUMP_VERSION, ProducerIdAndEpoch
from spark_2pc_sink.recipe.kept_records import WrittenRecords, find_lost_records, missing_id_topics
from spark_2pc_sink.recipe.placement import Placement
from spark_2pc_sink.recipe.resolve import RowStatus
from spark_2pc_sink.recipe.steps import Observer, Step
from spark_2pc_sink.recovery.recovery import Recovered
from spark_2pc_sink.sink.driver.batch_placement import BatchPlacement, check_resend, check_skip
from spark_2pc_sink.sink.driver.batch_values import Attempt, Claim, Done, Outcome, Replay, TransactionTicket
from spark_2pc_sink.sink.report import BatchReport

if TYPE_CHECKING:
    from spark_2pc_sink.sink.driver.batch_values import BatchRules, BatchWork, Decided, Produced, RunOfQuery, Sides

_REFUSED: Final = (AuthorizationError, ConfigurationError)  # no restart of a server changes these
#: Errors that retrying the batch cannot fix.
_PERMANENT: Final = (
    *_REFUSED,
    ClaimRefusedError,
    CommitsLostError,
    DataError,
    HaltError,
    InDoubtError,
    LocalProtocolError,
    TransactionExpiredError,
)
#: Searches for bad rows in one batch. Usually one finds rows refused by tasks and one those refused by the database; in
#: an upsert, the row that a bad one had superseded may be bad too.
_SEARCHES_MAX: Final = 5


class BatchDriver:
    """Takes the batches of one run of one query through the recipe."""

    def __init__(self, sides: Sides, run: RunOfQuery, rules: BatchRules, observer: Observer) -> None:
        self._recovery, self._kafka, self._store, self._clock = sides.recovery, sides.kafka, sides.store, sides.clock
        self._run_of_query = run
        self._transactional_id = rules.transactional_id
        self._rules = rules
        self._observer = observer
        self._log = sink_log(__name__, rules.transactional_id)
        self._placement = BatchPlacement(self._store, self._recovery.losses, run)
        self._claim: Claim | None = None
        self._warned_of_ids = False
        # True from the start of a call of `write` until it returns.
        self._unfinished = False

    def recover(self) -> Recovered:
        """Step 0, and the recovery after any failure (see `spark_2pc_sink.recovery.recovery`)."""
        expected = None
        if self._claim is not None:
            expected = self._claim.generation
            self._claim = replace(self._claim, next_producer=None)
        ids = self._run_of_query.ids
        recovered = self._recovery.run(query_id=ids.query_id, run_id=ids.run_id, expected_generation=expected)
        self._claim = Claim(recovered.row, recovered.initialized, recovered.initialized.producer)
        self._observer(Step.RECOVER)
        return recovered

    def write(self, batch_id: int, work: BatchWork) -> BatchReport:
        """Take one batch through steps 1 to 7; returns when both sides have it.

        Raises:
            DataError, ConfigurationError, …: a retry would not help; both sides are as before it.
            BatchAttemptsExhaustedError: the maximum number of attempts failed; both sides are as before it.
            HaltError: a person has to decide; see its remedies.
            SupersededError: a newer driver has taken over.
            InDoubtError: decided, but the Kafka commit could not be completed; a restart resolves it.
        """
        if self._unfinished:
            # The previous call ended by an exception, and the caller carried on regardless.
            self.recover()
        self._unfinished = True
        with self._recovery.explaining():
            report = self._write(batch_id, work)
        self._unfinished = False
        self._placement.written = batch_id
        return report

    def _write(self, batch_id: int, work: BatchWork) -> BatchReport:
        """Place the batch, and attempt it up to the allowed number of times."""
        self._kafka.prefetch_features()
        first = placement = self._place(batch_id)
        if first is Placement.SKIP:
            # Check that the batch is the one that both sides have.
            work.recall()
            replay = work.reread()
            row = self._placement.as_written(self._claimed.row, batch_id)
            self._note_accepted(check_skip(row, replay, accept_replay=self._rules.accept_replay))
            return Outcome().report(row, batch_id, first, attempts=0)
        number = failed = 0
        while True:
            number += 1
            outcome, error = self._attempt(batch_id, work, number, resend=placement is Placement.RESEND)
            if error is not None:
                placement = self._place(batch_id)
            if error is None or placement is Placement.SKIP:
                return outcome.report(self._claimed.row, batch_id, first, attempts=number)
            # An attempt that led to bad rows being found is always followed by another one.
            failed += not isinstance(error, DataError)
            if failed == self._rules.attempts_max:
                raise BatchAttemptsExhaustedError(
                    batch_id=batch_id, attempts=failed, last_error=in_words(error)
                ) from error

    def _attempt(
        self, batch_id: int, work: BatchWork, number: int, *, resend: bool
    ) -> tuple[Outcome, Exception | None]:
        """Run one attempt; returns its figures, and the error after which both sides were restored, or None."""
        begun_s = self._clock.now_s()
        attempt: Attempt | None = None
        try:
            if resend:
                work.recall()
            producer = self._begin(work)
            self._observer(Step.BEGIN)
            attempt = self._new_attempt(work, producer, resend=resend)
            done = self._run(attempt, batch_id, begun_s)
        except SupersededError:
            raise
        except DataError as error:
            self._abort(error, attempt)
            if resend or number > self._rules.attempts_max + _SEARCHES_MAX:
                raise
            return Outcome(), self._search(work, error)
        except _PERMANENT as error:
            self._restore(error, attempt)
            raise
        except Exception as error:
            self._log.warning(
                "batch %d, attempt %d of %d failed: %s", batch_id, number, self._rules.attempts_max, error
            )
            self._restore(error, attempt)
            if self._run_of_query.is_stopping():
                raise
            return Outcome() if attempt is None else attempt.outcome, error
        self._claim = replace(self._claimed, row=done.row, next_producer=done.next_producer)
        return attempt.outcome, None

    def _run(self, attempt: Attempt, batch_id: int, begun_s: float) -> Done:
        """Steps 3 to 7: KIP-939's "Normal processing recipe"."""
        with attempt:
            produced = attempt.produce(batch_id, begun_s)
            self._observer(Step.PRODUCE)
            self._check_produced(produced)
            decided = None if produced.is_empty else self._decide(produced)
        if decided is None:
            return self._take_empty(produced)
        self._observer(Step.DECIDE)
        return self._complete(decided)

    def _begin(self, work: BatchWork) -> ProducerIdAndEpoch:
        """Step 2: the producer of this transaction, and below transaction.version 2 its partitions."""
        claim = self._claimed
        producer = claim.next_producer
        # A producer begins one transaction: the next one comes from EndTxn, or from recover().
        self._claim = claim = replace(claim, next_producer=None)
        self._kafka.refresh_features()
        if producer is None or producer.exhausted:
            initialized = self._kafka.usable_producer()
            self._claim = replace(claim, initialized=initialized)
            producer = initialized.producer
            # After InitProducerId, not before: a claim made later ends with an InitProducerId that fences this
            # producer. Otherwise a driver superseded meanwhile would open a transaction that is never ended.
            self._store.check_generation(self._transactional_id, claim.generation)
        if self._kafka.transaction_version < EPOCH_BUMP_VERSION:
            self._kafka.add_partitions(producer, work.partitions())
        return producer

    def _check_produced(self, produced: Produced) -> None:
        """Step 3 is complete only if every row is accounted for, and a resend is the batch that the database has."""
        counts = produced.counts
        if counts.record_count != counts.expected_records:
            raise BatchRetryError(
                reason=f"the tasks read rows for {counts.expected_records} records besides {counts.left_out} that "
                f"are left out, but Kafka acknowledged {counts.record_count} records"
            )
        if produced.attempt.ticket.kafka_only:
            replay = Replay(counts.record_count, counts.digest)
            self._note_accepted(check_resend(self._claimed.row, replay, accept_replay=self._rules.accept_replay))

    def _decide(self, produced: Produced) -> Decided:
        """Steps 4 and 5: remember the prepared transaction with the rest of the rows in the state row, and COMMIT.

        Only a new claim can determine the outcome after a CommitUnknownError. Nothing was written after a
        SupersededError, or a BatchRetryError: not all rows arrived. A TransactionExpiredError if Kafka would abort the
        transaction before it could be committed.
        """
        attempt, claim = produced.attempt, self._claimed
        if not produced.counts.record_count:
            self._write_rows(produced)
            # The last statement about this batch: its step times end here.
            figures = attempt.outcome.for_history(self._observer.figures)
            return attempt.commit(produced, produced.decision(claim.row, figures=figures))
        self._observer(Step.PREPARE)
        if not attempt.ticket.kafka_only:
            self._write_rows(produced)
        margin_ms = self._rules.decision_margin_ms
        produced.check_time_left(self._clock.now_s(), claim.initialized, margin_ms=margin_ms)
        self._kafka.prefetch_features()
        return attempt.commit(produced, produced.decision(claim.row))

    def _write_rows(self, produced: Produced) -> None:
        """Write the remaining rows, and the user's additions to them."""
        attempt, counts = produced.attempt, produced.counts
        written = produced.results.copy_into(attempt.open_decision())
        attempt.outcome = Outcome(counts, written)
        if written.given != counts.row_count:
            raise BatchRetryError(reason=f"{counts.row_count} rows were read for tables, {written.given} arrived there")
        if self._rules.on_decide is not None:
            self._rules.on_decide(attempt.open_decision(), produced.deciding())

    def _complete(self, decided: Decided) -> Done:
        """Steps 6 and 7: commit in Kafka, check that the records are there, and note it."""
        producer = decided.producer
        if not decided.has_records:
            row = self._store.check_generation(self._transactional_id, self._claimed.generation)
            return self._without_records(row, producer)
        answer = self._kafka.end(producer, commit=True)
        if answer.code != Code.NONE:
            said = f"EndTxn(commit) of the decided transaction {producer} answered {answer}"
            raise BatchRetryError(reason=f"{said}; re-reading both sides")
        self._observer(Step.COMPLETE)
        self._verify_present(decided.written)
        figures = decided.outcome.for_history(self._observer.figures)
        row = self._store.mark_done(
            self._transactional_id, self._claimed.generation, str(answer.producer or producer), figures=figures
        )
        self._observer(Step.NOTE)
        # Below transaction.version 2 EndTxn returns no producer: the next transaction begins with InitProducerId.
        return Done(row, answer.producer)

    def _take_empty(self, produced: Produced) -> Done:
        """There are no rows and no records, so there is nothing to commit: only the state row advances.

        An owed batch gets here only after a person has accepted a replay without records.
        """
        row, batch_id = self._claimed.row, produced.batch_id
        if row.status == RowStatus.OWED:
            did = {"did": f"batch {batch_id} was owed, and has no records as Spark replays it now"}
            row = self._store.drop_batch(self._transactional_id, row.generation, row.settled, detail=did)
        else:
            figures = produced.attempt.outcome.for_history(self._observer.figures)
            row = self._store.take_empty_batch(
                self._transactional_id, row.generation, batch_id, row.prepared_transaction_state, figures=figures
            )
        return self._without_records(row, produced.attempt.ticket.producer)

    def _without_records(self, row: StateRow, producer: ProducerIdAndEpoch) -> Done:
        """No record was acknowledged, so there is nothing to commit in Kafka: the producer serves the next batch."""
        if self._kafka.transaction_version < EPOCH_BUMP_VERSION:
            # Adding its partitions has nevertheless opened a transaction. The next InitProducerId, required in any
            # case, aborts it.
            initialized = self._kafka.usable_producer()
            self._claim = replace(self._claimed, initialized=initialized)
            producer = initialized.producer
        return Done(row, producer)

    def _verify_present(self, written: WrittenRecords) -> None:
        """EndTxn does not check the log: a topic deleted or recreated meanwhile has lost the records.

        A BatchRetryError if so. Recovery checks again before it reports the loss: a broker may lag.
        """
        if not self._warned_of_ids and (without := missing_id_topics(written)):
            self._warned_of_ids = True
            unseen = "a topic that is deleted and re-created during a batch is noticed only by its offsets"
            self._log.warning("Kafka gives topic %s no id: %s", ", ".join(without), unseen)
        lost = find_lost_records(written, self._kafka.view_logs(written.offsets), committed=True)
        if lost is not None:
            raise BatchRetryError(reason=f"{lost.reason}; checking again")

    def _search(self, work: BatchWork, error: DataError) -> Exception:
        """Find the bad rows for which an attempt failed, in a database transaction that does not decide.

        It is begun like a deciding one, so that a newer claim ends it, and a superseded driver does not begin it.
        Returns ``error`` if rows were found that the next attempt leaves out; or why the search was not possible.
        Raises ``error`` if it cannot be fixed by leaving out single rows, a DataError if too many rows are bad, and a
        ConfigurationError if the batch has different rows each time it is read.
        """
        try:
            with self._new_attempt(work, self._claimed.initialized.producer, resend=False) as attempt:
                found = work.search(error, attempt.open_decision)
        except (ConfigurationError, DataError, SupersededError, CommitsLostError, HaltError):
            raise
        except Exception as failure:  # noqa: BLE001 - counted as a failed attempt; the next one meets the bad row again
            self._log.warning("could not search for bad rows: %s", failure)
            return failure
        if not found:
            raise error
        self._log.warning("searched for bad rows; the next attempt leaves out those found. The error was: %s", error)
        return error

    def _abort(self, error: DataError, attempt: Attempt | None) -> None:
        """Abort an attempt that met a bad row with its own producer: it is not decided, and needs no new claim."""
        if attempt is not None and not attempt.in_doubt:
            try:
                answer = self._kafka.end(attempt.ticket.producer, commit=False)
            except DualWriteError as failure:
                self._log.warning("could not abort the transaction of a bad row; recovering: %s", failure)
            else:
                # Below transaction.version 2 a transaction without partitions has not begun. EndTxn returns no producer
                # there: InitProducerId is next, which would abort any open transaction.
                unbegun = answer.code == Code.INVALID_TXN_STATE
                if answer.code == Code.NONE or (unbegun and self._kafka.transaction_version < EPOCH_BUMP_VERSION):
                    self._claim = replace(self._claimed, next_producer=answer.producer)
                    return
        self._restore(error, attempt)

    def _restore(self, error: Exception, attempt: Attempt | None = None) -> None:
        """Recover after ``error``, waiting for a restarting database or broker.

        If recovery does not succeed: an InDoubtError if ``attempt`` may be decided, else ``error`` itself.
        """
        deadline = Deadline(self._clock, self._rules.restore_deadline_ms)
        while True:
            try:
                self.recover()
            except (SupersededError, HaltError, InDoubtError, ClaimRefusedError):
                raise
            except DualWriteError as second:
                if not isinstance(second, _REFUSED):
                    self._log.warning("recovery after %r failed; retrying: %s", error, second)
                    if not deadline.passed:
                        deadline.pause()
                        continue
                if attempt is None or not attempt.in_doubt:
                    raise error from second
                raise InDoubtError(
                    transactional_id=self._transactional_id, prepared=str(attempt.ticket.producer), detail=str(second)
                ) from second
            else:
                return

    def _place(self, batch_id: int) -> Placement:
        """Step 1. With a state row that lost a decision since this driver read it, a batch would be written twice."""
        seen = self._claimed.row
        try:
            row = self._store.check_generation(self._transactional_id, seen.generation)
        except StateStoreError as error:
            # The database was restarting. A newer driver may have claimed meanwhile, so this one claims again.
            self._restore(error)
            row = self._store.check_generation(self._transactional_id, self._claimed.generation)
        if (row.status, row.prepared_transaction_state) != (seen.status, seen.prepared_transaction_state):
            raise lost_commits_error(row, f"{seen.status}, decision {seen.prepared_transaction_state or 'none'}")
        row, placed = self._placement.place(row, batch_id)
        self._claim = replace(self._claimed, row=row)
        self._observer(Step.PLACE)
        return placed

    def _new_attempt(self, work: BatchWork, producer: ProducerIdAndEpoch, *, resend: bool) -> Attempt:
        version = self._kafka.transaction_version
        ticket = TransactionTicket(self._transactional_id, producer, version, kafka_only=resend)
        return Attempt(work, ticket, partial(self._store.deciding, self._transactional_id, self._claimed.generation))

    def _note_accepted(self, did: str) -> None:
        """Record what a person has accepted with the sink's option, BEFORE it is done."""
        if did:
            self._store.note_action(self._transactional_id, self._claimed.generation, ACCEPT_REPLAY, {"did": did})

    @property
    def _claimed(self) -> Claim:
        if self._claim is None:
            rule = "call recover() first in each run of a query"
            raise LocalProtocolError(operation="write", state="not recovered", rule=rule)
        return self._claim
