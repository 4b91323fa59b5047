"""A driver's inputs, the work that it calls, and the values that one batch passes through.

    Claim → Attempt → Produced → Decided → Done

Each value is made from the one before it, so the order of KIP-939's recipe is in the types. `Produced` results only
from an open `Attempt`, and `Decided` only from a COMMIT; completing accepts only a `Decided`, and there is no way to
abort one. The tasks of a batch are a `BatchWork`, without which this needs no Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Protocol

from sqlalchemy import Connection

from jdbc_state import Decision, StateRow, StateStore
from jdbc_state.state_store import DecidingTransaction
from spark_2pc_sink.clock import Clock
from spark_2pc_sink.errors import DataError, TransactionExpiredError
from spark_2pc_sink.ids import PreparedTxnState, ProducerIdAndEpoch, TopicPartition
from spark_2pc_sink.kafka.batch_sender import ProducedTransaction
from spark_2pc_sink.kafka.coordinator_calls import InitializedProducer
from spark_2pc_sink.recipe.kept_records import WrittenRecords
from spark_2pc_sink.recipe.placement import NOTHING_SHOWN, Placement, RunRecord
from spark_2pc_sink.recovery.diagnosis import KafkaSide
from spark_2pc_sink.recovery.recovery import Recovery
from spark_2pc_sink.sink.driver.on_decide import DecidingBatch
from spark_2pc_sink.sink.report import NOTHING_WRITTEN, BatchReport, WrittenRows


@dataclass(frozen=True)
class TransactionTicket(ProducedTransaction):
    """The Kafka transaction of an attempt."""

    #: A resend: the database already has the rows.
    kafka_only: bool


@dataclass(frozen=True)
class ProducedBatch:
    """The outcome of all tasks of an attempt: written to Kafka, and encoded for the database."""

    row_count: int
    record_count: int
    #: 32 hexadecimal digits over these records, and rows that go to a table but to no topic; '' if there are neither.
    digest: str
    offsets: Mapping[TopicPartition, tuple[int, int]]
    #: Records that the rows for all topics make, but for those left out, and the dead letters.
    expected_records: int
    record_bytes: int = 0
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    #: Rows for which no record was sent, because others of their upsert key supersede them.
    left_out: int = 0
    #: Rows or records of each output, keyed by its text, such as ``Rows('orders')``.
    outputs: Mapping[str, int] = field(default_factory=dict)
    #: Rows that go only to the dead letters; not included in any row count.
    bad_rows: int = 0


#: Outcome of an attempt before its tasks have ended.
NOTHING_PRODUCED: Final = ProducedBatch(row_count=0, record_count=0, digest="", offsets={}, expected_records=0)


@dataclass(frozen=True)
class Replay:
    """Count and digest of records: they detect a different batch replayed under the same id."""

    record_count: int
    digest: str

    def __str__(self) -> str:
        return f"{self.record_count} records, digest {self.digest or 'none'}"


class BatchResults(Protocol):
    counts: ProducedBatch

    def copy_into(self, connection: Connection) -> WrittenRows:
        """Write the remaining rows and the dead letters; returns the outcome of all rows."""

    def close(self) -> None:
        """Release what is held. The attempt is over, decided or not."""


class BatchWork(Protocol):
    """The work of a batch; `SparkBatch` is the production implementation. An attempt's state is only in its results."""

    def partitions(self) -> Iterable[TopicPartition]:
        """Every partition that `produce` may write; called only below transaction.version 2."""

    def produce(self, ticket: TransactionTicket, open_decision: Callable[[], Connection]) -> BatchResults:
        """Run the tasks: every record acknowledged and every row encoded, or raise and keep no state.

        ``open_decision`` opens the deciding database transaction on the first call, and returns its connection. Another
        thread may call it and write rows there while tasks still run; the driver commits it later. No thread uses the
        connection after this returns or raises.
        """

    def search(self, error: DataError, open_decision: Callable[[], Connection]) -> bool:
        """After a failed attempt: find its bad rows, which all later steps leave out of every output.

        ``open_decision`` opens a database transaction that is rolled back at the end. False if the batch has to fail
        with ``error``: no single row is bad, or bad rows are not to be left out. A TooManyBadRowsError if the user
        allows fewer.
        """

    def recall(self) -> None:
        """Leave out the rows that were left out when the batch was decided. Call BEFORE a replay."""

    def reread(self) -> Replay:
        """Evaluate the batch as `produce` does, without writing. This advances the plan's stateful operators."""


@dataclass(frozen=True)
class Sides:
    recovery: Recovery
    kafka: KafkaSide
    store: StateStore
    clock: Clock


@dataclass(frozen=True)
class RunIds:
    """Spark's ids of one run of one query: the query's is kept in the checkpoint, and each start has a new run."""

    query_id: str
    run_id: str


class RunOfQuery:
    """The run of a query whose batches a driver writes; by itself, one about which no more is known than its ids."""

    #: True if a person assigns batch ids, which then only have to ascend.
    explicit_batch_ids: ClassVar[bool] = False

    def __init__(self, ids: RunIds) -> None:
        self.ids = ids

    def is_stopping(self) -> bool:
        """True if the query was told to stop: another attempt of the batch would only delay that."""
        return False

    def skipped_batches(self, missing: range) -> RunRecord:
        """Spark's record of batches for which the sink was not called."""
        del missing
        return NOTHING_SHOWN


@dataclass(frozen=True)
class BatchRules:
    """The options of a sink that a driver follows."""

    transactional_id: str
    attempts_max: int
    #: Required remainder of Kafka's transaction timeout when the state row is written.
    decision_margin_ms: int
    #: How long recovery after a failed attempt waits for a restarting database or broker.
    restore_deadline_ms: int
    #: Batch whose replay may differ from what the database has: if owed, it is resent as it is now; if both sides have
    #: it, it is skipped.
    accept_replay: int | None = None
    on_decide: Callable[[Connection, DecidingBatch], None] | None = None


@dataclass(frozen=True)
class Claim:
    """The state row under this driver's claim, and the producer of its next transaction."""

    row: StateRow
    #: The answer to the newest InitProducerId.
    initialized: InitializedProducer
    #: None if an InitProducerId has to come first.
    next_producer: ProducerIdAndEpoch | None

    @property
    def generation(self) -> int:
        return self.row.generation


class Attempt(ExitStack):
    """One Kafka transaction and one database transaction, with everything the work opens for them.

    Leaving the block is the only place that rolls back and cleans up. The database transaction begins when it is first
    needed: usually by the copy thread, for the first rows that arrive while tasks still run. That thread has ended when
    the driver's thread writes the state row.
    """

    def __init__(
        self,
        work: BatchWork,
        ticket: TransactionTicket,
        deciding: Callable[[], AbstractContextManager[DecidingTransaction]],
    ) -> None:
        super().__init__()
        self.work = work
        self.ticket = ticket
        #: What has been written so far, for the report and the history.
        self.outcome: Outcome = Outcome()
        #: True from the moment that COMMIT may have decided a batch with records.
        self.in_doubt: bool = False
        self._deciding = deciding
        self._transaction: DecidingTransaction | None = None

    @property
    def transaction(self) -> DecidingTransaction:
        if self._transaction is None:
            self._transaction = self.enter_context(self._deciding())
        return self._transaction

    def open_decision(self) -> Connection:
        """The connection of the database transaction, begun now if it was not yet. For one thread at a time."""
        return self.transaction.connection

    def produce(self, batch_id: int, begun_s: float) -> Produced:
        """Run the tasks: every record acknowledged and every row encoded, or an exception."""
        results = self.work.produce(self.ticket, self.open_decision)
        self.callback(results.close)
        self.outcome = Outcome(results.counts)
        return Produced(self, batch_id, begun_s, results)

    def commit(self, produced: Produced, decision: Decision) -> Decided:
        counts = produced.counts
        self.in_doubt = counts.record_count > 0
        self.transaction.decide(decision)
        self.close()
        written = WrittenRecords(produced.batch_id, counts.offsets, counts.topic_ids)
        return Decided(self.ticket.producer, written, self.outcome, has_records=counts.record_count > 0)


@dataclass(frozen=True)
class Produced:
    """A batch whose records are all acknowledged and not yet visible; it is not decided yet."""

    attempt: Attempt
    batch_id: int
    #: When its Kafka transaction began.
    begun_s: float
    results: BatchResults

    @property
    def counts(self) -> ProducedBatch:
        return self.results.counts

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to write on either side."""
        counts = self.counts
        has_rows = counts.row_count + counts.bad_rows > 0 and not self.attempt.ticket.kafka_only
        return not counts.record_count and not has_rows

    def check_time_left(self, now_s: float, initialized: InitializedProducer, *, margin_ms: int) -> None:
        """Check that Kafka keeps the transaction open for long enough; ``now_s`` is on the clock of ``begun_s``."""
        elapsed_ms = int((now_s - self.begun_s) * 1000)
        if not initialized.two_phase_commit and elapsed_ms + margin_ms > initialized.timeout_ms:
            raise TransactionExpiredError(
                batch_id=self.batch_id,
                elapsed_ms=elapsed_ms,
                timeout_ms=initialized.timeout_ms,
                margin_ms=margin_ms,
                own_timeout=initialized.own_timeout,
            )

    def deciding(self) -> DecidingBatch:
        """The batch as ``on_decide`` gets it, after its rows were written."""
        counts, ticket, written = self.counts, self.attempt.ticket, self.attempt.outcome.written
        return DecidingBatch(
            transactional_id=ticket.transactional_id,
            batch_id=self.batch_id,
            prepared=str(PreparedTxnState.of(ticket.producer)) if counts.record_count else "",
            row_count=counts.row_count,
            record_count=counts.record_count,
            rows_deleted=written.deleted,
            rows_left_out=written.left_out,
        )

    def decision(self, row: StateRow, *, figures: Mapping[str, Any] | None = None) -> Decision:
        """The values that the database transaction writes into the state row; figures only if none follow later."""
        counts, ticket = self.counts, self.attempt.ticket
        return Decision(
            prepared=str(PreparedTxnState.of(ticket.producer)),
            expected=row.prepared_transaction_state,
            batch_id=self.batch_id,
            row_count=row.row_count if ticket.kafka_only else counts.row_count,
            record_count=counts.record_count,
            digest=counts.digest,
            kafka_offsets={str(partition): offsets for partition, offsets in counts.offsets.items()},
            topic_ids=counts.topic_ids,
            figures=figures,
        )


@dataclass(frozen=True)
class Decided:
    """A batch that the database has. It can only be completed; there is no operation that aborts one."""

    producer: ProducerIdAndEpoch
    written: WrittenRecords
    outcome: Outcome
    #: False for rows alone: Kafka has no record of the batch, so COMMIT has also completed it.
    has_records: bool


@dataclass(frozen=True)
class Done:
    """A batch that both sides have."""

    row: StateRow
    #: None if an InitProducerId has to come first.
    next_producer: ProducerIdAndEpoch | None


@dataclass(frozen=True)
class Outcome:
    """Figures of one attempt, for the report of the batch and for its line in the history."""

    produced: ProducedBatch = NOTHING_PRODUCED
    written: WrittenRows = NOTHING_WRITTEN

    def report(self, row: StateRow, batch_id: int, placement: Placement, *, attempts: int) -> BatchReport:
        return BatchReport(
            transactional_id=row.transactional_id,
            batch_id=batch_id,
            placement=placement,
            row_count=row.row_count if attempts else 0,
            record_count=row.record_count if attempts else 0,
            rows_deleted=self.written.deleted,
            rows_left_out=self.written.left_out,
            record_bytes=self.produced.record_bytes,
            bad_rows=self.produced.bad_rows,
            attempts=attempts,
            prepared=row.prepared_transaction_state if row.record_count else "",
            outputs=self.produced.outputs,
        )

    def for_history(self, figures: Mapping[str, Any]) -> dict[str, Any]:
        bad_rows = {"bad_rows": self.produced.bad_rows} if self.produced.bad_rows else {}
        outputs = {"outputs": dict(self.produced.outputs)} if self.produced.outputs else {}
        return {"record_bytes": self.produced.record_bytes, **outputs, **bad_rows, **figures}
