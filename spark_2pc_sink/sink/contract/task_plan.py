"""The plan that the driver gives to the tasks of a batch, and which task owns which Kafka partition.

Each partition is written by exactly one task, because its records carry one run of sequence numbers. The owner of a
partition depends on its topic's name and its number alone: a driver and its tasks agree on it without talking to each
other.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spark_2pc_sink.errors import BatchRetryError, ConfigurationError
from spark_2pc_sink.producer.produce_session import ProduceSession
from spark_2pc_sink.sink.contract import record_expressions
from spark_2pc_sink.sink.contract.stage_attempt import parse_thread_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    import pyarrow as pa

    from spark_2pc_sink.options import KafkaOptions
    from spark_2pc_sink.serialisation.serialiser import Serialiser
    from spark_2pc_sink.sink.contract.batch_work import TransactionTicket
    from spark_2pc_sink.sink.contract.record_json import JsonField
    from spark_2pc_sink.sink.contract.row_transfer import RowEncoderPlan
    from spark_2pc_sink.sink.contract.topics import Topics


@dataclass(frozen=True)
class TaskIdentity:
    """Which task this is, as Spark says.

    Attributes:
        task: the Spark partition id.
        task_attempt: Spark's id of the task attempt, which no other has.
        attempt_number: of the task, 0 for its first attempt.
    """

    task: int
    task_attempt: int
    attempt_number: int = 0


@dataclass(frozen=True)
class UpsertRecordsPlan:
    """How a batch's records follow the rows of the table. Can be pickled.

    Attributes:
        keys: the columns of the upsert keys.
        leave_out: True where superseded records are not sent, False where they are sent before the others.
    """

    keys: tuple[str, ...]
    leave_out: bool


@dataclass(frozen=True)
class LanePlan:
    """How tasks treat the rows of one lane. Can be pickled.

    Attributes:
        index: of the lane.
        packed: the column that has the rows, as a struct or as an array of structs; None where they are the rows that
            Spark hands over.
        sends: False where no records are made of the rows.
        told_as: the table of rows without records, which a digest of their own tells; None where records tell them.
        topic: of the records; None when every row names its own.
        row_encoder: how rows become COPY bytes; None without a table, and for a resend, when the database has them.
        json: the columns whose JSON is the value; None where the value is a column.
        key_column: the column that is the key, or whose text is; None where the key is a column of its own.
        upsert_records: how records of one upsert key follow the table; None without an order, or without a key.
        guarded: columns that are refused where they are no text.
        serialisers: encode the columns of key and value that have a schema.
    """

    index: int = 0
    packed: str | None = None
    sends: bool = True
    told_as: str | None = None
    topic: str | None = None
    row_encoder: RowEncoderPlan | None = None
    json: tuple[JsonField, ...] | None = None
    key_column: str | None = None
    upsert_records: UpsertRecordsPlan | None = None
    guarded: tuple[str, ...] = ()
    serialisers: Mapping[str, Serialiser] = field(default_factory=dict)


@dataclass(frozen=True)
class TaskPlan:
    """Everything that a task needs to know.

    Attributes:
        ticket: the transaction.
        kafka: how to reach the brokers.
        lanes: what becomes of the rows; a resend only makes the digest of those of lanes without records.
        topics: what the driver knows of topics.
        salts: for each task that sends, what brings a row of a shuffle to it; their number is that of these tasks.
        timestamp_ms: CreateTime of every record of the batch, milliseconds since 1970.
        stage_attempts_max: spark.stage.maxConsecutiveAttempts, 1 where a stage never runs again.
        shuffle_folder: of the shuffle files of tasks on one machine; None where Spark moves all of it.
        shuffle_bytes_max: above so many bytes an encode task gives up (`arrow_batch_size`); None for no limit.
        refusal: a file that is there once the database has refused a row of the attempt; None without a folder that
            the driver and all tasks see.
    """

    ticket: TransactionTicket
    kafka: KafkaOptions
    lanes: tuple[LanePlan, ...]
    topics: Topics
    salts: tuple[int, ...]
    timestamp_ms: int
    stage_attempts_max: int = 1
    shuffle_folder: Path | None = None
    shuffle_bytes_max: int | None = None
    refusal: Path | None = None

    @property
    def tasks(self) -> int:
        """How many tasks share the partitions."""
        return len(self.salts)

    @property
    def compares(self) -> bool:
        """True where records of some lane follow the table: a task then needs all indexes before the first record."""
        return any(lane.upsert_records is not None for lane in self.lanes)

    def open_session(self) -> ProduceSession:
        """A session of this process in the transaction."""
        return ProduceSession(
            self.topics.connections.cluster(),
            transactional_id=self.ticket.transactional_id,
            producer=self.ticket.producer,
            transaction_version=self.ticket.transaction_version,
            options=self.kafka,
            timestamp_ms=self.timestamp_ms,
            limits=self.topics.limits,
            ends=self.topics.ends,
        )

    def check_refusal(self) -> None:
        """Asked by tasks before each of their batches: what they make of an attempt that has failed is thrown away.

        Raises:
            BatchRetryError: the database has refused a row of it. The driver knows which.
        """
        if self.refusal is not None and self.refusal.exists():
            raise BatchRetryError(reason="the database has refused a row of this attempt, which ends without the rest")

    def of_first_attempt(self, batches: Iterable[pa.RecordBatch], identity: TaskIdentity) -> Iterator[pa.RecordBatch]:
        """The batches that have rows, for a task that sends: in the first attempt of the task and of its stage only.

        Args:
            batches: with the column `record_expressions.ATTEMPT`, which says what stage this is.
            identity: of the task.

        Raises:
            BatchRetryError: an earlier attempt may have written.
            ConfigurationError: this Spark does not tell, and runs stages again.
        """
        task, number = identity.task, identity.attempt_number
        if number > 0:
            raise BatchRetryError(reason=f"task {task} ran again as attempt {number}: an earlier one may have written")
        checked = False
        for batch in batches:
            if batch.num_rows == 0:
                continue
            if not checked:
                self._check_stage_attempt(task, batch)
                checked = True
            yield batch

    def _check_stage_attempt(self, task: int, first_rows: pa.RecordBatch) -> None:
        text = first_rows.column(record_expressions.ATTEMPT)[0].as_py()
        attempt = parse_thread_name(text)
        if attempt is None and self.stage_attempts_max > 1:
            raise ConfigurationError(
                option="spark.stage.maxConsecutiveAttempts",
                value=self.stage_attempts_max,
                rule=f"this Spark does not tell a task the attempt of its stage (its thread is named {text!r}), so a "
                "stage that runs again could write twice",
                remedy="set spark.stage.maxConsecutiveAttempts=1",
            )
        if attempt is not None and not attempt.first:
            raise BatchRetryError(reason=f"task {task} is {attempt}: an earlier one may have written")


def owner_of(topic: str, partition: int, tasks: int) -> int:
    """The task (0 to ``tasks`` - 1) that owns a partition."""
    return (zlib.crc32(topic.encode()) + partition) % tasks


def owned_partitions(topic: str, partition_count: int, *, task: int, tasks: int) -> tuple[int, ...]:
    """The partitions of a topic that one task owns; empty when there are more tasks than partitions."""
    return tuple(p for p in range(partition_count) if owner_of(topic, p, tasks) == task)
