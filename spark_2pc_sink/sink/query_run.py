"""One run of one streaming query: its connections, its claim, and the batches that it takes through the recipe."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from jdbc_state import Actor, SqlStateStore, StoreSettings
from jdbc_state.sink_log import sink_log
from spark_2pc_sink.clock import SystemClock
from spark_2pc_sink.kafka.transaction_client import TransactionClient
from spark_2pc_sink.options import SinkOptions
from spark_2pc_sink.recovery.recovery import Recovery
from spark_2pc_sink.sink.bad_rows.dead_letters import DeadLetters
from spark_2pc_sink.sink.driver.batch_driver import BatchDriver
from spark_2pc_sink.sink.driver.batch_values import BatchRules, RunOfQuery, Sides
from spark_2pc_sink.sink.driver.on_decide import OnDecide
from spark_2pc_sink.sink.driver.step_observer import BatchSpans, StepTimes
from spark_2pc_sink.sink.job.batch_split import BatchSplit, identity_sql
from spark_2pc_sink.sink.job.calling_query import check_is_batch
from spark_2pc_sink.sink.job.classic_query import check_session
from spark_2pc_sink.sink.job.lane_columns import expressions_by_lane
from spark_2pc_sink.sink.job.lane_expressions import LaneExpressions
from spark_2pc_sink.sink.job.session_facts import install_log_filter
from spark_2pc_sink.sink.job.spark_batch import RunSides, SparkBatch
from spark_2pc_sink.sink.job.table_loader import LaneTables
from spark_2pc_sink.sink.job.task_jobs import TaskJobs
from spark_2pc_sink.sink.lineage import Lineage
from spark_2pc_sink.sink.records.record_side import RecordSide

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark_2pc_sink.clock import Clock
    from spark_2pc_sink.sink.job.calling_query import CallingQuery
    from spark_2pc_sink.sink.report import BatchReport


#: Distinguishes actions of a job from an operator's commands.
_PROGRAM: Final = "job"


class QueryRun:
    """One run of one query.

    Args:
        options: the sink's options.
        query: the calling query.
        spark: the session of the first batch.

    Attributes:
        query: as passed.
    """

    def __init__(self, options: SinkOptions, query: CallingQuery, spark: SparkSession) -> None:
        install_log_filter()
        self.query = query
        self._options = options
        self._log = sink_log(__name__, options.transactional_id)
        clock = SystemClock()
        self._store = SqlStateStore(
            options.database,
            StoreSettings(**options.store_settings()),
            actor=Actor.of_this_process(_PROGRAM, options.reason),
            # A process may continue after its query has ended, as a notebook does.
            shown_while=query.is_running,
        )
        # All share the same connections and take turns: one is kept.
        self._dead_letters = DeadLetters(options, self._store.database, query.ids.query_id)
        self._sides = RunSides(
            options,
            TaskJobs(spark, options, query.is_running),
            RecordSide(options, query.ids.query_id, clock),
            LaneTables(options, self._store.database),
            clock,
        )
        self._lanes = LaneExpressions(options, self._sides.jobs.facts, self._sides.tables.loaders)
        self._spans = BatchSpans(options.transactional_id)
        self._times = StepTimes(clock, self._spans.reached)
        namespace = options.openlineage_namespace
        self._lineage = None if namespace is None else Lineage(namespace, options, query.ids, clock)
        self._driver = self._new_driver(clock)

    def _new_driver(self, clock: Clock) -> BatchDriver:
        options, query = self._options, self.query
        kafka = TransactionClient(self._sides.records.cluster, options.transactional_id, options.kafka)
        recovery = Recovery(options, kafka=kafka, store=self._store, clock=clock, topics=options.all_topics)
        return BatchDriver(
            Sides(recovery, kafka, self._store, clock),
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

    def start(self, batch: DataFrame) -> None:
        """Check everything that can be checked without writing, then claim and recover."""
        jobs, records = self._sides.jobs, self._sides.records
        check_session(jobs.facts.speculation())
        check_is_batch(batch)
        self.query.check()
        with jobs.executors.begun():
            lanes = self._lanes.of(batch)
            if self._options.topics:
                records.cluster.partition_counts(self._options.topics)
            self._sides.tables.prepare(batch, expressions_by_lane(lanes), create=False)
        if self._options.bad_rows == "dead_letter":
            identity_sql(batch.schema)
            self._store.prepare_schema()
            self._dead_letters.prepare()
            records.letters.check()
        for name in ("adopt", "accept_loss", "accept_replay"):
            given = getattr(self._options, name)
            if given is not None and given is not False:
                once = "is meant for one start only: it disables a safety check for as long as it is set. Remove it"
                self._log.warning("%s=%s %s", name, given, once)
        with self._spans.span("start"):
            recovered = self._driver.recover()
        if self.query.comes_straight(batch, jobs.facts.tasks_at_once()):
            jobs.small_batches.try_first()
        if self._lineage is not None:
            self._lineage.begin(batch, lanes)
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
        self._sides.jobs.facts.check_repeatable(batch, "the batch")
        split = BatchSplit(batch, batch_id, self._options, self._dead_letters)
        lag = self.query.lag()
        self._times.begin(**lag)
        with self._spans.span("batch", batch_id=batch_id):
            try:
                lanes = self._lanes.of(batch)
                written = self._driver.write(batch_id, SparkBatch(split, lanes, self._sides))
            except Exception:
                self._sides.jobs.note_failure()
                if self._lineage is not None:
                    self._lineage.end(failed=True)
                raise
            report = replace(written, seconds=self._times.total_s, step_seconds=self._times.by_step, **lag)
            self._spans.report(report)
        if self._lineage is not None:
            self._lineage.wrote(batch, lanes, report)
        return report

    def close(self) -> None:
        """Close the connections of this run."""
        if self._lineage is not None:
            self._lineage.end(failed=False)
        self._sides.jobs.close()
        self._sides.records.close()
        self._store.close()
