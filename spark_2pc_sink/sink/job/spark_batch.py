"""A micro-batch as a Spark job: it writes to Kafka, and the COPY bytes that it makes are written beside it.

Where rows choose their partitions, by key for instance, the job has two stages. Tasks encode the rows that they read;
then a few large shuffle batches, not the rows, go to the tasks that own the partitions. Otherwise each task sends what
it reads. The few rows of a small batch are collected, and sent from here.
"""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import copy_context
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from spark_2pc_sink.clock import now_ms
from spark_2pc_sink.errors import BatchRetryError, DataError, LocalProtocolError
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.producer.leader_lookup import end_offsets
from spark_2pc_sink.sink.contract import record_expressions
from spark_2pc_sink.sink.contract.batch_work import ProducedBatch, Replay
from spark_2pc_sink.sink.contract.lane_frames import rows_of
from spark_2pc_sink.sink.contract.receipts import RESULT_DDL, TaskResults, add_up, read_results
from spark_2pc_sink.sink.contract.shuffle_schema import INDEXES_FIRST, SALT, SHUFFLE_DDL
from spark_2pc_sink.sink.contract.task_plan import TaskPlan
from spark_2pc_sink.sink.contract.topics import Topics
from spark_2pc_sink.sink.job.batch_sift import BatchSift, is_about_rows
from spark_2pc_sink.sink.job.dead_letter_topic import NO_LETTERS
from spark_2pc_sink.sink.job.job_shape import SMALL_BYTES_MAX, JobShape, balanced_salts, shape_of
from spark_2pc_sink.sink.job.lane_work import expressions_by_lane
from spark_2pc_sink.sink.tasks.encode_and_send_task import run_encode_and_send_task, write_alone
from spark_2pc_sink.sink.tasks.encode_task import run_encode_task, run_reread_task
from spark_2pc_sink.sink.tasks.send_task import run_count_task, run_send_task
from spark_2pc_sink.sink.tasks.task_functions import renaming, task_function
from spark_2pc_sink.sink.transfer.copy_channel import DirectSender
from spark_2pc_sink.sink.transfer.copy_thread import CopyThread
from spark_2pc_sink.wire.digest import combine_digests, format_digest
from spark_2pc_sink.wire.messages import OffsetSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame
    from sqlalchemy import Connection

    from spark_2pc_sink.clock import Clock
    from spark_2pc_sink.options import SinkOptions
    from spark_2pc_sink.sink.contract.batch_work import TransactionTicket
    from spark_2pc_sink.sink.contract.row_transfer import RowEncoderPlan
    from spark_2pc_sink.sink.contract.topics import Connections
    from spark_2pc_sink.sink.job.arrow_batch_size import ArrowBatchSize
    from spark_2pc_sink.sink.job.batch_split import BatchSplit
    from spark_2pc_sink.sink.job.dead_letter_topic import DeadLetterTopic
    from spark_2pc_sink.sink.job.executor_watch import ExecutorWatch
    from spark_2pc_sink.sink.job.job_shape import SmallBatches
    from spark_2pc_sink.sink.job.lane_work import LaneWork
    from spark_2pc_sink.sink.job.session_facts import SessionFacts
    from spark_2pc_sink.sink.job.topic_metadata import TopicMetadata
    from spark_2pc_sink.sink.tasks.task_functions import TaskFunction
    from spark_2pc_sink.sink.transfer.copy_channel import CopyChannel
    from spark_2pc_sink.sink.transfer.lane_tables import LaneTables
    from spark_2pc_sink.sink.transfer.local_folder import LocalFolder
    from spark_2pc_sink.sink.written_rows import WrittenRows

_STAGE_ATTEMPTS = "spark.stage.maxConsecutiveAttempts"
#: Spark's default of spark.stage.maxConsecutiveAttempts.
_STAGE_ATTEMPTS_DEFAULT = "4"
#: A connection that waits for rows asks the server for something after this fraction (1/n) of its idle timeout.
_IDLE_SHARE: Final = 3
#: Of how many partitions it is asked where they end, before it is known which of them get rows of a small batch.
_ASKED_BESIDE_MAX: Final = 64


class SparkBatchWork:
    """One call of foreachBatch.

    Args:
        split: the batch, and which of its rows are left out.
        options: of the sink.
        lanes: of the sink, with expressions checked against the frame's schema.
        topics: asks Kafka about topics.
        tables: how rows get into the tables.
        small_batches: whether this one is likely to be small.
        connections: to the brokers, for batches that are sent from here.
        arrow: bounds what Python workers are handed.
        channel: where COPY bytes for the table arrive.
        local: what the driver and all tasks see; None where they do not run on one machine.
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
        channel: CopyChannel,
        local: LocalFolder | None,
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
        self._channel = channel
        self._local = local
        self._clock = clock
        self._facts = facts
        self._executors = executors
        self._letter_topic = letters
        self._letters = NO_LETTERS
        self._batch_id = batch_id
        self._folder: Path | None = None
        self._results: TaskResults | None = None
        self._copy: CopyThread | None = None
        self._ticket: TransactionTicket | None = None
        self._sifted = False
        self._refused = False

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
        # What an attempt before has staged; each that fails is followed by a new claim.
        self._tables.drop_leftover_staging(ticket.generation)
        self._ticket, self._refused = ticket, False
        with self._forgetting(), self._described("write to Kafka only" if ticket.kafka_only else "write"):
            self._folder = None if self._local is None else self._local.begin(ticket)
            if ticket.kafka_only:
                results = self._sent_all(ticket)
            else:
                with self._copy_thread(ticket, open_decision) as self._copy:
                    results = self._sent_all(ticket)
        self._results = results
        return self._produced(results, kafka_only=ticket.kafka_only)

    def copy_into(self, connection: Connection) -> WrittenRows:
        """Write the rows that `produce` has not; see `BatchWork.copy_into`."""
        if self._results is None or self._copy is None:
            raise LocalProtocolError(operation="copy_into", state="no rows", rule="produce() comes first")
        with self._forgetting():
            written = self._copy.finish(connection, self._results.encoded)
        self._split.write_dead_letters(connection)
        return written

    def recall(self) -> None:
        """See `BatchWork.recall`."""
        self._split.recall()

    def sift(self, ticket: TransactionTicket, error: DataError, open_decision: Callable[[], Connection]) -> bool:
        """Run the jobs that look for bad rows; see `BatchWork.sift`."""
        if not self._split.sifts or not is_about_rows(error):
            return False
        # Of the attempt that has failed.
        self.discard()
        self._prepare_tables(create=False)
        self._folder = None if self._local is None else self._local.begin(ticket)
        self._ticket, self._sifted = ticket, True
        at_once = self._facts.tasks_at_once()
        topics = self._known_topics(self._known_counts())
        topics.learn(error, self._topics.limits)
        plan = self._plan(ticket, topics, salts=(0,), at_once=at_once)
        sift = BatchSift(
            self._frame,
            at_once,
            self._lanes,
            [replace(plan, lanes=(replace(lane, packed=None),)) for lane in plan.lanes],
            self._map_in_arrow,
            most=self._options.max_bad_rows.rows,
            exact=self._split.exact,
        )
        with self._described("look for bad rows"):
            return self._split.leave_out(sift.run(error, open_decision))

    def reread(self, ticket: TransactionTicket) -> Replay:
        """Encode the records in tasks, and keep their digest; see `BatchWork.reread`."""
        self._prepare_tables(create=True)
        spark = self._frame.sparkSession
        at_once = self._facts.tasks_at_once()
        plan = self._plan(ticket, self._known_topics(self._known_counts()), salts=(0,), at_once=at_once)
        if any(lane.upsert_records is not None and lane.upsert_records.leave_out for lane in plan.lanes):
            # Which records there are is known where all rows of a key are. Shuffle batches may be of any size: a bound.
            self._arrow.forget()
            plan = replace(plan, salts=balanced_salts(at_once), shuffle_bytes_max=self._arrow.apply(spark))
            answers = self._exchanged(self._frame.coalesce(at_once), plan, task_function(run_count_task, plan))
        else:
            rows = self._selected(self._frame.coalesce(at_once), [], kafka_only=True)
            answers = self._map_in_arrow(rows, task_function(run_reread_task, plan), RESULT_DDL)
        with self._described("compare with the batch that both sides have"):
            results = read_results(answers.toArrow(), tasks_expected=None)
        letters = self._letters = self._letter_topic.encoded(self._split.bad_rows, self._batch_id)
        records = self._rows_for_topics(results) - results.left_out.total() + letters.count
        return Replay(records, self._digest(results))

    def discard(self) -> None:
        """Forget the last `produce`, and remove what it has left on the disk or in tables; see `BatchWork.discard`."""
        results, ticket, folder = self._results, self._ticket, self._folder
        staged = self._sifted or (results is not None and results.staged)
        self._results = self._copy = self._ticket = self._folder = None
        self._letters = NO_LETTERS
        self._sifted = False
        if self._local is not None:
            self._local.end()
        if folder is None and ticket is not None and staged:
            self._tables.drop_staging(ticket)

    @contextmanager
    def _forgetting(self) -> Iterator[None]:
        """Where an attempt is thrown away, the plan of the table goes with it."""
        try:
            yield
        except BatchRetryError:
            self._tables.forget()
            raise

    def _copy_thread(self, ticket: TransactionTicket, open_decision: Callable[[], Connection]) -> CopyThread:
        return CopyThread(
            self._channel,
            ticket.attempt,
            open_decision=open_decision,
            targets=self._tables.targets(ticket, self._folder),
            look_s=self._tables.look_s(ticket, self._folder),
            idle_s=self._options.idle_in_transaction_timeout_ms / 1000 / _IDLE_SHARE,
            early=self._small_batches.expected,
            refused=self._tell_refusal,
        )

    @property
    def _refusal(self) -> Path | None:
        """See `TaskPlan.refusal`."""
        return None if self._folder is None else self._folder / "refusal"

    def _tell_refusal(self) -> None:
        """Have the tasks of an attempt end that has failed: none of their workers is ended for it."""
        self._refused = True
        if self._refusal is not None:
            # Somebody may have removed the folder: then the tasks only take longer.
            with suppress(OSError):
                self._refusal.touch()

    def _sent_all(self, ticket: TransactionTicket) -> TaskResults:
        """Have the tasks write, and send the dead letters behind them: rows are still copied meanwhile."""
        results = self._run_job(ticket)
        self._letters = self._letter_topic.send(ticket, self._split.bad_rows, self._batch_id)
        return results

    def _run_job(self, ticket: TransactionTicket) -> TaskResults:
        results = self._run_here(ticket) if self._small_batches.expected else None
        return results or self._run_in_tasks(ticket)

    def _run_here(self, ticket: TransactionTicket) -> TaskResults | None:
        """Collect the rows and write them from this process; None where they turn out to be too many, before any is."""
        begun_s = self._clock.now_s()
        # The names of its columns are known of the batch, and would be asked anew of a frame made of it.
        rows = self._selected(self._frame, [], kafka_only=ticket.kafka_only).coalesce(1)
        most = self._small_batches.rows_max
        # Its log is that of the sink.
        with ThreadPoolExecutor(1, "spark_2pc_sink topics") as beside:
            asked = beside.submit(copy_context().run, self._topics_beside_job)
            try:
                table = rows.limit(most + 1).toArrow()
            except Exception:
                # Perhaps they are few and huge: whatever it was, the next attempt shares them out.
                self._small_batches.note_too_large()
                raise
        if table.num_rows > most or table.nbytes > SMALL_BYTES_MAX:
            self._small_batches.note_too_large()
            return None
        plan = self._plan(ticket, asked.result(), salts=(0,), at_once=1, here=True)
        results = add_up([write_alone(table.combine_chunks().to_batches(), plan)], tasks_expected=1)
        self._arrow.forget()
        self._note_size(results, begun_s, collected=True)
        return results

    def _topics_beside_job(self) -> Topics:
        """What is asked of Kafka for the rows of a small batch, while Spark collects them."""
        topics = self._known_topics(self._known_counts(), self._connections)
        every = [TopicPartition(topic, each) for topic, count in topics.counts.items() for each in range(count)]
        if len(every) <= _ASKED_BESIDE_MAX:
            try:
                cluster = self._connections.cluster()
                topics.ends = end_offsets(cluster, every, OffsetSpec.LATEST, cluster.deadline())
            except BaseException:
                self._connections.drop()
                raise
        return topics

    def _run_in_tasks(self, ticket: TransactionTicket) -> TaskResults:
        begun_s, known = self._clock.now_s(), self._known_counts()
        at_once = self._facts.tasks_at_once()
        shape = shape_of(
            at_once,
            partitions=None if any(lane.chooses_topics for lane in self._lanes) else known.values(),
            chosen=any(record_expressions.chooses_partitions(lane.expressions) for lane in self._lanes),
            compared=any(lane.upsert_records is not None for lane in self._lanes),
        )
        plan = replace(
            self._plan(ticket, self._known_topics(known), salts=balanced_salts(shape.senders), at_once=at_once),
            stage_attempts_max=int(self._facts.setting(_STAGE_ATTEMPTS, _STAGE_ATTEMPTS_DEFAULT)),
            shuffle_bytes_max=self._arrow.apply(self._frame.sparkSession),
        )
        sent = self._sent(plan, shape, at_once)
        try:
            results = read_results(sent.toArrow(), tasks_expected=shape.senders if shape.exchange else None)
        except DataError:
            # It says nothing of the size of the batch, which another attempt may follow.
            raise
        except Exception:
            if not self._refused:
                self._arrow.forget()
            raise
        self._arrow.note(results)
        self._note_size(results, begun_s, collected=False)
        return results

    def _sent(self, plan: TaskPlan, shape: JobShape, at_once: int) -> DataFrame:
        """The receipts of the tasks that send, once they are asked for."""
        frame = self._frame.coalesce(at_once)
        if not shape.exchange:
            rows = self._selected(frame, [record_expressions.attempt_sql()], kafka_only=plan.ticket.kafka_only)
            return self._map_in_arrow(rows, task_function(run_encode_and_send_task, plan), RESULT_DDL)
        return self._exchanged(frame, plan, task_function(run_send_task, plan))

    def _exchanged(self, frame: DataFrame, plan: TaskPlan, function: TaskFunction) -> DataFrame:
        """The results of a function of shuffle batches, for each task that owns partitions."""
        rows = self._selected(frame, [], kafka_only=plan.ticket.kafka_only)
        encoded = self._map_in_arrow(rows, task_function(run_encode_task, plan), SHUFFLE_DDL)
        shuffle_batches = encoded.repartition(plan.tasks, SALT)
        if plan.compares:
            shuffle_batches = shuffle_batches.sortWithinPartitions(*(F.expr(column) for column in INDEXES_FIRST))
        return shuffle_batches.selectExpr("*", record_expressions.attempt_sql()).mapInArrow(function, RESULT_DDL)

    def _note_size(self, results: TaskResults, begun_s: float, *, collected: bool) -> None:
        seconds = self._clock.now_s() - begun_s
        self._small_batches.note(
            rows=results.rows, arrow_bytes=results.arrow_bytes, seconds=seconds, collected=collected
        )

    def _known_counts(self) -> dict[str, int]:
        return self._topics.counts(self._options.topics) if self._options.topics else {}

    def _known_topics(self, counts: dict[str, int], own: Connections | None = None) -> Topics:
        limits = {topic: self._topics.limits(topic) for topic in counts}
        ids = {topic: self._topics.id_of(topic) for topic in counts}
        letters = self._letter_topic.name
        return Topics(self._options.kafka, counts=counts, limits=limits, ids=ids, own=own, dead_letters=letters)

    @contextmanager
    def _described(self, step: str) -> Iterator[None]:
        """Jobs meanwhile say in Spark's UI what they are for, and name executors that cannot run their tasks."""
        described = self._facts.described(f"{self._options.transactional_id} batch {self._batch_id}: {step}")
        with self._executors.naming(), described:
            yield

    def _plan(
        self, ticket: TransactionTicket, topics: Topics, *, salts: tuple[int, ...], at_once: int, here: bool = False
    ) -> TaskPlan:
        sender = DirectSender(self._channel) if here else self._facts.sender(self._channel)
        plans = []
        for lane in self._lanes:
            row_encoder: RowEncoderPlan | None = None
            if lane.loader is not None and not ticket.kafka_only:
                staging = lane.loader.staging(ticket, self._folder)
                row_encoder = lane.loader.encoder_plan(at_once, sender, staging)
            plans.append(lane.plan(row_encoder, packed_with_others=len(self._lanes) > 1))
        return TaskPlan(
            ticket=ticket,
            kafka=self._options.kafka,
            lanes=tuple(plans),
            topics=topics,
            salts=salts,
            timestamp_ms=now_ms(),
            shuffle_folder=None if self._folder is None else self._folder / "shuffle",
            refusal=self._refusal,
        )

    def _selected(self, frame: DataFrame, more: list[str], *, kafka_only: bool) -> DataFrame:
        """One column for each thing that is needed to encode a row, or for each of several lanes; and ``more``."""
        if len(self._lanes) == 1:
            return self._lanes[0].alone(frame, more, kafka_only=kafka_only)
        return frame.selectExpr(*(lane.packed(frame, kafka_only=kafka_only) for lane in self._lanes), *more)

    def _map_in_arrow(self, frame: DataFrame, function: TaskFunction, schema: str) -> DataFrame:
        """``mapInArrow``, also where PySpark could not look the columns up: it takes their names for SQL."""
        if not any(mark in name for name in frame.columns for mark in ".`"):
            return frame.mapInArrow(function, schema)
        numbered = frame.toDF(*(f"column_{number}" for number in range(len(frame.columns))))
        return numbered.mapInArrow(renaming(function, frame.columns), schema)

    def _produced(self, results: TaskResults, *, kafka_only: bool) -> ProducedBatch:
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
            record_count=results.records + letters.sent,
            digest=self._digest(results),
            offsets={**results.offsets, **letters.offsets},
            topic_ids={**results.topic_ids, **letters.topic_ids},
            record_bytes=results.record_bytes + letters.record_bytes,
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
