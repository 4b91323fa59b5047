"""One transactional id of a service: its transactions go through the recipe one at a time.

The steps and their order are those of a micro-batch (`spark_2pc_sink.recipe.steps`). The differences:

* The database transaction is the caller's. The decision is written into it, and the caller commits it.
* On transaction.version 2 the note that Kafka has committed is written with this id's next decision, not in a COMMIT
  of its own. Until then the row is ``decided``; recovery asks Kafka and finds the transaction committed.
* Transactions are not replayed. If Kafka may abort one after the decision, the decision also stores its records.

A failure leaves the writer *unsettled*: only `IdWriter.recover` may then be called. It is the same recovery as any
sink's, and resends the records that Kafka lacks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from sqlalchemy import Connection

from jdbc_state import DECIDED, OWED, Decision, KeptRecords, SqlStateStore, StateRow
from jdbc_state.sink_log import log_for_sink, sink_log
from jdbc_state.state_store import KeepingStore
from spark_2pc_sink.clock import Clock, Deadline
from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import DualWriteError, HaltError, InDoubtError, LocalProtocolError, SupersededError
from spark_2pc_sink.ids import EPOCH_BUMP_VERSION, ProducerIdAndEpoch
from spark_2pc_sink.kafka.cluster import Cluster
from spark_2pc_sink.kafka.produce_session import AcknowledgedBatches, BatchListSender, SendBatches, join_batches
from spark_2pc_sink.kafka.transaction_client import EndTxnLater, TransactionClient
from spark_2pc_sink.options import ServiceOptions
from spark_2pc_sink.recovery.diagnosis import KafkaSide
from spark_2pc_sink.recovery.recovery import Recovery, commits_lost_halt, resend
from spark_2pc_sink.service.transaction import EncodedRecords
from spark_2pc_sink.wire.record_batch import PlacedBatch

#: Checking costs a request, and a service runs thousands of transactions while an operator types a command. Brokers
#: learn of a new level within about the same time.
_FEATURES_AGE_MS_MAX: Final = 1_000
#: Each attempt to complete a transaction is a separate recovery. A broker that aborts three resends in a row will abort
#: the fourth: a person has to look.
SETTLE_ATTEMPTS_MAX: Final = 3


class EndingKafka(KafkaSide, Protocol):
    """What a service needs of `TransactionClient`."""

    def begin_end(self, producer: ProducerIdAndEpoch, *, commit: bool) -> EndTxnLater | None: ...


@dataclass(frozen=True)
class SentRecords:
    """Records that Kafka has acknowledged, in a transaction that is not decided yet."""

    producer: ProducerIdAndEpoch
    records: EncodedRecords
    acknowledged: AcknowledgedBatches


@dataclass(frozen=True)
class OwnedId:
    """A transactional id of this process; ``owner`` is written to the state row in place of a query id."""

    transactional_id: str
    owner: str
    run_id: str
    settle_deadline_ms: int


class IdWriter:
    """Takes transactions of one transactional id through the recipe. If ``unsettled``, only `recover` may be called."""

    def __init__(
        self,
        owned: OwnedId,
        *,
        recovery: Recovery,
        kafka: EndingKafka,
        store: KeepingStore,
        send: SendBatches,
        clock: Clock,
    ) -> None:
        self.transactional_id: str = owned.transactional_id
        self.unsettled: bool = True
        self._log = sink_log(__name__, owned.transactional_id)
        self._owned = owned
        self._recovery = recovery
        self._kafka = kafka
        self._store = store
        self._send = send
        self._clock = clock
        self._row: StateRow | None = None
        self._two_phase_commit = False
        self._producer: ProducerIdAndEpoch | None = None
        # Producer id and epoch that Kafka returned for a commit that the row does not show yet; None if there is none.
        self._unnoted: str | None = None
        self._unnoted_since_s = 0.0
        # An EndTxn(commit) was sent, and its answer has not been read.
        self._ending: tuple[ProducerIdAndEpoch, EndTxnLater] | None = None

    @property
    def unnoted_s(self) -> float | None:
        """Seconds since the row was left at ``decided`` while Kafka commits or has committed; None if it is current."""
        noted = self._unnoted is None and self._ending is None
        return None if noted else self._clock.now_s() - self._unnoted_since_s

    def recover(self, *, expected: StateRow | None = None) -> None:
        """Claim the row, settle the previous transaction, and resend the records that Kafka lacks.

        ``expected`` is the row as just read, with no live driver: the claim is refused if the row has been claimed
        since. It is None for a row that does not exist, and for this writer's own claim.
        """
        self.unsettled = True
        # Otherwise the logs would be needed to tell how the previous decision has ended.
        self.note()
        known = self._row or expected
        with log_for_sink(self.transactional_id), self._recovery.explaining():
            recovered = self._recovery.run(
                query_id=self._owned.owner,
                run_id=self._owned.run_id,
                expected_generation=None if known is None else known.generation,
            )
            self._row = recovered.row
            if recovered.row.status == OWED:
                recovered = resend(recovered, kafka=self._kafka, store=self._store, send=self._send)
                self._log.warning("recovered: %s", recovered.report.actions[-1])
        self._row, self._unnoted = recovered.row, None
        self._producer, self._two_phase_commit = recovered.initialized.producer, recovered.initialized.two_phase_commit
        self.unsettled = False

    def settle(self, prepared: ProducerIdAndEpoch) -> bool:
        """Whether the database has decided a transaction, which is then completed in Kafka; else neither has it."""
        error: DualWriteError | None = None
        before = self._claimed()
        deadline = Deadline(self._clock, self._owned.settle_deadline_ms)
        for _ in range(SETTLE_ATTEMPTS_MAX):
            try:
                self.recover()
            except (HaltError, InDoubtError):
                raise
            except SupersededError as superseded:
                # The id's new holder settles it; the row may no longer show this transaction's outcome.
                raise self._in_doubt(prepared, superseded) from superseded
            except DualWriteError as again:
                error = again
                self._log.warning("could not settle transaction %s yet: %s", prepared, again)
            else:
                # A resend uses another epoch, and no transaction of this id was begun after this one.
                row = self._claimed()
                return row.prepared_transaction_state == str(prepared) or row.batch_id != before.batch_id
            if deadline.passed:
                break
            deadline.pause()
        raise self._in_doubt(prepared, error) from error

    def send(self, records: EncodedRecords) -> SentRecords:
        """Begin a Kafka transaction, and send; all records are acknowledged when this returns."""
        if self.unsettled:
            raise LocalProtocolError(operation="send", state="unsettled", rule="call recover() first")
        self.unsettled = True
        with log_for_sink(self.transactional_id):
            producer = self._begin(records.batches)
            acknowledged = self._send(producer, self._kafka.transaction_version, records.batches)
        return SentRecords(producer, records, acknowledged)

    def decide(self, connection: Connection, sent: SentRecords) -> None:
        """Write the state row in the caller's transaction, as its last statement; COMMIT decides."""
        row = self._claimed()
        batch_id = _next_batch_id(row)
        decision = Decision(
            prepared=str(sent.producer),
            expected=row.prepared_transaction_state,
            batch_id=batch_id,
            # The number of rows that a session has written is not known.
            row_count=0,
            record_count=sent.records.record_count,
            digest=sent.records.digest,
            kafka_offsets={str(partition): at for partition, at in sent.acknowledged.offsets.items()},
            topic_ids=dict(sent.acknowledged.topic_ids),
        )
        # The note's outcome is that of the decision, which is unknown once COMMIT was sent.
        unnoted, self._unnoted = self._unnoted, None
        # With two-phase commit the transaction does not time out.
        kept = None if self._two_phase_commit else KeptRecords(batch_id, *join_batches(sent.records.batches))
        try:
            with commits_lost_halt():
                self._store.decide_within(
                    connection, self.transactional_id, row.generation, decision, settled=unnoted, kept=kept
                )
        except BaseException:
            # COMMIT will not be sent. Without the note the logs would be needed for what Kafka has answered.
            self._unnoted = unnoted
            raise

    def decided(self, sent: SentRecords) -> None:
        row = self._claimed()
        prepared, batch_id = str(sent.producer), _next_batch_id(row)
        self._row = replace(row, status=DECIDED, prepared_transaction_state=prepared, batch_id=batch_id)

    def complete(self, sent: SentRecords) -> None:
        """Commit the decided transaction in Kafka; after InDoubtError the id's next recovery continues from there."""
        if not self._has_followed(sent.producer, lambda: self._kafka.end(sent.producer, commit=True)):
            self.settle(sent.producer)

    def begin_completion(self, sent: SentRecords) -> bool:
        """Send the commit to Kafka; `end_completion` reads the answer. False if it could not be sent at once."""
        with log_for_sink(self.transactional_id):
            try:
                ending = self._kafka.begin_end(sent.producer, commit=True)
            except DualWriteError as error:
                self._log.warning("could not send EndTxn(commit) of %s: %s; sending again", sent.producer, error)
                return False
        if ending is None:
            return False
        self._ending, self._unnoted_since_s = (sent.producer, ending), self._clock.now_s()
        self.unsettled = False
        return True

    def end_completion(self) -> None:
        """Read the answer to `begin_completion`, if there was one: the writer is unsettled by all but success."""
        if self._ending is None:
            return
        (producer, ending), self._ending = self._ending, None
        self.unsettled = True
        self._has_followed(producer, ending)

    def note(self) -> None:
        """Note in the row that Kafka has committed; does nothing if the row shows it already, or Kafka has not."""
        self.end_completion()
        if self._unnoted is None:
            return
        settled, self._unnoted = self._unnoted, None
        try:
            with commits_lost_halt():
                self._row = self._store.mark_done(self.transactional_id, self._claimed().generation, settled)
        except BaseException:
            self.unsettled = True
            raise

    def _has_followed(self, producer: ProducerIdAndEpoch, read_answer: EndTxnLater) -> bool:
        """Read the answer to EndTxn(commit); after success the writer can continue, and anything else is logged."""
        try:
            with log_for_sink(self.transactional_id):
                answer = read_answer()
        except DualWriteError as error:
            self._log.warning("EndTxn(commit) of %s failed: %s; checking both sides", producer, error)
            return False
        if answer is None:
            self._log.warning("EndTxn(commit) of %s got no answer; checking both sides", producer)
            return False
        if answer.code != Code.NONE:
            self._log.warning("EndTxn(commit) of %s failed: %s; checking both sides", producer, answer)
            return False
        self._unnoted, self._unnoted_since_s = str(answer.producer or producer), self._clock.now_s()
        self._producer = answer.producer
        self.unsettled = False
        if answer.producer is None:
            # Below transaction.version 2 the next transaction begins with InitProducerId, which would hide the outcome.
            try:
                self.note()
            except DualWriteError as error:
                # Both sides have the transaction; the missing note is left to the next recovery.
                self._log.warning("could not note the commit in Kafka: %s", error)
        return True

    def _begin(self, batches: Sequence[PlacedBatch]) -> ProducerIdAndEpoch:
        producer, self._producer = self._producer, None
        self._kafka.refresh_features()
        if producer is None or producer.exhausted:
            self.note()
            initialized = self._kafka.usable_producer()
            producer, self._two_phase_commit = initialized.producer, initialized.two_phase_commit
            # Only after it: a later claim ends with an InitProducerId that fences this producer.
            with commits_lost_halt():
                self._store.check_generation(self.transactional_id, self._claimed().generation)
        if self._kafka.transaction_version < EPOCH_BUMP_VERSION:
            self._kafka.add_partitions(producer, [each.partition for each in batches])
        return producer

    def _claimed(self) -> StateRow:
        if self._row is None:
            raise LocalProtocolError(operation="use of the id", state="not claimed", rule="call recover() first")
        return self._row

    def _in_doubt(self, prepared: ProducerIdAndEpoch, error: DualWriteError | None) -> InDoubtError:
        return InDoubtError(transactional_id=self.transactional_id, prepared=str(prepared), detail=str(error))


def _next_batch_id(row: StateRow) -> int:
    """Number the transactions of an id consecutively: only this writer counts them."""
    return 0 if row.batch_id is None else row.batch_id + 1


class ConnectedId:
    """One id and its own connections, as a broker answers a connection's requests in turn. Constructing does no I/O."""

    def __init__(
        self, options: ServiceOptions, transactional_id: str, store: SqlStateStore, run_id: str, clock: Clock
    ) -> None:
        self._cluster = Cluster(options.kafka)
        kafka = TransactionClient(
            self._cluster, transactional_id, options.kafka, features_age_ms_max=_FEATURES_AGE_MS_MAX
        )
        own = replace(options, transactional_id=transactional_id, ids=1, ids_max=1)
        self._recovery = Recovery(own, kafka=kafka, store=store, clock=clock)
        self.writer: IdWriter = IdWriter(
            OwnedId(transactional_id, options.owner, run_id, options.settle_deadline_ms),
            recovery=self._recovery,
            kafka=kafka,
            store=store,
            send=BatchListSender(self._cluster, transactional_id, options.kafka).send,
            clock=clock,
        )

    def release(self) -> None:
        """Claim the row without an owner: no process holds it any more."""
        self._recovery.run(query_id=None, run_id=None)

    def close(self) -> None:
        self._cluster.close()
