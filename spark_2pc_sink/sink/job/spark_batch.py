"""A micro-batch as a Spark job of one stage: tasks encode rows, and stream records and COPY bytes to the driver.

The driver's threads forward the records to Kafka, and copy the rows into the transaction that decides, while tasks
still run. The few rows of a small batch are collected, and encoded here by the same code.
"""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from spark_2pc_sink.clock import now_ms
from spark_2pc_sink.errors import BatchRetryError, DataError, LocalProtocolError
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.producer.encoding_options import EncodingOptions
from spark_2pc_sink.producer.leader_lookup import end_offsets
from spark_2pc_sink.sink.contract.batch_work import ProducedBatch, Replay
from spark_2pc_sink.sink.contract.receipts import RESULT_DDL, TaskResults, add_up, read_results
from spark_2pc_sink.sink.contract.task_plan import TaskIdentity, TaskPlan, TopicFacts, Topics
from spark_2pc_sink.sink.job.batch_sift import BatchSift, SiftJobs, is_about_rows
from spark_2pc_sink.sink.job.batch_size import SMALL_BYTES_MAX
from spark_2pc_sink.sink.job.dead_letter_topic import NO_LETTERS
from spark_2pc_sink.sink.job.lane_columns import expressions_by_lane, ordered, rows_of, selected
from spark_2pc_sink.sink.stream.attempt_input import LocalStream
from spark_2pc_sink.sink.tasks.encode_task import encode, run_encode_task, run_reread_task
from spark_2pc_sink.sink.tasks.task_input import renaming, task_function
from spark_2pc_sink.sink.transfer.background_task import AttemptThreads
from spark_2pc_sink.sink.transfer.record_forwarder import Forwarded, KnownTopics, RecordForwarder
from spark_2pc_sink.sink.transfer.table_copy import TableCopy
from spark_2pc_sink.wire.digest import combine_digests, format_digest
from spark_2pc_sink.wire.messages import OffsetSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import DataFrame
    from sqlalchemy import Connection

    from spark_2pc_sink.clock import Clock
    from spark_2pc_sink.options import SinkOptions
    from spark_2pc_sink.sink.contract.batch_work import TransactionTicket
    from spark_2pc_sink.sink.job.batch_size import ArrowBatchSize, SmallBatches
    from spark_2pc_sink.sink.job.batch_split import BatchSplit
    from spark_2pc_sink.sink.job.dead_letter_topic import DeadLetterTopic
    from spark_2pc_sink.sink.job.executors import ExecutorWatch
    from spark_2pc_sink.sink.job.lane_columns import LaneWork
    from spark_2pc_sink.sink.job.session_facts import SessionFacts
    from spark_2pc_sink.sink.job.table_loader import LaneTables
    from spark_2pc_sink.sink.report import WrittenRows
    from spark_2pc_sink.sink.stream.attempt_input import AttemptInput
    from spark_2pc_sink.sink.stream.listener import StreamAttempt, StreamListener
    from spark_2pc_sink.sink.stream.task_stream import StreamAddress
    from spark_2pc_sink.sink.tasks.task_input import TaskFunction
    from spark_2pc_sink.sink.transfer.record_forwarder import Connections, TopicMetadata

#: A connection that waits for rows asks the server for something after this fraction (1/n) of its idle timeout.
_IDLE_SHARE: Final = 3
#: Of how many partitions it is asked where they end, before it is known which of them get rows of a small batch.
_ASKED_BESIDE_MAX: Final = 64
#: The driver, where it encodes a batch itself.
_HERE: Final = TaskIdentity(task=0, task_attempt=0)


class SparkBatchWork:
    """One call of foreachBatch.

    Args:
        split: the batch, and which of its rows are left out.
        options: of the sink.
        lanes: of the sink, with expressions checked against the frame's schema.
        topics: asks Kafka about topics.
        tables: how rows get into the tables.
        small_batches: whether this one is likely to be small.
        connections: to the brokers, by which records are forwarded.
        arrow: bounds what Python workers are handed.
        listener: where tasks send what they make.
        clock: measures what the job takes.
        facts: of the session.
        executors: tries those that have joined.
        letters: the topic of dead letters.
        batch_id: Spark's id of the batch.
    """

    def __init__(
        self,
        *,
        split: BatchSplit,
        options: SinkOptions,
        lanes: Sequence[LaneWork],
        topics: TopicMetadata,
        tables: LaneTables,
        small_batches: SmallBatches,
        connections: Connections,
        arrow: ArrowBatchSize,
        listener: StreamListener,
        clock: Clock,
        facts: SessionFacts,
        executors: ExecutorWatch,
        letters: DeadLetterTopic,
        batch_id: int,
    ) -> None:
        self._split = split
        self._options = options
        self._lanes = tuple(lanes)
        self._topics = topics
        self._tables = tables
        self._small_batches = small_batches
        self._connections = connections
        self._arrow = arrow
        self._listener = listener
        self._clock = clock
        self._facts = facts
        self._executors = executors
        self._letter_topic = letters
        self._letters = NO_LETTERS
        self._batch_id = batch_id
        self._results: TaskResults | None = None
        self._copy: TableCopy | None = None

    @property
    def _frame(self) -> DataFrame:
        """The batch without its bad rows."""
        return self._split.frame

    def partitions(self) -> list[TopicPartition]:
        """Every partition of every topic of the batch, and those of its dead letters.

        With a topic column this reads the batch once more.
        """
        counts: dict[str, int] = {}
        for lane in self._lanes:
            if lane.chooses_topics:
                rows = rows_of(self._frame, lane.lane.source)
                with self._described("topics of its rows"):
                    named = rows.selectExpr(f"{lane.expressions.topic} AS topic").distinct().collect()
                # Those that do not exist are refused with their rows, when these are read.
                counts |= self._topics.counts_of_existing(row.topic for row in named if row.topic is not None)
            elif lane.topic is not None:
                counts |= self._topics.counts([lane.topic])
        written = [TopicPartition(topic, partition) for topic, count in counts.items() for partition in range(count)]
        return [*written, *self._letter_topic.partitions(self._split.bad_rows, self._batch_id)]

    def produce(self, ticket: TransactionTicket, open_decision: Callable[[], Connection]) -> ProducedBatch:
        """Run the writing job; see `BatchWork.produce`."""
        self._executors.look()
        self._prepare_tables(create=True)
        step = "write to Kafka only" if ticket.kafka_only else "write"
        with (
            self._forgetting(),
            self._described(step),
            self._listener.open_attempt() as source,
            self._copying(ticket, source, open_decision),
        ):
            results, forwarded = self._run_job(ticket, source)
            # Rows are still copied meanwhile.
            self._letters = self._letter_topic.send(ticket, self._split.bad_rows, self._batch_id)
        self._results = results
        return self._produced(results, forwarded, kafka_only=ticket.kafka_only)

    def copy_into(self, connection: Connection) -> WrittenRows:
        """Write the rows that `produce` has not; see `BatchWork.copy_into`."""
        if self._results is None or self._copy is None:
            raise LocalProtocolError(operation="copy_into", state="no rows", rule="produce() comes first")
        with self._forgetting():
            written = self._copy.finish(connection, self._results.copy_rows)
        self._split.write_dead_letters(connection)
        return written

    def recall(self) -> None:
        """See `BatchWork.recall`."""
        self._split.recall()

    def sift(self, ticket: TransactionTicket, error: DataError, open_decision: Callable[[], Connection]) -> bool:
        """Run the jobs that look for bad rows; see `BatchWork.sift`."""
        if not self._split.sifts or not is_about_rows(error):
            return False
        self._prepare_tables(create=False)
        topics = self._known_topics().after(error, self._facts_of)
        plan = self._plan(topics, kafka_only=ticket.kafka_only)
        sift = BatchSift(
            self._frame,
            [
                (lane, replace(plan, lanes=(replace(one, packed=None, leaves_out=False),)))
                for lane, one in zip(self._lanes, plan.lanes, strict=True)
            ],
            SiftJobs(
                at_once=self._facts.tasks_at_once(),
                map_in_arrow=self._map_in_arrow,
                listener=self._listener,
                forwarder=lambda source: self._forwarder(source, None, topics),
            ),
            most=self._options.max_bad_rows.rows,
            exact=self._split.exact,
        )
        with self._described("look for bad rows"):
            return self._split.leave_out(sift.run(error, open_decision))

    def reread(self, ticket: TransactionTicket) -> Replay:
        """Encode the records in tasks, and keep their digest; see `BatchWork.reread`."""
        self._prepare_tables(create=True)
        at_once, topics = self._facts.tasks_at_once(), self._known_topics()
        rows = self._ordered(self._frame.coalesce(at_once), at_once, kafka_only=ticket.kafka_only)
        with self._described("compare with the batch that both sides have"):
            if any(lane.chooses_topics for lane in self._lanes):
                with self._listener.open_attempt() as source:
                    plan = self._plan(topics, kafka_only=True, stream=source.address)
                    with AttemptThreads(source, self._forwarder(source, None, topics).task):
                        answers = self._map_in_arrow(rows, task_function(run_reread_task, plan), RESULT_DDL).toArrow()
            else:
                plan = self._plan(topics, kafka_only=True)
                answers = self._map_in_arrow(rows, task_function(run_reread_task, plan), RESULT_DDL).toArrow()
            results = read_results(answers)
        letters = self._letters = self._letter_topic.encoded(self._split.bad_rows, self._batch_id)
        records = self._rows_for_topics(results) - results.left_out.total() + letters.count
        return Replay(records, self._digest(results))

    def discard(self) -> None:
        """Forget the last `produce`; see `BatchWork.discard`."""
        if self._copy is not None:
            self._copy.close()
        self._results = self._copy = None
        self._letters = NO_LETTERS

    @contextmanager
    def _forgetting(self) -> Iterator[None]:
        """Where an attempt is thrown away, the plan of the table goes with it."""
        try:
            yield
        except BatchRetryError:
            self._tables.forget()
            raise

    @contextmanager
    def _copying(
        self, ticket: TransactionTicket, source: AttemptInput, open_decision: Callable[[], Connection]
    ) -> Iterator[None]:
        """Copy rows while the block runs; a resend has none."""
        if ticket.kafka_only:
            yield
            return
        copy = self._copy = TableCopy(
            source,
            open_decision=open_decision,
            targets=self._tables.targets(),
            idle_s=self._options.idle_in_transaction_timeout_ms / 1000 / _IDLE_SHARE,
            early=self._small_batches.expected,
        )
        with AttemptThreads(source, copy.task):
            yield

    def _run_job(self, ticket: TransactionTicket, source: StreamAttempt) -> tuple[TaskResults, Forwarded]:
        found = self._run_here(ticket, source) if self._small_batches.expected else None
        return found or self._run_in_tasks(ticket, source)

    def _run_here(self, ticket: TransactionTicket, source: AttemptInput) -> tuple[TaskResults, Forwarded] | None:
        """Collect the rows and encode them in this process; None where they turn out to be too many, before any is."""
        begun_s = self._clock.now_s()
        # The names of its columns are known of the batch, and would be asked anew of a frame made of it.
        rows = selected(self._frame, self._lanes, kafka_only=ticket.kafka_only).coalesce(1)
        most = self._small_batches.rows_max
        # Copy the context, so that log lines have the sink's id.
        with ThreadPoolExecutor(1, "spark_2pc_sink topics") as beside:
            asked = beside.submit(copy_context().run, self._topics_beside_job)
            try:
                table = ordered(rows.limit(most + 1), self._lanes, 1).toArrow()
            except Exception:
                # Perhaps they are few and huge: whatever it was, the next attempt shares them out.
                self._small_batches.note_too_large()
                raise
        if table.num_rows > most or table.nbytes > SMALL_BYTES_MAX:
            self._small_batches.note_too_large()
            return None
        topics = asked.result()
        plan = self._plan(topics, kafka_only=ticket.kafka_only)
        forwarder = self._forwarder(source, ticket, topics)
        with AttemptThreads(source, forwarder.task):
            batches = table.combine_chunks().to_batches()
            results = add_up([encode(batches, plan, _HERE, LocalStream(source, _HERE.task, _HERE.task_attempt))])
            forwarded = _forwarded(results, source, forwarder)
        self._arrow.forget()
        self._note_size(results, begun_s, collected=True)
        return results, forwarded

    def _topics_beside_job(self) -> KnownTopics:
        """What is asked of Kafka for the rows of a small batch, while Spark collects them."""
        topics = self._known_topics()
        every = [
            TopicPartition(topic, number)
            for topic, facts in topics.facts.items()
            for number in range(facts.partition_count)
        ]
        if len(every) > _ASKED_BESIDE_MAX:
            return topics
        try:
            cluster = self._connections.cluster()
            return replace(topics, ends=end_offsets(cluster, every, OffsetSpec.LATEST, cluster.deadline()))
        except BaseException:
            self._connections.drop()
            raise

    def _run_in_tasks(self, ticket: TransactionTicket, source: StreamAttempt) -> tuple[TaskResults, Forwarded]:
        begun_s, at_once, topics = self._clock.now_s(), self._facts.tasks_at_once(), self._known_topics()
        plan = self._plan(topics, kafka_only=ticket.kafka_only, stream=source.address)
        self._arrow.apply(self._frame.sparkSession)
        rows = self._ordered(self._frame.coalesce(at_once), at_once, kafka_only=ticket.kafka_only)
        sent = self._map_in_arrow(rows, task_function(run_encode_task, plan), RESULT_DDL)
        forwarder = self._forwarder(source, ticket, topics)
        try:
            with AttemptThreads(source, forwarder.task):
                results = read_results(sent.toArrow())
                forwarded = _forwarded(results, source, forwarder)
        except DataError:
            # It says nothing of the size of the batch, which another attempt may follow.
            raise
        except Exception:
            if not isinstance(source.failure, DataError):
                self._arrow.forget()
            raise
        self._arrow.note(results)
        self._note_size(results, begun_s, collected=False)
        return results, forwarded

    def _ordered(self, frame: DataFrame, at_once: int, *, kafka_only: bool) -> DataFrame:
        return ordered(selected(frame, self._lanes, kafka_only=kafka_only), self._lanes, at_once)

    def _forwarder(
        self, source: AttemptInput, ticket: TransactionTicket | None, topics: KnownTopics
    ) -> RecordForwarder:
        return RecordForwarder(source, ticket, self._connections, self._options.kafka, topics)

    def _note_size(self, results: TaskResults, begun_s: float, *, collected: bool) -> None:
        seconds = self._clock.now_s() - begun_s
        self._small_batches.note(
            rows=results.rows, arrow_bytes=results.arrow_bytes, seconds=seconds, collected=collected
        )

    def _known_topics(self) -> KnownTopics:
        counts = self._topics.counts(self._options.topics) if self._options.topics else {}
        facts = {topic: self._facts_of(topic, count) for topic, count in counts.items()}
        return KnownTopics(facts, dead_letters=self._letter_topic.name)

    def _facts_of(self, topic: str, count: int | None = None) -> TopicFacts:
        known = self._topics.counts([topic])[topic] if count is None else count
        return TopicFacts(known, self._topics.id_of(topic), self._topics.limits(topic))

    @contextmanager
    def _described(self, step: str) -> Iterator[None]:
        """Jobs meanwhile say in Spark's UI what they are for, and name executors that cannot run their tasks."""
        described = self._facts.described(f"{self._options.transactional_id} batch {self._batch_id}: {step}")
        with self._executors.naming(), described:
            yield

    def _plan(self, topics: KnownTopics, *, kafka_only: bool, stream: StreamAddress | None = None) -> TaskPlan:
        encoders = [None if lane.loader is None or kafka_only else lane.loader.encoder_plan() for lane in self._lanes]
        return TaskPlan(
            transactional_id=self._options.transactional_id,
            encoding=EncodingOptions.of(self._options.kafka),
            lanes=tuple(
                lane.plan(encoder, packed_with_others=len(self._lanes) > 1)
                for lane, encoder in zip(self._lanes, encoders, strict=True)
            ),
            topics=Topics(dict(topics.facts)),
            timestamp_ms=now_ms(),
            stream=stream,
        )

    def _map_in_arrow(self, frame: DataFrame, function: TaskFunction, schema: str) -> DataFrame:
        """``mapInArrow``, also where PySpark could not look the columns up: it takes their names for SQL."""
        if not any(mark in name for name in frame.columns for mark in ".`"):
            return frame.mapInArrow(function, schema)
        numbered = frame.toDF(*(f"column_{number}" for number in range(len(frame.columns))))
        return numbered.mapInArrow(renaming(function, frame.columns), schema)

    def _produced(self, results: TaskResults, forwarded: Forwarded, *, kafka_only: bool) -> ProducedBatch:
        rows, left_out, letters = results.lane_rows, results.left_out, self._letters
        outputs: Counter[str] = Counter()
        for lane in self._lanes:
            index = lane.lane.index
            if lane.lane.records is not None:
                outputs[str(lane.lane.records)] += rows[index] - left_out[index]
            if lane.lane.rows is not None and not kafka_only:
                outputs[str(lane.lane.rows)] += rows[index]
        if letters.count:
            outputs[str(self._letter_topic)] = letters.count
        return ProducedBatch(
            row_count=self._rows_for_tables(results),
            record_rows=self._rows_for_topics(results),
            record_count=forwarded.records + letters.sent,
            digest=self._digest(results),
            offsets={**forwarded.offsets, **letters.offsets},
            topic_ids={**forwarded.topic_ids, **letters.topic_ids},
            record_bytes=forwarded.record_bytes + letters.record_bytes,
            left_out=left_out.total(),
            outputs=outputs,
            bad_rows=self._split.bad_rows.occurrences,
            letters=letters.count,
        )

    def _prepare_tables(self, *, create: bool) -> None:
        self._tables.prepare(self._frame, expressions_by_lane(self._lanes), create=create)

    def _digest(self, results: TaskResults) -> str:
        """Of all records, and of the rows that have none; '' where there are neither."""
        if not any(results.lane_rows.values()) and not self._letters.count:
            return ""
        return format_digest(combine_digests(results.digest, results.row_digest, self._letters.digest))

    def _rows_for_tables(self, results: TaskResults) -> int:
        return sum(results.lane_rows[lane.lane.index] for lane in self._lanes if lane.lane.rows is not None)

    def _rows_for_topics(self, results: TaskResults) -> int:
        return sum(results.lane_rows[lane.lane.index] for lane in self._lanes if lane.lane.records is not None)


def _forwarded(results: TaskResults, source: AttemptInput, forwarder: RecordForwarder) -> Forwarded:
    """What the brokers have acknowledged, once the job has ended; it is what tasks have made, and nothing else.

    Raises:
        BatchRetryError: a task ran again, or something was lost on the way.
    """
    source.close_input()
    results.check_arrived(source.finished)
    forwarded = forwarder.finish()
    if forwarded.digest != results.digest:
        raise BatchRetryError(reason="the digest of the records that were sent is not that of the rows that were read")
    return forwarded
