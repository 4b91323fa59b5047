"""What other tools see of batches: spans of OpenTelemetry, events of OpenLineage, and how far the query is behind."""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from sqlalchemy import make_url

from jdbc_state import SqlStateStore
from spark_2pc_sink import BatchReport
from spark_2pc_sink.errors import DualWriteError
from spark_2pc_sink.monitoring.exporter import SinkCounts
from spark_2pc_sink.recipe.steps import Step
from spark_2pc_sink.testing import wait_until
from tests.harness.streams import FileStream, start_query
from tests.integration.sink.targets import Target, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.conftest import MakeTopic
    from tests.harness.providers import Broker

PREFIX = "spark_2pc_sink"
DEADLINE_S = 60.0
STEPS = [step.name.lower() for step in Step if step is not Step.RECOVER]


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """Where the spans of this test are: it may set a provider, which a process sets once."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    return exporter


def shown(spans: InMemorySpanExporter) -> list[tuple[Any, list[Any]]]:
    """The spans without a parent, each with its children, in the order of their starts."""
    every: list[Any] = sorted(spans.get_finished_spans(), key=lambda span: span.start_time or 0)
    of: dict[int, list[Any]] = defaultdict(list)
    for span in every:
        of[0 if span.parent is None else span.parent.span_id].append(span)
    return [(root, of[root.context.span_id]) for root in of[0]]


def names_of(spans: list[Any]) -> list[str]:
    return [span.name for span in spans]


def test_a_batch_is_a_span_with_its_steps(
    stream: FileStream, target: Target, spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that is tried twice. Steps follow each other without a gap, within the span of their batch."""
    stream.add(rows_of(0))
    stream.add(rows_of(1))
    target.abort_once(monkeypatch)
    reports: list[BatchReport] = []
    stream.run(target.sink(key="id", on_batch=reports.append))
    (start, of_start), (first, of_first), (second, of_second) = shown(spans)
    assert (start.name, names_of(of_start)) == (f"{PREFIX} start", ["recover"])
    until_decided = STEPS[: STEPS.index("decide") + 1]
    assert names_of(of_first) == [*until_decided, "recover", *STEPS]
    assert names_of(of_second) == STEPS
    for span, report in zip((first, second), reports, strict=True):
        assert span.name == f"{PREFIX} batch"
        counted = ("row_count", "record_count", "record_bytes", "attempts")
        for name in ("transactional_id", "batch_id", "prepared", *counted):
            assert span.attributes[f"{PREFIX}.{name}"] == getattr(report, name), name
        assert span.attributes[f"{PREFIX}.placement"] == report.placement.name.lower()
        assert span.status.is_ok
        seconds = (span.end_time - span.start_time) / 1e9
        assert seconds == pytest.approx(report.seconds, rel=0.2, abs=0.05)
    assert [span.start_time for span in of_second[1:]] == [span.end_time for span in of_second[:-1]]
    assert second.start_time <= of_second[0].start_time


def test_a_batch_that_fails_is_a_span_with_its_error(
    stream: FileStream, target: Target, spans: InMemorySpanExporter
) -> None:
    stream.add([(1, "a\0b", 1)])
    with pytest.raises(DualWriteError):
        stream.run(target.sink(key="id"))
    failed, steps = shown(spans)[-1]
    assert (failed.name, failed.status.is_ok, names_of(steps)[:2]) == (f"{PREFIX} batch", False, ["place", "begin"])
    assert [event.name for event in failed.events] == ["exception"]


def outputs_of(events: list[dict[str, Any]]) -> Counter[str]:
    """How many rows or records the events of a run name, by the place."""
    found: Counter[str] = Counter()
    for event in events:
        for output in event["outputs"]:
            statistics = output["outputFacets"].get("outputStatistics", {"rowCount": 0})
            found[f"{output['namespace']}/{output['name']}"] += statistics["rowCount"]
    return found


def lineage_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the events of this test go."""
    file = folder / "events.jsonl"
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "file")
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__LOG_FILE_PATH", str(file))
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__APPEND", "true")
    return file


def test_lineage_into_a_file(
    stream: FileStream, target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run has a start and an end, and says what it wrote: at most one event a minute in between."""
    file = lineage_file(tmp_path, monkeypatch)
    for batch in range(4):
        stream.add(rows_of(batch))
    with closing(target.sink(key="id", openlineage_namespace="shop")) as sink:
        stream.run(sink)
    wait_until(lambda: '"COMPLETE"' in file.read_text(), deadline_s=DEADLINE_S, what="the last event")
    events = [json.loads(line) for line in file.read_text().splitlines()]
    states = [event["eventType"] for event in events]
    assert (states[0], states[-1]) == ("START", "COMPLETE")
    assert states[1:-1] in ([], ["RUNNING"])
    jobs = {(event["job"]["namespace"], event["job"]["name"]) for event in events}
    assert jobs == {("shop", target.transactional_id)}
    assert len({event["run"]["runId"] for event in events}) == 1
    url = make_url(target.database)
    topic = f"kafka://{target.broker.bootstrap}/{target.topic}"
    table = f"postgres://{url.host}:{url.port}/{url.database}.public.target"
    assert outputs_of(events) == {topic: 2000, table: 2000}
    schemas = {
        output["namespace"][:5]: [(field["name"], field["type"]) for field in output["facets"]["schema"]["fields"]]
        for output in events[-1]["outputs"]
    }
    assert schemas == {
        "kafka": [("id", "bigint"), ("name", "string"), ("amount", "int")],
        "postg": [("id", "bigint"), ("name", "text"), ("amount", "integer")],
    }


def parent_of(number: int) -> str:
    """A traceparent of its own for each record."""
    return f"00-{number + 1:032x}-{number + 1:016x}-01"


def test_how_far_a_query_is_behind_and_the_headers_of_its_records(
    spark: SparkSession, kafka: Broker, target: Target, topic: MakeTopic, tmp_path: Path
) -> None:
    """In reports, in the history, and in the exporter's sums; and each record keeps its traceparent (W3C)."""
    source, hour_ms = topic(partitions=2), 3_600_000
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for number in range(30):
        headers: list[tuple[str, str | bytes | None]] = [("traceparent", parent_of(number))]
        then = int(time.time() * 1000) - hour_ms
        producer.produce(source, f"{number}", partition=number % 2, timestamp=then, headers=headers)
    assert producer.flush(60) == 0
    frame = (
        spark.readStream.format("kafka")
        .options(subscribe=source, startingOffsets="earliest", includeHeaders=True, maxOffsetsPerTrigger=10)
        .option("kafka.bootstrap.servers", kafka.bootstrap)
        .load()
        .selectExpr("CAST(value AS STRING) AS value", "headers", "timestamp AS at")
        .withWatermark("at", "1 minute")
    )
    reports: list[BatchReport] = []
    with closing(target.sink(on_batch=reports.append)) as sink:
        query = start_query(frame, sink, tmp_path / "checkpoint", follow=True)
        try:
            query.processAllAvailable()
        finally:
            query.stop()
    behind = [report.source_lag for report in reports[:3]]
    assert behind == [None, 20, 10]
    delays = [report.event_delay_s for report in reports[:3]]
    assert delays[0] is None
    assert all(3600 < (delay or 0) < 3900 for delay in delays[1:])
    with closing(SqlStateStore(target.database)) as store:
        lines = [line for line in store.read_history(target.transactional_id, last=10)[::-1] if line.row.record_count]
    found = [(line.figures.get("source_lag"), line.figures.get("event_delay_s")) for line in lines]
    assert found == list(zip(behind, delays, strict=True))
    counts = SinkCounts()
    for line in lines:
        counts.add(line)
    assert (counts.source_lag, counts.event_delay_s) == (10, delays[2])
    sent = {((record.value or b"").decode(), record.headers) for record in target.records()}
    assert sent == {(f"{each}", (("traceparent", parent_of(each).encode()),)) for each in range(30)}
