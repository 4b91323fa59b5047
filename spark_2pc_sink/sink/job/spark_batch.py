"""A micro-batch as a one-stage Spark job: tasks encode rows, and stream records and COPY bytes to the driver.

The driver's threads forward the records to Kafka, and copy the rows into the deciding transaction, while tasks
still run. The few rows of a small batch are collected, and encoded here by the same code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from sqlalchemy import Connection

from spark_2pc_sink.clock import Clock, now_ms
from spark_2pc_sink.errors import BatchRetryError, DataError
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.kafka.record_encoder import EncodingOptions
from spark_2pc_sink.options import SinkOptions
from spark_2pc_sink.sink.driver.batch_values import ProducedBatch, Replay, TransactionTicket
from spark_2pc_sink.sink.job.batch_size import SMALL_BYTES_MAX, ArrowBatchSize, SmallBatches
from spark_2pc_sink.sink.job.encode_task import encode, run_encode_task, run_reread_task, task_function
from spark_2pc_sink.sink.job.executors import ExecutorWatch, passed_executors
from spark_2pc_sink.sink.job.filtered_batch import ABOUT_ROWS, BadRowSearch, FilteredBatch
from spark_2pc_sink.sink.job.lane_columns import LaneWork, ordered, rows_of, selected
from spark_2pc_sink.sink.job.session_facts import SessionFacts, session_facts, stream_endpoint
from spark_2pc_sink.sink.job.table_loader import LaneTables
from spark_2pc_sink.sink.job.task_plan import RESULT_DDL, TaskIdentity, TaskPlan, TaskReceipt, TaskResults
from spark_2pc_sink.sink.records.record_columns import Topics
from spark_2pc_sink.sink.records.record_side import (
    DeadLetterRecords,
    Forwarded,
    KnownTopics,
    RecordForwarder,
    RecordSide,
)
from spark_2pc_sink.sink.report import WrittenRows
from spark_2pc_sink.sink.rows.table_copy import TableCopy
from spark_2pc_sink.sink.stream.attempt_input import AttemptInput, LocalStream, attempt_threads
from spark_2pc_sink.sink.stream.listener import StreamAttempt, StreamLimits, StreamListener
from spark_2pc_sink.sink.stream.task_stream import StreamAddress
from spark_2pc_sink.wire.record_batch import combine_digests, format_digest

#: A connection that waits for rows sends a query to the server after this fraction (1/n) of its idle timeout.
_IDLE_SHARE: Final = 3


class TaskJobs:
    """Execution of a run's jobs: facts of the session, executors, and the tasks' output."""

    def __init__(self, spark: SparkSession, options: SinkOptions, is_running: Callable[[], bool]) -> None:
        self._transactional_id = options.transactional_id
        self.facts: SessionFacts = session_facts(spark, options.transactional_id)
        limits = StreamLimits(tasks_at_once=self.facts.tasks_at_once())
        self.listener: StreamListener = StreamListener(stream_endpoint(spark, options), limits, is_running)
        self.executors: ExecutorWatch = ExecutorWatch(spark, options.transactional_id, self.facts, self.listener)
        self.small_batches: SmallBatches = SmallBatches()
        self.arrow: ArrowBatchSize = ArrowBatchSize()

    def run(self, frame: DataFrame, task: Callable[..., TaskReceipt], plan: Any) -> TaskResults:
        """Run one task for each partition of a frame."""
        names = None
        # PySpark resolves the columns, and parses their names as SQL.
        if any(mark in name for name in frame.columns for mark in ".`"):
            names = frame.columns
            frame = frame.toDF(*(f"column_{number}" for number in range(len(names))))
        function = task_function(task, plan, self._transactional_id, names)
        return TaskResults.read(frame.mapInArrow(function, RESULT_DDL).toArrow())

    def note_failure(self) -> None:
        """A batch has failed for good: the query ends, and another one may need the port."""
        passed_executors.clear()
        self.listener.close()


@dataclass(frozen=True)
class RunSides:
    """State that a run of a query keeps from batch to batch, by side."""

    options: SinkOptions
    jobs: TaskJobs
    records: RecordSide
    tables: LaneTables
    clock: Clock


@dataclass
class SparkResults:
    """Output of one attempt's tasks; ``copy`` has copied rows, and holds those that wait in files of the driver."""

    counts: ProducedBatch
    copy: TableCopy
    encoded: Counter[int]
    batch: FilteredBatch
    tables: LaneTables

    def copy_into(self, connection: Connection) -> WrittenRows:
        with self.tables.replanning():
            written = self.copy.finish(connection, self.encoded)
        self.batch.write_dead_letters(connection)
        return written

    def close(self) -> None:
        self.copy.close()


class SparkBatch:
    """One call of foreachBatch; see `BatchWork`. An attempt's state is only in the results that `produce` returns."""

    def __init__(self, batch: FilteredBatch, lanes: Sequence[LaneWork], run: RunSides) -> None:
        self._batch = batch
        self._lanes = tuple(lanes)
        self._options, self._clock = run.options, run.clock
        self._jobs, self._records, self._tables = run.jobs, run.records, run.tables

    def partitions(self) -> list[TopicPartition]:
        """Those of all topics of the batch, and of its dead letters; a topic column is evaluated once more for it."""
        counts: dict[str, int] = {}
        topics = self._records.topics
        for lane in self._lanes:
            if lane.expressions.topic is not None:
                rows = rows_of(self._batch.frame, lane.lane.source)
                with self._described("topics of its rows"):
                    named = rows.selectExpr(f"{lane.expressions.topic} AS topic").distinct().collect()
                # Missing topics are refused with their rows, when these are read.
                counts |= topics.counts_of_existing(row.topic for row in named if row.topic is not None)
            elif lane.topic is not None:
                counts |= topics.counts([lane.topic])
        written = [TopicPartition(topic, partition) for topic, count in counts.items() for partition in range(count)]
        return [*written, *self._records.dead_letter_topic.partitions(self._batch.bad_rows, self._batch.batch_id)]

    def produce(self, ticket: TransactionTicket, open_decision: Callable[[], Connection]) -> SparkResults:
        self._jobs.executors.check_new()
        self._tables.prepare(self._batch.frame, self._lanes, create=True)
        with (
            self._tables.replanning(),
            self._described("write to Kafka only" if ticket.kafka_only else "write"),
            self._jobs.listener.open_attempt() as source,
            ExitStack() as abandoned,
        ):
            # A resend has no rows.
            targets = [] if ticket.kafka_only else self._tables.targets()
            idle_s = self._options.idle_in_transaction_timeout_ms / 1000 / _IDLE_SHARE
            small = self._jobs.small_batches.expected
            copy = TableCopy(source, open_decision, targets, idle_s=idle_s, early=small)
            abandoned.callback(copy.close)
            with attempt_threads(source, copy.task):
                found = self._run_here(ticket, source) if small else None
                results, forwarded = found or self._run_in_tasks(ticket, source)
                # Rows are still being copied meanwhile.
                letters = self._records.dead_letter_topic.send(ticket, self._batch.bad_rows, self._batch.batch_id)
            abandoned.pop_all()
        counts = self._counts(results, forwarded, letters, kafka_only=ticket.kafka_only)
        return SparkResults(counts, copy, results.copy_rows, self._batch, self._tables)

    def recall(self) -> None:
        self._batch.recall()

    def search(self, error: DataError, open_decision: Callable[[], Connection]) -> bool:
        if self._options.bad_rows != "dead_letter" or not isinstance(error, ABOUT_ROWS):
            return False
        self._tables.prepare(self._batch.frame, self._lanes, create=False)
        topics = self._records.known_after(error)
        plan = self._plan(topics, kafka_only=False)
        alone = [replace(plan, lanes=(replace(lane, packed=None, leaves_out=False),)) for lane in plan.lanes]
        lanes, most = list(zip(self._lanes, alone, strict=True)), self._options.max_bad_rows.rows
        forwarder = partial(self._records.forwarder, ticket=None, topics=topics)
        search = BadRowSearch(self._batch, lanes, self._jobs, forwarder, most)
        with self._described("look for bad rows"):
            return self._batch.leave_out(search.run(error, open_decision))

    def reread(self) -> Replay:
        """Encode the records in tasks, and keep only their digest."""
        self._tables.prepare(self._batch.frame, self._lanes, create=True)
        topics = self._records.known()
        with self._described("compare with the batch that both sides have"), ExitStack() as asking:
            stream = None
            if any(lane.expressions.topic is not None for lane in self._lanes):
                source = asking.enter_context(self._jobs.listener.open_attempt())
                asking.enter_context(attempt_threads(source, self._records.forwarder(source, None, topics).task))
                stream = source.address
            plan = self._plan(topics, kafka_only=True, stream=stream)
            results = self._jobs.run(self._rows(kafka_only=True), run_reread_task, plan)
        letters = self._records.dead_letter_topic.encoded(self._batch.bad_rows, self._batch.batch_id)
        return Replay(self._expected_records(results, letters), _digest(results, letters))

    def _run_here(self, ticket: TransactionTicket, source: AttemptInput) -> tuple[TaskResults, Forwarded] | None:
        """Collect the rows and encode them in this process; None, before encoding any, if there are too many."""
        begun_s, small_batches = self._clock.now_s(), self._jobs.small_batches
        # The batch's column names are known, but would have to be fetched again for a frame derived from it.
        rows = selected(self._batch.frame, self._lanes, kafka_only=ticket.kafka_only).coalesce(1)
        most = small_batches.rows_max
        # Copy the context, so that log lines have the sink's id.
        with ThreadPoolExecutor(1, "spark_2pc_sink topics") as beside:
            asked = beside.submit(copy_context().run, self._records.known_with_ends)
            try:
                table = ordered(rows.limit(most + 1), self._lanes, 1).toArrow()
            except Exception:
                # Perhaps they are few but huge: in any case, the next attempt distributes them.
                small_batches.note_too_large()
                raise
        if table.num_rows > most or table.nbytes > SMALL_BYTES_MAX:
            small_batches.note_too_large()
            return None
        topics = asked.result()
        plan = self._plan(topics, kafka_only=ticket.kafka_only)
        forwarder = self._records.forwarder(source, ticket, topics)
        with attempt_threads(source, forwarder.task):
            batches = table.combine_chunks().to_batches()
            results = TaskResults.of([encode(batches, plan, TaskIdentity(0, 0), LocalStream(source))])
            forwarded = _forwarded(results, source, forwarder)
        self._jobs.arrow.forget()
        self._jobs.small_batches.note(results, self._clock.now_s() - begun_s, collected=True)
        return results, forwarded

    def _run_in_tasks(self, ticket: TransactionTicket, source: StreamAttempt) -> tuple[TaskResults, Forwarded]:
        begun_s, topics, arrow = self._clock.now_s(), self._records.known(), self._jobs.arrow
        plan = self._plan(topics, kafka_only=ticket.kafka_only, stream=source.address)
        arrow.apply(self._batch.frame.sparkSession)
        rows = self._rows(kafka_only=ticket.kafka_only)
        forwarder = self._records.forwarder(source, ticket, topics)
        try:
            with attempt_threads(source, forwarder.task):
                results = self._jobs.run(rows, run_encode_task, plan)
                forwarded = _forwarded(results, source, forwarder)
        except Exception as error:
            # A bad row does not reveal the size of the batch, and another attempt may follow.
            if not any(isinstance(each, DataError) for each in (error, source.failure)):
                arrow.forget()
            raise
        arrow.note(results)
        self._jobs.small_batches.note(results, self._clock.now_s() - begun_s, collected=False)
        return results, forwarded

    def _rows(self, *, kafka_only: bool) -> DataFrame:
        """The tasks' input, in as many partitions as can run at one time."""
        at_once = self._jobs.facts.tasks_at_once()
        rows = selected(self._batch.frame.coalesce(at_once), self._lanes, kafka_only=kafka_only)
        return ordered(rows, self._lanes, at_once)

    @contextmanager
    def _described(self, step: str) -> Iterator[None]:
        """Describe the block's jobs in Spark's UI, and name executors that cannot run their tasks."""
        text = f"{self._options.transactional_id} batch {self._batch.batch_id}: {step}"
        with self._jobs.executors.naming(), self._jobs.facts.described(text):
            yield

    def _plan(self, topics: KnownTopics, *, kafka_only: bool, stream: StreamAddress | None = None) -> TaskPlan:
        return TaskPlan(
            encoding=EncodingOptions.of(self._options.kafka),
            lanes=tuple(lane.plan(kafka_only=kafka_only) for lane in self._lanes),
            topics=Topics(dict(topics.facts)),
            timestamp_ms=now_ms(),
            stream=stream,
        )

    def _counts(
        self, results: TaskResults, forwarded: Forwarded, letters: DeadLetterRecords, *, kafka_only: bool
    ) -> ProducedBatch:
        rows, left_out = results.lane_rows, results.left_out
        outputs: Counter[str] = Counter()
        for lane in self._lanes:
            index = lane.lane.index
            if lane.lane.records is not None:
                outputs[str(lane.lane.records)] += rows[index] - left_out[index]
            if lane.lane.rows is not None and not kafka_only:
                outputs[str(lane.lane.rows)] += rows[index]
        if letters.count:
            outputs[str(self._records.dead_letter_topic)] = letters.count
        return ProducedBatch(
            row_count=sum(rows[lane.lane.index] for lane in self._lanes if lane.lane.rows is not None),
            record_count=forwarded.records + letters.sent.records,
            expected_records=self._expected_records(results, letters),
            digest=_digest(results, letters),
            offsets={**forwarded.offsets, **letters.sent.offsets},
            topic_ids={**forwarded.topic_ids, **letters.sent.topic_ids},
            record_bytes=forwarded.record_bytes + letters.sent.record_bytes,
            left_out=left_out.total(),
            outputs=outputs,
            bad_rows=self._batch.bad_rows.occurrences,
        )

    def _expected_records(self, results: TaskResults, letters: DeadLetterRecords) -> int:
        rows = sum(results.lane_rows[lane.lane.index] for lane in self._lanes if lane.lane.records is not None)
        return rows - results.left_out.total() + letters.count


def _digest(results: TaskResults, letters: DeadLetterRecords) -> str:
    """Digest over all records, and over rows without records; '' if there are neither."""
    if not any(results.lane_rows.values()) and not letters.count:
        return ""
    return format_digest(combine_digests(results.digest, results.row_digest, letters.digest))


def _forwarded(results: TaskResults, source: AttemptInput, forwarder: RecordForwarder) -> Forwarded:
    """The records acknowledged by the brokers after the job has ended; exactly those that the tasks made."""
    source.close_input()
    results.check_arrived(source.finished)
    forwarded = forwarder.finish()
    if forwarded.digest != results.digest:
        raise BatchRetryError(reason="the digest of the sent records differs from that of the rows that were read")
    return forwarded
