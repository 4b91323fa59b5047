"""The contract between the batch driver and the code that executes a micro-batch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from spark_2pc_sink.kafka.batch_sender import ProducedTransaction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from sqlalchemy import Connection

    from spark_2pc_sink.errors import DataError
    from spark_2pc_sink.ids import ProducerIdAndEpoch, TopicPartition
    from spark_2pc_sink.sink.report import WrittenRows


@dataclass(frozen=True)
class TransactionTicket:
    """The Kafka transaction of an attempt, for the tasks that write into it.

    Attributes:
        transaction_version: 0 to 2.
        transaction: number of the transaction within the claim, from 1; unique across all attempts of all batches.
        kafka_only: True for a resend: the database already has the rows.
    """

    transactional_id: str
    producer: ProducerIdAndEpoch
    transaction_version: int
    generation: int
    transaction: int
    kafka_only: bool

    @property
    def open_transaction(self) -> ProducedTransaction:
        """The same for a session that sends records."""
        return ProducedTransaction(self.transactional_id, self.producer, self.transaction_version)


@dataclass(frozen=True)
class ProducedBatch:
    """The outcome of all tasks of an attempt: written to Kafka, and encoded for the database.

    Attributes:
        digest: 32 hexadecimal digits over these records, and over rows that go to a table but to no topic; '' if there
            are neither.
        left_out: rows for which no record was sent, because others of their upsert key supersede them.
        record_rows: rows for all topics; None if the same as the rows for the tables.
        outputs: rows or records of each output, keyed by its text, such as ``Rows('orders')``.
        bad_rows: rows that go only to the dead letters; not included in any row count.
        letters: dead letters that must be among the records; 0 if they go to no topic.
    """

    row_count: int
    record_count: int
    digest: str
    offsets: Mapping[TopicPartition, tuple[int, int]]
    record_bytes: int = 0
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    left_out: int = 0
    record_rows: int | None = None
    outputs: Mapping[str, int] = field(default_factory=dict)
    bad_rows: int = 0
    letters: int = 0

    @property
    def expected_records(self) -> int:
        return (self.row_count if self.record_rows is None else self.record_rows) - self.left_out + self.letters


#: Outcome of an attempt before its tasks have ended.
NOTHING_PRODUCED: Final = ProducedBatch(row_count=0, record_count=0, digest="", offsets={})


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

        Args:
            open_decision: opens the deciding database transaction on the first call, and returns its connection.
                Another thread may call it and write rows there while tasks still run; the driver commits it later. No
                thread uses the connection after this returns or raises.
        """

    def search(self, ticket: TransactionTicket, error: DataError, open_decision: Callable[[], Connection]) -> bool:
        """After a failed attempt: find its bad rows, which all later steps leave out of every output.

        Args:
            open_decision: opens a database transaction that is rolled back when this returns or raises.

        Returns:
            False if the batch has to fail with ``error``: no single row is bad, or bad rows are not to be left out.

        Raises:
            TooManyBadRowsError: more rows are bad than the user allows.
        """

    def recall(self) -> None:
        """Leave out the rows that were left out when the batch was decided. Call BEFORE a replay."""

    def reread(self, ticket: TransactionTicket) -> Replay:
        """Evaluate the batch as `produce` does, without writing. This advances the plan's stateful operators."""
