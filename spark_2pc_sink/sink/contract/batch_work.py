"""What a micro-batch is to the driver: the work that tasks do for it, what they are told, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from sqlalchemy import Connection

    from jdbc_state import StateRow
    from spark_2pc_sink.ids import ProducerIdAndEpoch, TopicPartition
    from spark_2pc_sink.recipe.replay_decision import Placement


@dataclass(frozen=True)
class TransactionTicket:
    """What tasks need to write into the transaction of this attempt.

    Attributes:
        transactional_id: the sink's id.
        producer: the pair of the transaction.
        transaction_version: 0 to 2.
        generation: the claim under which it is written.
        transaction: number of the transaction within the claim, from 1; no two attempts of any batch share one.
        application_name: what database sessions of this claim call themselves, so that a newer claim can end them.
        kafka_only: True for a resend: the database has the rows already.
    """

    transactional_id: str
    producer: ProducerIdAndEpoch
    transaction_version: int
    generation: int
    transaction: int
    application_name: str
    kafka_only: bool

    @property
    def attempt(self) -> tuple[str, int, int]:
        """What no other attempt of any batch has."""
        return (self.transactional_id, self.generation, self.transaction)


@dataclass(frozen=True)
class ProducedBatch:
    """What all tasks of one attempt have written to Kafka and encoded for the database.

    Attributes:
        row_count: rows that the tasks read.
        record_count: records that Kafka has acknowledged.
        digest: 32 hexadecimal digits over the records, '' when there are none.
        offsets: first and last offset per partition.
        record_bytes: of the record batches that were sent, compressed.
        topic_ids: topic to Kafka's id of it, as text; empty where a broker has no topic ids.
        left_out: rows of which no record was sent, since others of their upsert key supersede them.
    """

    row_count: int
    record_count: int
    digest: str
    offsets: Mapping[TopicPartition, tuple[int, int]]
    record_bytes: int = 0
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    left_out: int = 0


@dataclass(frozen=True)
class Replay:
    """What tells a batch from another that has come under its id.

    Attributes:
        record_count: records.
        digest: 32 hexadecimal digits over them, '' when there are none.
    """

    record_count: int
    digest: str

    def __str__(self) -> str:
        return f"{self.record_count} records, digest {self.digest or 'none'}"


class BatchWork(Protocol):
    """What a batch consists of; `SparkBatchWork` is the real one."""

    def partitions(self) -> Iterable[TopicPartition]:
        """Every partition that `produce` may write; asked only below transaction.version 2."""

    def produce(self, ticket: TransactionTicket, begin: Callable[[], Connection]) -> ProducedBatch:
        """Run the tasks: every record acknowledged and every row encoded, or an exception.

        Args:
            ticket: of the Kafka transaction.
            begin: the connection of the transaction that will decide; it may write rows while other tasks still run.
                Nobody uses it any more when this returns or raises.
        """

    def copy_into(self, connection: Connection) -> int:
        """Write the rows that the last `produce` has not; the number of rows that both have written.

        Args:
            connection: the same one.
        """

    def reread(self, ticket: TransactionTicket) -> Replay:
        """Evaluate the batch as `produce` does, and write nothing. Stateful operators of the plan advance by it.

        Args:
            ticket: for Kafka only, and of no transaction.
        """

    def discard(self) -> None:
        """Forget what the last `produce` left in memory, and remove what it has staged, where that can be done now.

        The attempt is over, decided or not. What cannot be removed is in nobody's way, and is no error.
        """


@dataclass(frozen=True, kw_only=True)
class BatchReport:
    """What became of a batch, told when both sides have it.

    Attributes:
        transactional_id: the sink's id.
        batch_id: Spark's id.
        placement: ``RUN`` as written, ``SKIP`` as done before, or ``RESEND`` as written to Kafka only.
        row_count: rows for the table, 0 when skipped; with upsert_order_by also those that others supersede.
        record_count: records in Kafka, 0 when skipped; fewer than rows where superseded ones are left out.
        record_bytes: of the record batches that were sent, compressed; 0 when skipped.
        attempts: how many transactions were begun for it in this call.
        prepared: ``producerId:epoch`` of the Kafka transaction that has the records; '' when there are none.
        seconds: what the call took; without the recovery of a start, with those after a failed attempt.
        step_seconds: the same by steps, as in ``{"produce": 0.8, …}`` with the names of `recipe.dual_write.Step` in
            lower case. Each is the time since the step that was reached before it; so ``recover`` has, where an attempt
            has failed, all of it since its last step.
    """

    transactional_id: str
    batch_id: int
    placement: Placement
    row_count: int = 0
    record_count: int = 0
    record_bytes: int = 0
    attempts: int = 0
    prepared: str = ""
    seconds: float = 0.0
    step_seconds: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(
        cls, row: StateRow, batch_id: int, placement: Placement, *, attempts: int = 0, record_bytes: int = 0
    ) -> BatchReport:
        """Read a report off the state row that the batch has left.

        Args:
            row: says what is where.
            batch_id: Spark's id.
            placement: of the batch.
            attempts: transactions begun, 0 for a batch that was skipped.
            record_bytes: of the last one.
        """
        return cls(
            transactional_id=row.transactional_id,
            batch_id=batch_id,
            placement=placement,
            row_count=row.row_count if attempts else 0,
            record_count=row.record_count if attempts else 0,
            record_bytes=record_bytes,
            attempts=attempts,
            prepared=row.prepared_transaction_state if row.record_count else "",
        )

    def __str__(self) -> str:
        """One line for a log."""
        steps = ", ".join(f"{name} {seconds:.3f}" for name, seconds in self.step_seconds.items())
        return (
            f"{self.transactional_id}: batch {self.batch_id}, {self.placement.name.lower()}: {self.row_count} rows, "
            f"{self.record_count} records, {self.record_bytes} bytes, {self.attempts} transactions, the last "
            f"{self.prepared or 'none'}, {self.seconds:.3f} s ({steps})"
        )
