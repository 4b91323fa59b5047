"""The contract between the batch driver and whatever executes a micro-batch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from spark_2pc_sink.producer.batch_sender import OpenTransaction

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
    def open_transaction(self) -> OpenTransaction:
        """The same for a session that sends records."""
        return OpenTransaction(self.transactional_id, self.producer, self.transaction_version)

    @property
    def attempt(self) -> tuple[str, int, int]:
        """Identity of the attempt: no other attempt of any batch has it."""
        return (self.transactional_id, self.generation, self.transaction)


@dataclass(frozen=True)
class ProducedBatch:
    """The outcome of all tasks of an attempt: written to Kafka, and encoded for the database.

    Attributes:
        row_count: rows for all tables.
        record_count: records that Kafka has acknowledged, with those of the dead-letter topic.
        digest: 32 hexadecimal digits over these records, and over rows that go to a table and to no topic; '' when
            there are none of both.
        offsets: first and last offset per partition.
        record_bytes: of the record batches that were sent, compressed.
        topic_ids: topic to Kafka's id of it, as text; empty where a broker has no topic ids.
        left_out: rows of which no record was sent, since others of their upsert key supersede them.
        record_rows: rows for all topics; None where these are those for the tables.
        outputs: rows or records of each output, by its text, such as ``Rows('orders')``.
        bad_rows: rows that go to the dead letters in place of every output; no count of rows has them.
        letters: dead letters that must be among the records; 0 where they go to no topic.
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
        """Records that Kafka must have acknowledged."""
        return (self.row_count if self.record_rows is None else self.record_rows) - self.left_out + self.letters


@dataclass(frozen=True)
class Replay:
    """Count and digest of records: they tell a batch from another that has come under its id.

    Attributes:
        record_count: records.
        digest: as that of a `ProducedBatch`.
    """

    record_count: int
    digest: str

    def __str__(self) -> str:
        return f"{self.record_count} records, digest {self.digest or 'none'}"


class BatchResults(Protocol):
    """What the tasks of one attempt have produced, and what the driver still keeps of it, in memory and in files.

    Attributes:
        counts: every record acknowledged, and every row encoded.
    """

    counts: ProducedBatch

    def copy_into(self, connection: Connection) -> WrittenRows:
        """Write the rows that are left, and the dead letters; what became of all rows.

        Args:
            connection: the one that ``open_decision`` gives.
        """

    def close(self) -> None:
        """Forget what is kept. The attempt is over, decided or not."""


class BatchWork(Protocol):
    """The work of a batch; `SparkBatch` is the real one. What an attempt has made is in its results alone."""

    def partitions(self) -> Iterable[TopicPartition]:
        """Every partition that `produce` may write; asked only below transaction.version 2."""

    def produce(self, ticket: TransactionTicket, open_decision: Callable[[], Connection]) -> BatchResults:
        """Run the tasks: every record acknowledged and every row encoded, or an exception, and nothing is kept.

        Args:
            ticket: of the Kafka transaction.
            open_decision: opens the database transaction that will decide, at its first call, and gives its
                connection. Another thread may call it and write rows there while tasks still run; the driver commits
                it later. No thread uses the connection any more when this returns or raises.
        """

    def sift(self, ticket: TransactionTicket, error: DataError, open_decision: Callable[[], Connection]) -> bool:
        """After a failed attempt: find its bad rows, which all that follows leaves out of every output.

        Args:
            ticket: of no Kafka transaction.
            error: what the attempt failed with.
            open_decision: opens a database transaction that is rolled back when this returns or raises.

        Returns:
            False where the batch has to fail with ``error``: no single row is bad, or nobody wants bad rows left out.

        Raises:
            TooManyBadRowsError: there are more than the user allows.
        """

    def recall(self) -> None:
        """Leave out the rows that were left out when the batch was decided, BEFORE it is replayed."""

    def reread(self, ticket: TransactionTicket) -> Replay:
        """Evaluate the batch as `produce` does, and write nothing. Stateful operators of the plan advance by it.

        Args:
            ticket: for Kafka only, and of no transaction.
        """
