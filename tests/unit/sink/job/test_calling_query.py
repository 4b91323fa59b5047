"""How far a query is behind, of the JSON of its progress: Spark 4's, shortened."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spark_2pc_sink.sink.job.calling_query import lag_of

KAFKA = {"endOffset": {"a": {"0": 10, "1": 7}}, "latestOffset": {"a": {"0": 15, "1": 7}}}


@pytest.mark.parametrize(
    ("sources", "behind"),
    [
        pytest.param([KAFKA], 5, id="kafka"),
        pytest.param([KAFKA, {"endOffset": {"b": {"0": 1}}, "latestOffset": {"b": {"0": 3}}}], 7, id="two sources"),
        pytest.param([{**KAFKA, "latestOffset": {"a": {"0": 10, "2": 9}}}], 0, id="a partition that is new"),
        pytest.param([{**KAFKA, "latestOffset": None}], None, id="no latest offset"),
        pytest.param([{"endOffset": {"logOffset": 3}, "latestOffset": {"logOffset": 4}}], None, id="files"),
        pytest.param([{"endOffset": 5, "latestOffset": 9}], None, id="a rate"),
        pytest.param([], None, id="none"),
    ],
)
def test_records_behind_are_those_of_kafka(sources: list[dict[str, Any]], behind: int | None) -> None:
    shown = {"timestamp": "2026-11-24T12:00:00.000Z", "durationMs": {}, "sources": sources}
    assert lag_of(json.dumps(shown)) == ({} if behind is None else {"source_lag": behind})


def test_the_delay_ends_when_the_query_has_finished_the_batch() -> None:
    shown = {
        "timestamp": "2026-11-24T12:00:00.000Z",
        "durationMs": {"triggerExecution": 1500},
        "eventTime": {"max": "2026-11-24T11:59:00.250Z", "watermark": "2026-11-24T11:58:00.250Z"},
        "sources": [],
    }
    assert lag_of(json.dumps(shown)) == {"event_delay_s": 61.25}


def test_without_events_the_watermark_alone_is_no_delay() -> None:
    shown = {
        "timestamp": "2026-11-24T12:00:00.000Z",
        "durationMs": {"triggerExecution": 3},
        "eventTime": {"watermark": "1970-01-01T00:00:00.000Z"},
        "sources": [],
    }
    assert lag_of(json.dumps(shown)) == {}
