"""What others see of batches: listeners, the log, OpenTelemetry, OpenLineage, and how far the query is behind."""

from __future__ import annotations

import json
import logging
import pickle
import time
from collections import Counter, defaultdict
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from sqlalchemy import make_url

from jdbc_state import SqlStateStore
from spark_2pc_sink import BatchReport
from spark_2pc_sink.errors import DualWriteError
from spark_2pc_sink.monitoring.exporter import SinkCounts
from spark_2pc_sink.recipe.placement import Placement
from spark_2pc_sink.recipe.steps import Step
from spark_2pc_sink.testing import wait_until
from tests.conftest import MakeTopic
from tests.harness.providers import Broker
from tests.harness.streams import FileStream, start_query
from tests.integration.sink.targets import Target, rows_of

STEPS = [step.name.lower() for step in Step if step is not Step.RECOVER]


def test_a_report_says_what_both_sides_have(
    stream: FileStream, target: Target, caplog: pytest.LogCaptureFixture
) -> None:
    """Rows and records are those of both sides, the pair is the decision's, and the steps add up to the whole."""
    caplog.set_level(logging.INFO, logger="spark_2pc_sink")
    reports: list[BatchReport] = []
    for batch in range(2):
        stream.add(rows_of(batch))
    stream.run(target.sink(key="id", on_batch=reports.append))
    placed = [(report.batch_id, report.placement, report.attempts) for report in reports]
    assert placed == [(0, Placement.RUN, 1), (1, Placement.RUN, 1)]
    assert target.state("prepared_transaction_state") == [(reports[1].prepared,)]
    for report in reports:
        assert (report.transactional_id, report.row_count, report.record_count) == (target.transactional_id, 500, 500)
        assert report.record_bytes > 500
        assert list(report.step_seconds) == STEPS
        assert sum(report.step_seconds.values()) == pytest.approx(report.seconds, rel=0.2, abs=0.05)
        assert str(report) in caplog.messages
        assert pickle.loads(pickle.dumps(report)) == report  # noqa: S301 - our own bytes
    with closing(SqlStateStore(target.database)) as store:
        lines = store.read_history(target.transactional_id, last=2)[::-1]
    for report, line in zip(reports, lines, strict=True):
        # The line is written by the last step, whose own time it cannot have.
        steps = {name: round(taken, 3) for name, taken in report.step_seconds.items() if name != "note"}
        assert (line.figures["record_bytes"], line.figures["step_seconds"]) == (report.record_bytes, steps)
    target.check(rows_of(0) + rows_of(1))


def test_a_report_tells_a_replay_and_a_resend_from_a_batch(
    stream: FileStream, target: Target, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A1, B1: nothing is counted that was not written, and what went wrong is in the log with the sink's name."""
    reports: list[BatchReport] = []
    stream.add(rows_of(0))
    target.abort_once(monkeypatch)
    stream.run(target.sink(key="id", on_batch=reports.append))
    stream.forget(0)
    stream.run(target.sink(key="id", on_batch=reports.append))
    resent, skipped = reports
    assert (resent.placement, resent.attempts, resent.row_count, resent.record_count) == (Placement.RUN, 2, 500, 500)
    assert "recover" in resent.step_seconds
    assert (skipped.placement, skipped.attempts, skipped.row_count, skipped.record_bytes) == (Placement.SKIP, 0, 0, 0)
    assert skipped.prepared == resent.prepared
    said = [line for line in caplog.messages if target.transactional_id in line]
    assert any("batch 0, attempt 1 of 3 failed" in line for line in said)
    assert any("Kafka is owed batch 0" in line for line in said)
    target.check(rows_of(0))


def test_an_error_of_the_listener_ends_the_query_and_loses_nothing(stream: FileStream, target: Target) -> None:
    """It is not swallowed; the batch is written all the same, and the next start skips it."""
    reports: list[Placement] = []

    def fail(report: BatchReport) -> None:
        message = f"the collector refused batch {report.batch_id}"
        raise ConnectionError(message)

    stream.add(rows_of(0))
    with pytest.raises(StreamingQueryException, match="the collector refused batch 0"):
        stream.run(target.sink(key="id", on_batch=fail))
    target.check(rows_of(0))
    stream.run(target.sink(key="id", on_batch=lambda report: reports.append(report.placement)))
    assert reports == [Placement.SKIP]
    target.check(rows_of(0))


PREFIX = "spark_2pc_sink"


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
    assert (start.name, [each.name for each in of_start]) == (f"{PREFIX} start", ["recover"])
    until_decided = STEPS[: STEPS.index("decide") + 1]
    assert [each.name for each in of_first] == [*until_decided, "recover", *STEPS]
    assert [each.name for each in of_second] == STEPS
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
    assert (failed.name, failed.status.is_ok, [each.name for each in steps][:2]) == (
        f"{PREFIX} batch",
        False,
        ["place", "begin"],
    )
    assert [event.name for event in failed.events] == ["exception"]


def outputs_of(events: list[dict[str, Any]]) -> Counter[str]:
    """How many rows or records the events of a run name, by the place."""
    found: Counter[str] = Counter()
    for event in events:
        for output in event["outputs"]:
            statistics = output["outputFacets"].get("outputStatistics", {"rowCount": 0})
            found[f"{output['namespace']}/{output['name']}"] += statistics["rowCount"]
    return found


def test_lineage_into_a_file(
    stream: FileStream, target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run has a start and an end, and says what it wrote: at most one event a minute in between."""
    file = tmp_path / "events.jsonl"
    for name, value in {"TYPE": "file", "LOG_FILE_PATH": str(file), "APPEND": "true"}.items():
        monkeypatch.setenv(f"OPENLINEAGE__TRANSPORT__{name}", value)
    for batch in range(4):
        stream.add(rows_of(batch))
    with closing(target.sink(key="id", openlineage_namespace="shop")) as sink:
        stream.run(sink)
    wait_until(lambda: '"COMPLETE"' in file.read_text(), what="the last event")
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
