"""``DualWriteSink``: the object that a user passes to ``foreachBatch``."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jdbc_state import SqlStateStore, StoreSettings
from spark_2pc_sink.clock import SystemClock
from spark_2pc_sink.errors import LocalProtocolError
from spark_2pc_sink.options import SinkOptions
from spark_2pc_sink.producer.cluster import Cluster
from spark_2pc_sink.producer.transaction_client import TransactionClient
from spark_2pc_sink.recovery.recovery import Recovery
from spark_2pc_sink.sink.contract import record_expressions as frames
from spark_2pc_sink.sink.driver import step_observer as observer
from spark_2pc_sink.sink.driver.batch_driver import BatchDriver
from spark_2pc_sink.sink.driver.step_times import StepTimes
from spark_2pc_sink.sink.job.arrow_batch_size import ArrowBound
from spark_2pc_sink.sink.job.json_settings import JsonSettings
from spark_2pc_sink.sink.job.query_checks import (
    QueryRun,
    check_environment,
    current_query,
    current_run,
    is_running,
    is_stopping,
    local_directory,
    runs_here,
    stream_execution,
)
from spark_2pc_sink.sink.job.record_places import check_places
from spark_2pc_sink.sink.job.repeatability import Repeatability
from spark_2pc_sink.sink.job.run_record import run_record
from spark_2pc_sink.sink.job.sinks_of_runs import sinks_of_runs
from spark_2pc_sink.sink.job.small_batches import Pace
from spark_2pc_sink.sink.job.spark_batch import SparkBatchWork
from spark_2pc_sink.sink.job.waves import cut_files
from spark_2pc_sink.sink.tasks.topic_metadata import Connections, TopicFacts
from spark_2pc_sink.sink.transfer.copy_channel import RowFeed
from spark_2pc_sink.sink.transfer.local_folder import LocalFolder
from spark_2pc_sink.sink.transfer.table_loader import RowLoader

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from spark_2pc_sink.recipe.steps import Step
    from spark_2pc_sink.sink.contract.batch_work import BatchReport

_log = logging.getLogger(__name__)


class DualWriteSink:
    """Writes each micro-batch of a streaming query to Kafka and PostgreSQL, exactly once to both.

    Pass it to ``writeStream.foreachBatch(sink)``. It can be pickled, and one object may be used by one query at a
    time, one call after the other. A reader of the topic with isolation.level=read_committed and a reader of the table
    see the same rows, each once, whatever died in between (KIP-939, "Normal processing recipe").

    Args:
        transactional_id: stable across restarts and different for each sink; both sides fence by it.
        kafka: Kafka client properties, as librdkafka or Kafka name them; ``bootstrap.servers`` is required.
        database: SQLAlchemy URL, dialect postgresql.
        topic: where rows go; a column named ``topic`` overrides it row by row.
        key: SQL expression over the batch; default: the column ``key`` if there is one, else null.
        value: SQL expression; default: the column ``value`` if there is one, else ``to_json(struct(*))``.
        headers: SQL expression of type array<struct<key:string,value:binary>>; default: the column ``headers``.
        partition: SQL expression; default: the column ``partition``, else as Java's producer partitions.
        table: target table, ``table`` or ``schema.table``.
        columns: column -> SQL expression; default: every column of the batch that is not one of Kafka's.
        mode: ``"append"``, or ``"upsert"`` with ``upsert_keys``.
        on_batch: called in the driver with the `BatchReport` of each batch that both sides have. Its exception ends the
            query; the batch stays written, and is skipped by the next start.
        **options: everything else of `SinkOptions`, each with a documented default.

    Raises:
        ConfigurationError: an option is unknown, has a bad value, or contradicts another. Nothing was connected to.
    """

    def __init__(self, **options: Any) -> None:
        self._options = SinkOptions.parse(**options)
        self._run: _Run | None = None
        self._calls = threading.Lock()

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Write one micro-batch; Spark calls this.

        Raises:
            LocalProtocolError: another thread is in a call of this object, for ``claim_deadline_ms`` by now.
            DualWriteError: see `spark_2pc_sink.errors`; the query fails with it, and a restart goes on from there.
        """
        # Beside another one this call would take that for failed, claim anew, and supersede it. The other one may be of
        # a query that was stopped: Spark does not wait for the Python side, which soon notices.
        wait_ms = self._options.claim_deadline_ms
        if not self._calls.acquire(timeout=wait_ms / 1000):
            raise LocalProtocolError(
                operation=f"write batch {batch_id} to {self._options.transactional_id!r}",
                state=f"busy in another thread for {wait_ms} ms",
                rule="one call comes after the other; parts of a batch that are written at the same time, and queries "
                "that run at the same time, need a sink each, with a transactional_id of its own",
            )
        try:
            self._write(batch, batch_id)
        finally:
            self._calls.release()

    def _write(self, batch: DataFrame, batch_id: int) -> None:
        query_id = current_query(batch.sparkSession)
        if self._run is None or not self._run.goes_on(batch.sparkSession, query_id):
            self._start(batch, query_id)
        if self._run is None:
            message = "a run was just started"
            raise AssertionError(message)
        report = self._run.write(batch, batch_id)
        # Its line is put together only where it is logged.
        _log.info("%s", report)
        if self._options.on_batch is not None:
            self._options.on_batch(report)

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._options = state["_options"]
        self._run = None
        self._calls = threading.Lock()

    def __repr__(self) -> str:
        options = self._options
        return f"<DualWriteSink {options.transactional_id!r} topic={options.topic!r} table={options.table!r}>"

    def _start(self, batch: DataFrame, query_id: str) -> None:
        """Begin a run: refuse what cannot be safe, then recover. A refused run leaves the one before in place."""
        execution = stream_execution(batch.sparkSession, query_id)
        query = current_run(batch.sparkSession, query_id, execution)
        sinks_of_runs.check_in(
            query, self._options, is_active=lambda other: stream_execution(batch.sparkSession, other) is not None
        )
        started = _Run(self._options, query, execution, batch.sparkSession)
        try:
            started.start(batch)
        except BaseException:
            started.close()
            raise
        if self._run is not None:
            self._run.close()
        self._run = started


class _Run:
    """One run of one query: connections, the claim, and what was learnt of the batch's schema."""

    def __init__(self, options: SinkOptions, query: QueryRun, execution: Any | None, spark: SparkSession) -> None:
        self._query = query
        self._execution = execution
        self._options = options
        here = options.local_files and runs_here(spark)
        self._local = LocalFolder(local_directory(spark)) if here else None
        self._cluster = Cluster(options.kafka)
        self._kafka = TransactionClient(self._cluster, options.transactional_id, options.kafka)
        self._store = SqlStateStore(
            options.database,
            StoreSettings(**options.store_settings()),
            # A process may go on when its query has ended, as a notebook's does.
            shown_while=lambda: is_running(self._execution),
        )
        # The same connections for both, which take turns: one is kept.
        self._loader = RowLoader(options, self._store.database)
        self._topics = TopicFacts(self._cluster)
        self._pace = Pace()
        # Not the cluster above, which must not be lost when a broker fails in the middle of a batch.
        self._connections = Connections(options.kafka)
        self._arrow = ArrowBound()
        self._feed = RowFeed()
        clock = SystemClock()
        self._times = StepTimes(clock)
        self._driver = BatchDriver(
            transactional_id=options.transactional_id,
            recovery=Recovery.of(options, kafka=self._kafka, store=self._store, clock=clock, topic=options.topic),
            kafka=self._kafka,
            store=self._store,
            clock=clock,
            query_id=query.query_id,
            run_id=query.run_id,
            attempts_max=options.batch_attempts_max,
            decision_margin_ms=options.decision_margin_ms,
            restore_deadline_ms=options.connect_deadline_ms,
            accept_replay=options.accept_replay,
            stopping=lambda: is_stopping(self._execution),
            observer=self._reached,
            look_back=lambda missing: run_record(spark, query.run_id, execution, missing),
        )
        self._repeatable = Repeatability(spark)
        self._settings = JsonSettings(options.transactional_id)
        self._analyzed: tuple[StructType, Mapping[str, str], frames.RecordExpressions] | None = None

    def goes_on(self, spark: SparkSession, query_id: str) -> bool:
        """True when it is still this run that calls; a query that was started again has a run of its own."""
        if query_id != self._query.query_id:
            return False
        # One question while it is active, which no two runs of one query are.
        active = self._execution is not None and not is_stopping(self._execution)
        return active or self._query == current_run(spark, query_id, stream_execution(spark, query_id))

    def start(self, batch: DataFrame) -> None:
        """Check everything that can be checked without writing, then claim and recover."""
        spark = batch.sparkSession
        execution = self._execution
        check_environment(spark, execution)
        expressions = self._expressions(batch)
        if not frames.chooses_partitions(expressions):
            cut_files(spark)
        self._repeatable.check_stream(execution)
        if self._options.topic is not None:
            self._cluster.partition_counts([self._options.topic])
        self._loader.prepare(batch, expressions, create=False)
        for name in ("adopt", "accept_loss", "accept_replay"):
            given = getattr(self._options, name)
            if given is not None and given is not False:
                once = (
                    "is meant for one start, and nothing that it allows is refused while it is there: take it out again"
                )
                _log.warning("%s: %s=%s %s", self._options.transactional_id, name, given, once)
        recovered = self._driver.recover()
        self._loader.drop_leftover_staging(recovered.row.generation)
        initialized = recovered.initialized
        _log.warning(
            "%s: claim %d, next pair %s; %s",
            self._options.transactional_id,
            recovered.row.generation,
            initialized.producer,
            "transactions never time out (two-phase commit is granted)"
            if initialized.two_phase_commit
            else f"transactions time out after {initialized.timeout_ms // 1000} s (two-phase commit is not granted): "
            "after a longer crash between the two commits a batch is sent to Kafka again",
        )

    def write(self, batch: DataFrame, batch_id: int) -> BatchReport:
        """Take one batch through the recipe."""
        self._repeatable.check(batch, "the batch")
        expressions = self._expressions(batch)
        work = SparkBatchWork(
            frame=batch,
            options=self._options,
            expressions=expressions,
            topics=self._topics,
            loader=self._loader,
            pace=self._pace,
            connections=self._connections,
            arrow=self._arrow,
            feed=self._feed,
            local=self._local,
        )
        self._times.begin()
        report = self._driver.write(batch_id, work)
        return replace(report, seconds=self._times.total_s, step_seconds=self._times.by_step)

    def close(self) -> None:
        """Close the connections of this run."""
        self._feed.close()
        if self._local is not None:
            self._local.close()
        self._connections.drop()
        self._cluster.close()
        self._store.close()

    def _reached(self, step: Step) -> None:
        self._times(step)
        # Looked up at each call, so that it can be replaced.
        observer.reached(step)

    def _expressions(self, batch: DataFrame) -> frames.RecordExpressions:
        """The sink's expressions over this batch; analyzed again only when schema or settings have changed."""
        schema, settings = batch.schema, self._settings.now(batch.sparkSession)
        if self._analyzed is None or self._analyzed[:2] != (schema, settings):
            order_by = self._options.upsert_order_by
            chosen = frames.choose_expressions(self._options, schema)
            analyzed = frames.analyze(batch, chosen, order_by)
            check_places(batch, analyzed, self._options)
            self._repeatable.check(frames.expressions_frame(batch, analyzed, order_by), "an expression of the sink")
            in_tasks = frames.with_json(analyzed, schema, settings)
            self._analyzed = (schema, settings, frames.with_guards(frames.with_key_column(in_tasks, batch), batch))
        return self._analyzed[2]
