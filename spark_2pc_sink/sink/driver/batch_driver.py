"""The batch driver: the steps of the recipe for one micro-batch, in order, against any work.

Nothing here knows Spark. What the tasks do is behind `BatchWork`, Kafka is behind `KafkaSide`, the database behind
`StateStore`: a simulation puts its own in their place and runs this very code.

The types carry the one-way street. Only `BatchDriver._decide` makes a `DecidedBatch`, of a `PreparedBatch`; the only
step that takes a `DecidedBatch` is `BatchDriver._complete`, and no step takes one to abort it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jdbc_state.actions import ACCEPT_REPLAY
from jdbc_state.model import lost_commits_error
from jdbc_state.sessions import application_name
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
from spark_2pc_sink.recipe.handed_over import NOTHING_SHOWN, RunRecord
from spark_2pc_sink.recipe.kept_records import WrittenRecords
from spark_2pc_sink.recipe.replay_decision import Placement
from spark_2pc_sink.recipe.resolve import RowStatus
from spark_2pc_sink.recipe.steps import Observer, Step
from spark_2pc_sink.sink.contract.batch_work import Replay, TransactionTicket
from spark_2pc_sink.sink.driver.attempt_figures import AttemptFigures
from spark_2pc_sink.sink.driver.bad_row_search import SEARCHES_MAX, search_bad_rows
from spark_2pc_sink.sink.driver.batch_placement import BatchPlacement
from spark_2pc_sink.sink.driver.decision_scope import DecisionScope
from spark_2pc_sink.sink.driver.kept_check import KeptCheck
from spark_2pc_sink.sink.driver.on_decide import DecidingBatch
from spark_2pc_sink.sink.driver.prepared_batch import DecidedBatch, PreparedBatch
from spark_2pc_sink.sink.driver.replay_check import check_resend, check_skip

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sqlalchemy import Connection

    from jdbc_state import StateRow, StateStore
    from spark_2pc_sink.clock import Clock
    from spark_2pc_sink.producer.producer_init import InitializedProducer
    from spark_2pc_sink.recovery.kafka_side import KafkaSide
    from spark_2pc_sink.recovery.recovery import Recovered, Recovery
    from spark_2pc_sink.sink.contract.batch_work import BatchWork, ProducedBatch
    from spark_2pc_sink.sink.report import BatchReport


_REFUSED = (AuthorizationError, ConfigurationError)  # no restart of a server changes these
#: Errors that running the batch again cannot change.
_PERMANENT = (
    *_REFUSED,
    ClaimRefusedError,
    DataError,
    HaltError,
    InDoubtError,
    LocalProtocolError,
    TransactionExpiredError,
)


class BatchDriver:
    """Takes the batches of one run of one query through the recipe.

    Args:
        transactional_id: the sink's id.
        recovery: claims and settles; called once at the start, and after every attempt that failed, unless for a bad
            row.
        kafka: the coordinator.
        store: the state rows.
        clock: measures how much of the transaction timeout is left.
        query_id: Spark's id of the query.
        run_id: Spark's id of this run.
        attempts_max: how many transactions one batch may begin in one call.
        decision_margin_ms: what must be left of Kafka's transaction timeout when the state row is written.
        restore_deadline_ms: how long recovery after a failed attempt waits for a database or broker that restarts.
        accept_replay: the batch whose replay may differ from what the database has: owed, it is resent as it is now; if
            both sides have it, it is left out. None for no batch.
        stopping: True when the query was told to stop, so that another attempt would only delay it.
        observer: told of every step reached.
        step_seconds: how long each step of this batch has taken so far, for the history.
        look_back: what Spark shows of batches that did not come.
        numbered_by_hand: a person gives the batches their ids, which then only have to ascend.
        on_decide: what a user adds to the decision of a batch; never called where the database has decided it already.
    """

    def __init__(
        self,
        *,
        transactional_id: str,
        recovery: Recovery,
        kafka: KafkaSide,
        store: StateStore,
        clock: Clock,
        query_id: str,
        run_id: str,
        attempts_max: int,
        decision_margin_ms: int,
        restore_deadline_ms: int,
        accept_replay: int | None,
        stopping: Callable[[], bool],
        observer: Observer,
        step_seconds: Callable[[], Mapping[str, float]] = dict,
        look_back: Callable[[range], RunRecord] = lambda _: NOTHING_SHOWN,
        numbered_by_hand: bool = False,
        on_decide: Callable[[Connection, DecidingBatch], None] | None = None,
    ) -> None:
        self._transactional_id = transactional_id
        self._log = sink_log(__name__, transactional_id)
        self._recovery = recovery
        self._kafka = kafka
        self._store = store
        self._clock = clock
        self._query_id = query_id
        self._run_id = run_id
        self._attempts_max = attempts_max
        self._decision_margin_ms = decision_margin_ms
        self._accept_replay = accept_replay
        self._stopping = stopping
        self._observer = observer
        self._step_seconds = step_seconds
        self._placement = BatchPlacement(store, recovery.losses, look_back, numbered_by_hand=numbered_by_hand)
        self._restore_deadline_ms = restore_deadline_ms
        self._on_decide = on_decide
        self._transactions = 0
        self._figures = AttemptFigures()
        self._row: StateRow | None = None
        self._initialized: InitializedProducer | None = None
        self._producer: ProducerIdAndEpoch | None = None
        # The pair of the newest attempt's transaction.
        self._begun: ProducerIdAndEpoch | None = None
        # The pair of a transaction from the moment that COMMIT may have decided it until Kafka has followed.
        self._decided: str | None = None
        self._kept = KeptCheck(kafka, self._log)
        # True from the beginning of a call of `write` until it returns.
        self._unfinished = False

    def recover(self) -> Recovered:
        """Step 0, and the way back after anything that went wrong (see `spark_2pc_sink.recovery.recovery`)."""
        expected = None if self._row is None else self._row.generation
        self._producer = None
        recovered = self._recovery.run(query_id=self._query_id, run_id=self._run_id, expected_generation=expected)
        self._row = recovered.row
        self._initialized = recovered.initialized
        self._producer = recovered.initialized.producer
        self._decided = None
        self._observer(Step.RECOVER)
        return recovered

    def write(self, batch_id: int, work: BatchWork) -> BatchReport:
        """Take one batch through steps 1 to 7; returns when both sides have it.

        Args:
            batch_id: Spark's id of the batch.
            work: what it consists of.

        Raises:
            DataError, ConfigurationError, …: running it again would not help; both sides are as before it.
            BatchAttemptsExhaustedError: it failed as often as it may; both sides are as before it.
            HaltError: a person has to decide; see its remedies.
            SupersededError: a newer driver has taken over.
            InDoubtError: decided, and Kafka could not be brought to follow; a restart settles it.
        """
        if self._unfinished:
            # The call before ended by an exception, and its caller goes on all the same.
            self.recover()
        self._unfinished = True
        with self._recovery.explaining():
            report = self._write(batch_id, work)
        self._unfinished = False
        self._placement.written = batch_id
        return report

    def _write(self, batch_id: int, work: BatchWork) -> BatchReport:
        self._kafka.ask_features()
        first = placement = self._place(batch_id)
        if first is Placement.SKIP:
            work.recall()
            replay = work.reread(self._ticket(self._newest_pair(), kafka_only=True))
            row = self._placement.as_written(self._claimed(), batch_id)
            self._note_accepted(check_skip(row, replay, accept_replay=self._accept_replay))
            return AttemptFigures().report(row, batch_id, first, attempts=0)
        error: Exception | None = None
        attempt = failed = 0
        while failed < self._attempts_max:
            attempt += 1
            error = self._try(batch_id, work, attempt, placement)
            if error is not None:
                placement = self._place(batch_id)
            if error is None or placement is Placement.SKIP:
                return self._figures.report(self._claimed(), batch_id, first, attempts=attempt)
            # An attempt after which bad rows were found has its next one in any case.
            failed += not isinstance(error, DataError)
        assert error is not None
        raise BatchAttemptsExhaustedError(
            batch_id=batch_id, attempts=self._attempts_max, last_error=in_words(error)
        ) from error

    def _try(self, batch_id: int, work: BatchWork, attempt: int, placement: Placement) -> Exception | None:
        """Run one attempt; the error after which both sides were restored, or None for success."""
        try:
            self._attempt(batch_id, work, kafka_only=placement is Placement.RESEND)
        except SupersededError:
            raise
        except DataError as error:
            self._abort(error)
            if placement is Placement.RESEND or attempt > self._attempts_max + SEARCHES_MAX:
                raise
            return self._search(work, error)
        except _PERMANENT as error:
            self._restore(error)
            raise
        except Exception as error:
            self._log.warning("batch %d, attempt %d of %d failed: %s", batch_id, attempt, self._attempts_max, error)
            self._restore(error)
            if self._stopping():
                raise
            return error
        finally:
            work.discard()
        return None

    def _search(self, work: BatchWork, error: DataError) -> Exception:
        """Find the rows for which an attempt has failed; see `search_bad_rows`."""
        self._transactions += 1
        return search_bad_rows(self._store, work, self._ticket(self._newest_pair(), kafka_only=False), error)

    def _abort(self, error: DataError) -> None:
        """Abort an attempt that met a bad row with its own pair: it is not decided, and no crash that needs a claim."""
        if self._begun is not None and self._decided is None:
            try:
                answer = self._kafka.end(self._begun, commit=False)
            except DualWriteError as failure:
                self._log.warning("the transaction of a bad row could not be aborted; recovering: %s", failure)
            else:
                if answer.code == Code.NONE:
                    # Below transaction.version 2 EndTxn answers no pair: the next attempt begins with InitProducerId.
                    self._producer = answer.producer
                    return
        self._restore(error)

    def _restore(self, error: Exception) -> None:
        """Recover after ``error``, waiting out a database or broker that is just restarting.

        Raises:
            InDoubtError: the batch was decided before ``error``, and recovery did not get through.
            Exception: ``error`` itself, when nothing was decided and recovery did not get through.
        """
        name, decided = self._transactional_id, self._decided
        deadline = Deadline(self._clock, self._restore_deadline_ms)
        while True:
            try:
                self.recover()
            except (SupersededError, HaltError, InDoubtError, ClaimRefusedError):
                raise
            except DualWriteError as second:
                if not isinstance(second, _REFUSED):
                    self._log.warning("recovery after %r did not get through yet: %s", error, second)
                    if not deadline.passed:
                        deadline.pause()
                        continue
                if decided is None:
                    raise error from second
                raise InDoubtError(transactional_id=name, prepared=decided, detail=str(second)) from second
            else:
                return

    def _place(self, batch_id: int) -> Placement:
        """Step 1. Beside a row that lost a decision since this driver saw it, a batch would be written again."""
        seen = self._claimed()
        row = self._row = self._look_at_row(seen.generation)
        if (row.status, row.prepared_transaction_state) != (seen.status, seen.prepared_transaction_state):
            raise lost_commits_error(row, f"{seen.status}, decision {seen.prepared_transaction_state or 'none'}")
        self._row, placed = self._placement.place(row, batch_id)
        self._observer(Step.PLACE)
        return placed

    def _look_at_row(self, generation: int) -> StateRow:
        """The row under this claim, or a new one where the database was restarting: a newer driver may have it."""
        try:
            return self._store.check_generation(self._transactional_id, generation)
        except StateStoreError as error:
            self._restore(error)
            return self._store.check_generation(self._transactional_id, self._claimed().generation)

    def _attempt(self, batch_id: int, work: BatchWork, *, kafka_only: bool) -> None:
        """Steps 2 to 7, once."""
        begun_s = self._clock.now_s()
        generation = self._claimed().generation
        self._transactions += 1
        self._figures = AttemptFigures()
        if kafka_only:
            work.recall()
        self._begun = None
        producer = self._begun = self._begin(work)
        self._observer(Step.BEGIN)
        ticket = self._ticket(producer, kafka_only=kafka_only)
        with DecisionScope(lambda: self._store.deciding(self._transactional_id, generation)) as scope:
            produced = self._produce(work, ticket, scope)
            prepared = PreparedBatch(batch_id, producer, produced, begun_s)
            decided: DecidedBatch | None = None
            alone = not produced.record_count and (produced.row_count + produced.bad_rows) > 0 and not kafka_only
            if produced.record_count:
                self._observer(Step.PREPARE)
                decided = self._decide(prepared, work, scope, kafka_only=kafka_only)
            elif alone:
                self._decide_alone(prepared, work, scope)
        if decided is None and not alone:
            self._take_empty(batch_id)
        if decided is None:
            self._keep_pair(producer)
            return
        self._observer(Step.DECIDE)
        self._complete(decided)

    def _ticket(self, producer: ProducerIdAndEpoch, *, kafka_only: bool) -> TransactionTicket:
        generation = self._claimed().generation
        return TransactionTicket(
            transactional_id=self._transactional_id,
            producer=producer,
            transaction_version=self._kafka.transaction_version,
            generation=generation,
            transaction=self._transactions,
            application_name=application_name(self._transactional_id, generation),
            kafka_only=kafka_only,
        )

    def _produce(self, work: BatchWork, ticket: TransactionTicket, scope: DecisionScope) -> ProducedBatch:
        """Step 3, and what must be true of it."""
        produced = work.produce(ticket, scope.open_decision)
        self._figures = AttemptFigures(produced)
        self._observer(Step.PRODUCE)
        if produced.record_count != produced.expected_records:
            raise BatchRetryError(
                reason=f"the tasks read rows for {produced.expected_records} records beside {produced.left_out} that "
                f"are left out, Kafka acknowledged {produced.record_count} records"
            )
        if ticket.kafka_only:
            replay = Replay(produced.record_count, produced.digest)
            self._note_accepted(check_resend(self._claimed(), replay, accept_replay=self._accept_replay))
        return produced

    def _note_accepted(self, did: str) -> None:
        """Write down what a person has accepted with the sink's option, BEFORE it is done."""
        if did:
            generation = self._claimed().generation
            self._store.note_action(self._transactional_id, generation, ACCEPT_REPLAY, {"did": did})

    def _take_empty(self, batch_id: int) -> None:
        """There are no rows and no records, so there is nothing to be committed: only the row moves on.

        An owed batch can only come here when a person has accepted a replay without records.
        """
        row = self._claimed()
        if row.status == RowStatus.OWED:
            did = {"did": f"batch {batch_id} was owed, and has no records as Spark replays it now"}
            self._row = self._store.drop_batch(self._transactional_id, row.generation, row.settled, detail=did)
        else:
            pair, figures = row.prepared_transaction_state, self._history()
            self._row = self._store.take_empty_batch(
                self._transactional_id, row.generation, batch_id, pair, figures=figures
            )

    def _keep_pair(self, producer: ProducerIdAndEpoch) -> None:
        """No record was acknowledged, so there is nothing to be committed in Kafka: the pair serves the next batch."""
        if self._kafka.transaction_version >= EPOCH_BUMP_VERSION:
            self._producer = producer
        else:
            # Adding its partitions has opened a transaction all the same: the next pair, due anyway, aborts it now.
            self._initialized = self._kafka.usable_producer()
            self._producer = self._initialized.producer

    def _begin(self, work: BatchWork) -> ProducerIdAndEpoch:
        """Step 2: the pair of this transaction, and below transaction.version 2 its partitions."""
        producer = self._producer
        # A pair begins one transaction: it is taken out here, and the next one comes from EndTxn or from recover().
        self._producer = None
        self._kafka.learn_features()
        if producer is None or producer.exhausted:
            self._initialized = self._kafka.usable_producer()
            producer = self._initialized.producer
            # After it, not before: a claim that comes later ends with an InitProducerId that fences this pair. Else a
            # driver that was superseded meanwhile would open a transaction that nobody ends.
            self._store.check_generation(self._transactional_id, self._claimed().generation)
        if self._kafka.transaction_version < EPOCH_BUMP_VERSION:
            self._kafka.add_partitions(producer, work.partitions())
        return producer

    def _decide(self, batch: PreparedBatch, work: BatchWork, scope: DecisionScope, *, kafka_only: bool) -> DecidedBatch:
        """Step 5: write the rest of the rows and the state row in the transaction of ``scope``, and COMMIT.

        Raises:
            CommitUnknownError: COMMIT raised; only a new claim can tell what it did.
            SupersededError: a newer driver has claimed; nothing was written.
            BatchRetryError: not all rows arrived; nothing was written.
            TransactionExpiredError: Kafka would abort the transaction before it could be committed.
        """
        produced = batch.produced
        if not kafka_only:
            self._write_rows(batch, work, scope)
        self._check_time_left(batch)
        self._decided = str(batch.producer)
        rows = self._claimed().row_count if kafka_only else produced.row_count
        self._kafka.ask_features()
        scope.transaction.decide(batch.decision(self._claimed(), row_count=rows))
        scope.commit()
        return DecidedBatch(batch.producer, WrittenRecords(batch.batch_id, produced.offsets, produced.topic_ids))

    def _decide_alone(self, batch: PreparedBatch, work: BatchWork, scope: DecisionScope) -> None:
        """Step 5 of a batch with rows and without records: nothing of it is in Kafka, so the row is done with COMMIT.

        Raises:
            CommitUnknownError: COMMIT raised; only a new claim can tell what it did.
            SupersededError: a newer driver has claimed; nothing was written.
            BatchRetryError: not all rows arrived; nothing was written.
        """
        self._write_rows(batch, work, scope)
        # The last statement about this batch: the times of its steps end here.
        rows, figures = batch.produced.row_count, self._history()
        scope.transaction.decide(batch.decision(self._claimed(), row_count=rows, figures=figures))
        scope.commit()
        self._observer(Step.DECIDE)
        self._row = self._store.check_generation(self._transactional_id, self._claimed().generation)

    def _write_rows(self, batch: PreparedBatch, work: BatchWork, scope: DecisionScope) -> None:
        """Write the rest of the rows, and what a user adds to them."""
        produced = batch.produced
        written = work.copy_into(scope.transaction.connection)
        self._figures = AttemptFigures(produced, written)
        if written.given != produced.row_count:
            raise BatchRetryError(
                reason=f"{produced.row_count} rows were read for tables, {written.given} arrived there"
            )
        if self._on_decide is not None:
            about = self._transactional_id, batch.batch_id, batch.producer, produced, written
            self._on_decide(scope.transaction.connection, DecidingBatch.of(*about))

    def _check_time_left(self, batch: PreparedBatch) -> None:
        if self._initialized is not None:
            batch.check_time_left(self._clock.now_s(), self._initialized, margin_ms=self._decision_margin_ms)

    def _complete(self, batch: DecidedBatch) -> None:
        """Steps 6 and 7: commit in Kafka, see that the records are there, and note it.

        Raises:
            BatchRetryError: EndTxn answered something that only a new look at both sides can interpret; or the records
                are not there.
            OutcomeUnknownError: EndTxn was not answered in time.
        """
        producer = batch.producer
        answer = self._kafka.end(producer, commit=True)
        if answer.code != Code.NONE:
            raise BatchRetryError(
                reason=f"EndTxn(commit) of the decided transaction {producer} answered {answer.name}; looking again"
            )
        self._observer(Step.COMPLETE)
        self._kept.see(batch.written)
        settled = answer.producer or producer
        generation = self._claimed().generation
        self._row = self._store.mark_done(self._transactional_id, generation, str(settled), figures=self._history())
        # Below transaction.version 2 EndTxn answers no pair: the next transaction begins with InitProducerId.
        self._producer = answer.producer
        self._decided = None
        self._observer(Step.NOTE)

    def _history(self) -> dict[str, Any]:
        return self._figures.for_history(self._step_seconds())

    def _claimed(self) -> StateRow:
        if self._row is None:
            raise _not_recovered()
        return self._row

    def _newest_pair(self) -> ProducerIdAndEpoch:
        if self._initialized is None:
            raise _not_recovered()
        return self._initialized.producer


def _not_recovered() -> LocalProtocolError:
    return LocalProtocolError(
        operation="write", state="not recovered", rule="recover() comes first in each run of a query"
    )
