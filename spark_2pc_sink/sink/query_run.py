"""One run of one streaming query: its connections, its claim, and the batches that it takes through the recipe."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from jdbc_state import Actor, SqlStateStore, StoreSettings
from jdbc_state.sink_log import sink_log
from spark_2pc_sink.clock import SystemClock
from spark_2pc_sink.options import SinkOptions
from spark_2pc_sink.producer.cluster import Cluster
from spark_2pc_sink.producer.transaction_client import TransactionClient
from spark_2pc_sink.recovery.recovery import Recovery
from spark_2pc_sink.sink.bad_rows.bad_row import identity_sql
from spark_2pc_sink.sink.bad_rows.dead_letters import DeadLetters
from spark_2pc_sink.sink.contract.record_expressions import (
    RecordExpressions,
    analyze,
    choose_expressions,
    expressions_frame,
    with_guards,
    with_json,
    with_key_column,
)
from spark_2pc_sink.sink.driver.batch_driver import BatchDriver
from spark_2pc_sink.sink.driver.batch_values import BatchRules, RunOfQuery, Sides
from spark_2pc_sink.sink.driver.on_decide import OnDecide
from spark_2pc_sink.sink.driver.step_observer import StepTimes
from spark_2pc_sink.sink.job.batch_size import ArrowBatchSize, SmallBatches
from spark_2pc_sink.sink.job.batch_split import BatchSplit
from spark_2pc_sink.sink.job.calling_query import check_is_batch
from spark_2pc_sink.sink.job.classic_query import check_session
from spark_2pc_sink.sink.job.dead_letter_topic import DeadLetterTopic
from spark_2pc_sink.sink.job.executors import ExecutorWatch, tried_executors
from spark_2pc_sink.sink.job.lane_columns import LaneWork, expressions_by_lane, rows_of
from spark_2pc_sink.sink.job.lane_expressions import JsonSettings, RecordSchemas, check_places
from spark_2pc_sink.sink.job.session_facts import install_log_filter, session_facts, stream_endpoint
from spark_2pc_sink.sink.job.spark_batch import SparkBatchWork
from spark_2pc_sink.sink.job.table_loader import LaneTables
from spark_2pc_sink.sink.stream.connections import StreamLimits
from spark_2pc_sink.sink.stream.listener import StreamListener
from spark_2pc_sink.sink.transfer.record_forwarder import Connections, TopicMetadata

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from spark_2pc_sink.options import Lane
    from spark_2pc_sink.sink.job.calling_query import CallingQuery
    from spark_2pc_sink.sink.report import BatchReport


#: How what a job does is told from what a person does with a command.
_PROGRAM: Final = "job"


class QueryRun:
    """One run of one query.

    Args:
        options: of the sink.
        query: that calls.
        spark: the session of the first batch.

    Attributes:
        query: as given.
    """

    def __init__(self, options: SinkOptions, query: CallingQuery, spark: SparkSession) -> None:
        install_log_filter()
        self.query = query
        self._clock = SystemClock()
        self._options = options
        self._facts = session_facts(spark, options.transactional_id)
        self._log = sink_log(__name__, options.transactional_id)
        self._cluster = Cluster(options.kafka)
        self._kafka = TransactionClient(self._cluster, options.transactional_id, options.kafka)
        self._store = SqlStateStore(
            options.database,
            StoreSettings(**options.store_settings()),
            actor=Actor.of_this_process(_PROGRAM, options.reason),
            # A process may go on when its query has ended, as a notebook's does.
            shown_while=query.is_running,
        )
        # The same connections for both, which take turns: one is kept.
        self._tables = LaneTables(options, self._store.database)
        self._dead_letters = DeadLetters(options, self._store.database, query.ids.query_id)
        self._topics = TopicMetadata(self._cluster, self._clock)
        self._small_batches = SmallBatches()
        # Not the cluster above, which must not be lost when a broker fails in the middle of a batch.
        self._connections = Connections(options.kafka)
        self._letters = DeadLetterTopic(options, query.ids.query_id, self._topics, self._connections)
        self._arrow = ArrowBatchSize()
        limits = StreamLimits(tasks_at_once=self._facts.tasks_at_once())
        self._open = ExitStack()
        self._listener = self._open.enter_context(
            StreamListener(stream_endpoint(spark, options), limits, query.is_running)
        )
        self._executors = ExecutorWatch(spark, options.transactional_id, self._facts, self._listener)
        self._times = StepTimes(self._clock)
        recovery = Recovery(options, kafka=self._kafka, store=self._store, clock=self._clock, topics=options.all_topics)
        self._driver = BatchDriver(
            Sides(recovery, self._kafka, self._store, self._clock),
            RunOfQuery(
                options.transactional_id,
                query.ids.query_id,
                query.ids.run_id,
                is_stopping=query.is_stopping,
                look_back=query.look_back,
                explicit_batch_ids=query.explicit_batch_ids,
            ),
            BatchRules(
                options.batch_attempts_max,
                options.decision_margin_ms,
                options.connect_deadline_ms,
                options.accept_replay,
                None if options.on_decide is None else OnDecide(options.on_decide),
            ),
            self._times,
        )
        self._settings = JsonSettings(options.transactional_id, self._facts)
        self._schemas = RecordSchemas(options.schema_registry)
        self._analyzed: tuple[StructType, Mapping[str, str], tuple[LaneWork, ...]] | None = None

    def start(self, batch: DataFrame) -> None:
        """Check everything that can be checked without writing, then claim and recover."""
        check_session(self._facts.speculation())
        check_is_batch(batch)
        self.query.check()
        with self._executors.begun():
            lanes = self._lanes(batch)
            if self._options.topics:
                self._cluster.partition_counts(self._options.topics)
            self._tables.prepare(batch, expressions_by_lane(lanes), create=False)
        if self._options.bad_rows == "dead_letter":
            identity_sql(batch.schema)
            self._store.prepare_schema()
            self._dead_letters.prepare()
            self._letters.check()
        for name in ("adopt", "accept_loss", "accept_replay"):
            given = getattr(self._options, name)
            if given is not None and given is not False:
                once = "is meant for one start only: it disables a safety check for as long as it is set. Remove it"
                self._log.warning("%s=%s %s", name, given, once)
        recovered = self._driver.recover()
        if self.query.comes_straight(batch, self._facts.tasks_at_once()):
            self._small_batches.try_first()
        initialized = recovered.initialized
        self._log.info(
            "claim %d, next pair %s; %s",
            recovered.row.generation,
            initialized.producer,
            "transactions never time out (two-phase commit is granted)"
            if initialized.two_phase_commit
            else f"transactions time out after {initialized.timeout_ms // 1000} s (two-phase commit is not granted): "
            "after a longer crash between the two commits a batch is sent to Kafka again",
        )

    def write(self, batch: DataFrame, batch_id: int) -> BatchReport:
        """Take one batch through the recipe."""
        self._facts.check_repeatable(batch, "the batch")
        work = SparkBatchWork(
            split=BatchSplit(batch, batch_id, self._options, self._dead_letters),
            options=self._options,
            lanes=self._lanes(batch),
            topics=self._topics,
            tables=self._tables,
            small_batches=self._small_batches,
            connections=self._connections,
            arrow=self._arrow,
            listener=self._listener,
            clock=self._clock,
            facts=self._facts,
            executors=self._executors,
            letters=self._letters,
            batch_id=batch_id,
        )
        self._times.begin()
        try:
            report = self._driver.write(batch_id, work)
        except Exception:
            tried_executors.forget()
            # The query ends by it, and another one may need the port.
            self._listener.close()
            raise
        return replace(report, seconds=self._times.total_s, step_seconds=self._times.by_step)

    def close(self) -> None:
        """Close the connections of this run."""
        self._open.close()
        self._connections.drop()
        self._cluster.close()
        self._store.close()

    def _lanes(self, batch: DataFrame) -> tuple[LaneWork, ...]:
        """The sink's lanes over this batch; analyzed again only when schema or settings have changed."""
        schema, settings = batch.schema, self._settings.now(batch.sparkSession)
        if self._analyzed is None or self._analyzed[:2] != (schema, settings):
            lanes = tuple(
                LaneWork(lane, self._expressions(batch, lane, settings), self._tables.loaders.get(lane.index))
                for lane in self._options.lanes
            )
            self._analyzed = (schema, settings, lanes)
        return self._analyzed[2]

    def _expressions(self, batch: DataFrame, lane: Lane, settings: Mapping[str, str]) -> RecordExpressions:
        with lane.naming():
            rows = rows_of(batch, lane.source)
            analyzed = analyze(rows, choose_expressions(lane, rows.schema), lane.order_by)
            check_places(rows, analyzed, lane, self._options.transactional_id)
            self._facts.check_repeatable(expressions_frame(rows, analyzed, lane.order_by), "an expression of the sink")
            bound = self._schemas.bound(analyzed, rows, lane)
            in_tasks = with_json(bound, rows.schema, settings)
            return with_guards(with_key_column(in_tasks, rows), rows)
