"""One run of one streaming query: its connections, its claim, and the batches that it takes through the recipe.

`Lineage` sends its OpenLineage events: listeners of lineage tools do not see what happens inside foreachBatch.
openlineage-python sends them in a thread, so an unresponsive server delays no batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from copy import copy
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from sqlalchemy import make_url

from jdbc_state import Actor, SqlStateStore
from jdbc_state.sink_log import sink_log
from spark_2pc_sink.clock import Clock, SystemClock
from spark_2pc_sink.extras import extra
from spark_2pc_sink.kafka.transaction_client import TransactionClient
from spark_2pc_sink.options import SinkOptions
from spark_2pc_sink.recovery.recovery import Recovery
from spark_2pc_sink.sink.bad_rows.dead_letters import DeadLetters
from spark_2pc_sink.sink.driver.batch_driver import BatchDriver
from spark_2pc_sink.sink.driver.batch_values import BatchRules, RunIds, Sides
from spark_2pc_sink.sink.driver.on_decide import run_on_decide
from spark_2pc_sink.sink.driver.step_observer import BatchSpans, StepTimes
from spark_2pc_sink.sink.job.calling_query import CallingQuery, check_is_batch
from spark_2pc_sink.sink.job.filtered_batch import FilteredBatch
from spark_2pc_sink.sink.job.lane_columns import LaneExpressions, LaneWork, rows_of
from spark_2pc_sink.sink.job.session_facts import install_log_filter
from spark_2pc_sink.sink.job.spark_batch import RunSides, SparkBatch, TaskJobs
from spark_2pc_sink.sink.job.table_loader import LaneTables
from spark_2pc_sink.sink.records.record_side import RecordSide
from spark_2pc_sink.sink.report import BatchReport
from spark_2pc_sink.sink.rows.row_sql import identity_sql


class QueryRun:
    def __init__(self, options: SinkOptions, query: CallingQuery, spark: SparkSession) -> None:
        install_log_filter()
        self.query = query
        self._options = options
        self._log = sink_log(__name__, options.transactional_id)
        clock = SystemClock()
        self._store = SqlStateStore(
            options.database,
            options.store_settings(),
            actor=Actor.of_this_process("job", options.reason),
            # A process may continue after its query has ended, as a notebook does.
            shown_while=query.is_running,
        )
        # All share the same connections and take turns: one is kept.
        self._dead_letters = DeadLetters(options, self._store.database, query.ids.query_id)
        jobs = TaskJobs(spark, options, query.is_running)
        records = RecordSide(options, query.ids.query_id, clock)
        self._sides = RunSides(options, jobs, records, LaneTables(options, self._store.database), clock)
        self._lanes = LaneExpressions(options, jobs.facts, self._sides.tables.loaders)
        self._spans = BatchSpans(options.transactional_id)
        self._times = StepTimes(clock, self._spans.reached)
        namespace = options.openlineage_namespace
        self._lineage = None if namespace is None else Lineage(namespace, options, query.ids, clock)
        kafka = TransactionClient(records.cluster, options.transactional_id, options.kafka)
        recovery = Recovery(options, kafka=kafka, store=self._store, clock=clock, topics=options.all_topics)
        self._driver = BatchDriver(
            Sides(recovery, kafka, self._store, clock),
            query,
            BatchRules(
                options.transactional_id,
                options.batch_attempts_max,
                options.decision_margin_ms,
                options.connect_deadline_ms,
                options.accept_replay,
                None if options.on_decide is None else partial(run_on_decide, options.on_decide),
            ),
            self._times,
        )

    def start(self, batch: DataFrame) -> None:
        """Check everything that can be checked without writing, then claim and recover."""
        jobs, records = self._sides.jobs, self._sides.records
        jobs.facts.check_speculation()
        check_is_batch(batch)
        self.query.check()
        with jobs.executors.begun():
            lanes = self._lanes.of(batch)
            if self._options.topics:
                records.cluster.partition_counts(self._options.topics)
            self._sides.tables.prepare(batch, lanes, create=False)
        if self._options.bad_rows == "dead_letter":
            identity_sql(batch.schema)
            self._store.prepare_schema()
            self._dead_letters.prepare()
            records.dead_letter_topic.check()
        for name in ("adopt", "accept_loss", "accept_replay"):
            given = getattr(self._options, name)
            if given is not None and given is not False:
                once = "is meant for one start only: it disables a safety check for as long as it is set. Remove it"
                self._log.warning("%s=%s %s", name, given, once)
        with self._spans.span("start"):
            recovered = self._driver.recover()
        if self.query.is_plain_scan(batch, jobs.facts.tasks_at_once()):
            jobs.small_batches.try_first()
        if self._lineage is not None:
            self._lineage.begin(batch, lanes)
        initialized = recovered.initialized
        self._log.info(
            "claim %d, next producer id and epoch %s; %s",
            recovered.row.generation,
            initialized.producer,
            "transactions never time out (two-phase commit is granted)"
            if initialized.two_phase_commit
            else f"transactions time out after {initialized.timeout_ms // 1000} s (two-phase commit is not granted): "
            "after a longer crash between the two commits a batch is sent to Kafka again",
        )

    def write(self, batch: DataFrame, batch_id: int) -> BatchReport:
        self._sides.jobs.facts.check_repeatable(batch, "the batch")
        filtered = FilteredBatch(batch, batch_id, self._options, self._dead_letters)
        lag = self.query.lag()
        self._times.begin(**lag)
        with self._spans.span("batch", batch_id=batch_id):
            try:
                lanes = self._lanes.of(batch)
                written = self._driver.write(batch_id, SparkBatch(filtered, lanes, self._sides))
            except Exception:
                self._sides.jobs.note_failure()
                if self._lineage is not None:
                    self._lineage.end(failed=True)
                raise
            report = replace(written, **self._times.reported, **lag)
            self._spans.report(report)
        if self._lineage is not None:
            self._lineage.wrote(batch, lanes, report)
        return report

    def close(self) -> None:
        if self._lineage is not None:
            self._lineage.end(failed=False)
        self._sides.jobs.listener.close()
        self._sides.records.close()
        self._store.close()


#: Minimum interval between events of a running query: batches in between are included in the later event.
INTERVAL_S: Final = 60.0
_PRODUCER: Final = "urn:spark-2pc-sink"
_POSTGRES_PORT: Final = 5432


class Lineage:
    """The events of one run: START, RUNNING with the amounts written since the previous event, then COMPLETE or FAIL.

    The job in the namespace is named by the transactional id. A MissingExtraError if openlineage-python is missing.
    """

    def __init__(self, namespace: str, options: SinkOptions, ids: RunIds, clock: Clock) -> None:
        with extra("openlineage"):
            from openlineage.client import OpenLineageClient, event_v2, facet_v2  # noqa: PLC0415 - optional
        self._events, self._facets = event_v2, facet_v2
        self._client: Any = OpenLineageClient()
        self._log = sink_log(__name__, options.transactional_id)
        self._clock = clock
        kind = facet_v2.job_type_job.JobTypeJobFacet("STREAMING", "SPARK", "QUERY")
        self._job = event_v2.Job(namespace, options.transactional_id, {"jobType": kind})
        self._run = event_v2.Run(ids.run_id)
        url = make_url(options.database)
        self._kafka = f"kafka://{options.kafka.bootstrap_servers[0]}"
        self._postgres = f"postgres://{url.host or 'localhost'}:{url.port or _POSTGRES_PORT}"
        self._database = url.database
        self._outputs: list[tuple[str, Any]] = []
        self._written: Counter[str] = Counter()
        self._told_s = float("-inf")
        self._open = False
        self._sender = ThreadPoolExecutor(1, "openlineage")
        self._sending: Future[None] | None = None

    def begin(self, batch: DataFrame, lanes: Sequence[LaneWork]) -> None:
        self._open = True
        self._outputs = list(self._datasets(batch, lanes))
        self._send("START")

    def wrote(self, batch: DataFrame, lanes: Sequence[LaneWork], report: BatchReport) -> None:
        self._written.update(report.outputs)
        if self._clock.now_s() - self._told_s >= INTERVAL_S and (self._sending is None or self._sending.done()):
            self._outputs = list(self._datasets(batch, lanes))
            self._send("RUNNING")
            self._told_s = self._clock.now_s()

    def end(self, *, failed: bool) -> None:
        """End the run; no-op if it has not begun, or has ended. The process waits for the event at its exit."""
        if self._open:
            self._open = False
            self._send("FAIL" if failed else "COMPLETE")
            self._sender.shutdown(wait=False)

    def _send(self, state: str) -> None:
        facet = self._facets.output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet
        # Copies: the previous event may still be in transit.
        outputs = [copy(dataset) for _, dataset in self._outputs]
        for output, (name, _) in zip(outputs, self._outputs, strict=True):
            output.outputFacets = {} if state == "START" else {"outputStatistics": facet(self._written[name])}
        self._written.clear()
        event = self._events.RunEvent(
            eventType=self._events.RunState[state],
            eventTime=datetime.now(timezone.utc).isoformat(),
            producer=_PRODUCER,
            run=self._run,
            job=self._job,
            outputs=outputs,
        )
        self._sending = self._sender.submit(self._client.emit, event)
        self._sending.add_done_callback(self._sent)

    def _sent(self, sending: Future[None]) -> None:
        if (error := sending.exception()) is not None:
            self._log.warning("could not send an OpenLineage event: %s", error)

    def _datasets(self, batch: DataFrame, lanes: Sequence[LaneWork]) -> Iterator[tuple[str, Any]]:
        """The topics and tables, each with its text in a report."""
        for work in lanes:
            records, rows = work.lane.records, work.lane.rows
            if records is not None and records.topic is not None:
                schema = rows_of(batch, work.lane.source).schema
                columns = [(field.name, field.dataType.simpleString()) for field in schema]
                made = records.value is None and "value" not in dict(columns)
                fields = columns if made else [("value", "binary")]
                yield str(records), self._dataset(self._kafka, records.topic, fields)
            plan = None if work.loader is None else work.loader.plan
            if rows is not None and plan is not None:
                name = f"{self._database}.{plan.table.schema}.{plan.table.name}"
                fields = [(column.name, column.target.type_name) for column in plan.columns]
                yield str(rows), self._dataset(self._postgres, name, fields)

    def _dataset(self, namespace: str, name: str, fields: Sequence[tuple[str, str]]) -> Any:
        facets = self._facets.schema_dataset
        schema = facets.SchemaDatasetFacet([facets.SchemaDatasetFacetFields(*field) for field in fields])
        return self._events.OutputDataset(namespace, name, facets={"schema": schema})
