"""OpenLineage events: which topics and tables a run of a query writes, and how much.

Listeners of lineage tools do not see what happens inside foreachBatch. openlineage-python sends the events in a thread,
according to its own configuration: an unresponsive server delays no batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from copy import copy
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import make_url

from jdbc_state.sink_log import sink_log
from spark_2pc_sink.extras import extra
from spark_2pc_sink.sink.job.lane_columns import rows_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from spark_2pc_sink.clock import Clock
    from spark_2pc_sink.options import SinkOptions
    from spark_2pc_sink.sink.job.calling_query import RunIds
    from spark_2pc_sink.sink.job.lane_columns import LaneWork
    from spark_2pc_sink.sink.report import BatchReport

#: Minimum interval between events of a running query: batches in between are included in the later event.
INTERVAL_S: Final = 60.0
_PRODUCER: Final = "urn:spark-2pc-sink"
_POSTGRES_PORT: Final = 5432


class Lineage:
    """The events of one run: START, RUNNING with the amounts written since the previous event, then COMPLETE or FAIL.

    Args:
        namespace: namespace of the job, whose name is the transactional id.
        options: the sink's options.
        ids: ids of the run; the lineage run id is Spark's run id.
        clock: measures the time between events.

    Raises:
        MissingExtraError: openlineage-python is not installed.
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
        """The run is about to write its first batch."""
        self._open = True
        self._outputs = list(self._datasets(batch, lanes))
        self._send("START")

    def wrote(self, batch: DataFrame, lanes: Sequence[LaneWork], report: BatchReport) -> None:
        """Both sides have a batch."""
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
