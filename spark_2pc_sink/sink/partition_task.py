"""The part of a batch that runs on an executor: rows in, Kafka records and COPY bytes out, one receipt.

A task is handed everything that it needs to know in a `TaskPlan`. It takes no decision about the transaction: it
writes with the pair that it was given, or refuses, and says in its receipt which of the two.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from spark_2pc_sink.errors import BatchRetryError, ConfigurationError, DualWriteError, UnstorableValueError
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.producer.connection import Cluster
from spark_2pc_sink.producer.produce_session import ProduceSession
from spark_2pc_sink.sink import frame as names
from spark_2pc_sink.sink.attempts import parse_thread_name
from spark_2pc_sink.sink.receipts import TaskReceipt, WrittenPartition, copy_result
from spark_2pc_sink.sink.routing import check_partitions, owned_partitions, owner_of, partitions_of, spread
from spark_2pc_sink.sink.rows import RowWriter
from spark_2pc_sink.wire.partitioner import NO_PARTITION

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from spark_2pc_sink.options import KafkaOptions
    from spark_2pc_sink.sink.batch import TransactionTicket
    from spark_2pc_sink.sink.rows import RowPlan

#: One row's key in an error text; longer ones are cut.
_ROW_KEY_CHARACTERS_MAX = 100

#: Connections of this Python worker, kept from batch to batch (Spark reuses workers). A cluster on which anything
#: failed is closed and dropped, never handed to the next task.
_clusters: dict[KafkaOptions, Cluster] = {}


@dataclass(frozen=True)
class PartitionCounts:
    """How many partitions a topic has: fixed by the driver for the sink's topic, asked for in a task for others.

    Args:
        kafka: how to reach the brokers.
        known: what the driver has fixed for this batch.
    """

    kafka: KafkaOptions
    known: Mapping[str, int] = field(default_factory=dict)

    def __call__(self, topic: str) -> int:
        """The count; a topic that is not the sink's is looked up once per worker.

        Raises:
            UnknownTopicError: there is no such topic.
        """
        return self.known[topic] if topic in self.known else _looked_up(self.kafka, topic)


@dataclass(frozen=True)
class TaskPlan:
    """Everything that a task needs to know.

    Attributes:
        ticket: the transaction.
        kafka: how to reach the brokers.
        topic: of the sink; None when every row names its own.
        counts: partitions by topic.
        tasks: how many tasks share the partitions.
        by_partition: False when rows are not shuffled and the task chooses among its own partitions.
        timestamp_ms: CreateTime of every record of the batch, milliseconds since 1970.
        rows: how rows become COPY bytes; None for a resend, when the database has them.
        stage_attempts_max: spark.stage.maxConsecutiveAttempts, 1 where a stage never runs again.
    """

    ticket: TransactionTicket
    kafka: KafkaOptions
    topic: str | None
    counts: PartitionCounts
    tasks: int
    by_partition: bool
    timestamp_ms: int
    rows: RowPlan | None
    stage_attempts_max: int


def run_task(batches: Iterable[pa.RecordBatch], plan: TaskPlan, *, task: int, attempt: int) -> Iterator[pa.RecordBatch]:
    """Write the rows of one Spark partition; yields COPY payloads and then one receipt.

    Args:
        batches: the rows, with the columns that `frame` names.
        plan: what to do.
        task: the Spark partition id.
        attempt: the attempt number of the task.
    """
    try:
        yield from _Task(plan, task).run(batches, attempt)
    except DualWriteError as error:
        yield TaskReceipt(task=task, error=error).to_result()


class _Task:
    """One attempt of one task."""

    def __init__(self, plan: TaskPlan, task: int) -> None:
        self._plan = plan
        self._task = task
        self._session: ProduceSession | None = None
        self._rows = 0

    def run(self, batches: Iterable[pa.RecordBatch], attempt: int) -> Iterator[pa.RecordBatch]:
        if attempt > 0:
            raise BatchRetryError(
                reason=f"task {self._task} ran again as attempt {attempt}: an earlier one may have written"
            )
        writer = None if self._plan.rows is None else RowWriter(self._plan.rows, self._plan.ticket, self._task)
        try:
            for batch in batches:
                if batch.num_rows == 0:
                    continue
                if self._rows == 0:
                    self._check_stage_attempt(batch)
                self._rows += batch.num_rows
                self._produce(batch)
                if writer is not None:
                    yield from (copy_result(self._task, payload) for payload in writer.write(batch))
            if writer is not None:
                yield from (copy_result(self._task, payload) for payload in writer.finish())
            yield self._receipt(writer).to_result()
        except BaseException:
            _drop_cluster(self._plan.kafka)
            raise
        finally:
            if writer is not None:
                writer.close()

    def _check_stage_attempt(self, batch: pa.RecordBatch) -> None:
        text = batch.column(names.ATTEMPT)[0].as_py()
        attempt = parse_thread_name(text)
        if attempt is None and self._plan.stage_attempts_max > 1:
            raise ConfigurationError(
                option="spark.stage.maxConsecutiveAttempts",
                value=self._plan.stage_attempts_max,
                rule=f"this Spark does not tell a task the attempt of its stage (its thread is named {text!r}), so a "
                "stage that runs again could write twice",
                remedy="set spark.stage.maxConsecutiveAttempts=1",
            )
        if attempt is not None and not attempt.first:
            raise BatchRetryError(reason=f"task {self._task} is {attempt}: an earlier one may have written")

    def _produce(self, batch: pa.RecordBatch) -> None:
        session = self._open_session()
        key = _column(batch, names.KEY)
        value, headers = batch.column(names.VALUE), _column(batch, names.HEADERS)
        for topic, rows in self._by_topic(batch):
            chosen = None if rows is None else pa.array(rows)
            topic_key = _take(key, chosen)
            partitions = self._partitions(batch, topic, topic_key, chosen)
            for partition, members in _group(partitions):
                self._check_owner(topic, partition)
                selected = members if chosen is None else _take(chosen, members)
                session.append(
                    TopicPartition(topic, partition),
                    _take(key, selected),
                    _take(value, selected),
                    _take(headers, selected),
                )

    def _by_topic(self, batch: pa.RecordBatch) -> Iterator[tuple[str, np.ndarray | None]]:
        topics = _column(batch, names.TOPIC)
        if topics is None:
            yield str(self._plan.topic), None
            return
        encoded = topics.dictionary_encode()
        if encoded.null_count:
            row = int(np.flatnonzero(encoded.is_null().to_numpy(zero_copy_only=False))[0])
            raise UnstorableValueError(
                column="topic",
                row_key=_describe_row(batch, row),
                value="null",
                rule="every row needs a topic, and the sink has no topic of its own",
            )
        codes = encoded.indices.to_numpy()
        for code, topic in enumerate(encoded.dictionary.to_pylist()):
            yield topic, np.flatnonzero(codes == code)

    def _partitions(
        self, batch: pa.RecordBatch, topic: str, key: pa.Array | None, chosen: pa.Array | None
    ) -> np.ndarray:
        """The partition of each row of one topic: the expression's, else the key's, else one of the task's own."""
        count = self._plan.counts(topic)
        row_count = batch.num_rows if chosen is None else len(chosen)
        partitions = np.full(row_count, NO_PARTITION, dtype=np.int32)
        if key is not None:
            partitions = partitions_of(key, topic, self._plan.counts)
        given = _take(_column(batch, names.PARTITION), chosen)
        if given is not None:
            present = given.is_valid().to_numpy(zero_copy_only=False)
            numbers = given.fill_null(0).to_numpy(zero_copy_only=False)
            partitions = np.where(present, numbers, partitions).astype(np.int32)
            rows = np.flatnonzero(present) if chosen is None else chosen.to_numpy()[np.flatnonzero(present)]
            check_partitions(numbers[present], topic, count, lambda row: _describe_row(batch, int(rows[row])))
        free = np.flatnonzero(partitions == NO_PARTITION)
        if len(free):
            partitions = partitions.copy()
            partitions[free] = spread(len(free), self._own(topic, count))
        return partitions

    def _own(self, topic: str, count: int) -> tuple[int, ...]:
        own = owned_partitions(topic, count, task=self._task, tasks=self._plan.tasks)
        if not own:
            raise BatchRetryError(
                reason=f"task {self._task} of {self._plan.tasks} got rows without a key for {topic!r}, and owns none "
                f"of its {count} partitions"
            )
        return own

    def _check_owner(self, topic: str, partition: int) -> None:
        if self._plan.by_partition and owner_of(topic, partition, self._plan.tasks) != self._task:
            raise BatchRetryError(
                reason=f"a row for {topic}-{partition} came to task {self._task}, which does not own that partition: "
                "the topic got more partitions during the batch"
            )

    def _open_session(self) -> ProduceSession:
        if self._session is None:
            ticket = self._plan.ticket
            self._session = ProduceSession(
                worker_cluster(self._plan.kafka),
                transactional_id=ticket.transactional_id,
                producer=ticket.producer,
                transaction_version=ticket.transaction_version,
                options=self._plan.kafka,
                timestamp_ms=self._plan.timestamp_ms,
            )
        return self._session

    def _receipt(self, writer: RowWriter | None) -> TaskReceipt:
        """Waits until everything is acknowledged."""
        session = self._session
        written = {} if session is None else session.flush()
        return TaskReceipt(
            task=self._task,
            rows=self._rows,
            digest=0 if session is None else session.digest,
            written={
                partition: WrittenPartition(receipt.records, receipt.first_offset, receipt.last_offset)
                for partition, receipt in written.items()
            },
            copy_rows=0 if writer is None else writer.inline_rows,
            staging_table=None if writer is None else writer.staging_table,
            staging_rows=0 if writer is None else writer.staging_rows,
        )


def worker_cluster(kafka: KafkaOptions) -> Cluster:
    """The connections of this process to the brokers of ``kafka``, made on first use."""
    cluster = _clusters.get(kafka)
    if cluster is None:
        cluster = _clusters[kafka] = Cluster(kafka)
    return cluster


def now_ms() -> int:
    """Milliseconds since 1970 by this machine's clock."""
    return time.time_ns() // 1_000_000


def _drop_cluster(kafka: KafkaOptions) -> None:
    cluster = _clusters.pop(kafka, None)
    if cluster is not None:
        cluster.close()


_looked_up_counts: dict[tuple[KafkaOptions, str], int] = {}


def _looked_up(kafka: KafkaOptions, topic: str) -> int:
    count = _looked_up_counts.get((kafka, topic))
    if count is None:
        count = _looked_up_counts[kafka, topic] = worker_cluster(kafka).partition_counts([topic])[topic]
    return count


def _column(batch: pa.RecordBatch, name: str) -> pa.Array | None:
    index = batch.schema.get_field_index(name)
    return None if index < 0 else batch.column(index)


def _take(column: pa.Array | None, rows: pa.Array | None) -> pa.Array | None:
    return column if column is None or rows is None else column.take(rows)


def _group(partitions: np.ndarray) -> Iterator[tuple[int, pa.Array | None]]:
    """The rows of each partition, in their order; None stands for all rows."""
    first = int(partitions[0])
    if (partitions == first).all():
        yield first, None
        return
    order = np.argsort(partitions, kind="stable")
    ordered = partitions[order]
    starts = np.flatnonzero(np.diff(ordered)) + 1
    for rows in np.split(order, starts):
        yield int(partitions[rows[0]]), pa.array(rows)


def _describe_row(batch: pa.RecordBatch, row: int) -> str:
    key = _column(batch, names.KEY)
    shown = None if key is None else key[row].as_py()
    return f"key={shown!r}"[:_ROW_KEY_CHARACTERS_MAX]
