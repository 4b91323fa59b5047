"""The lines of a check about executors."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options import SinkOptions
from spark_2pc_sink.sink.check.executor_side import NO_SESSION, executor_findings
from spark_2pc_sink.sink.job import executors, session_facts
from spark_2pc_sink.sink.job.executors import ExecutorVerdict

if TYPE_CHECKING:
    from spark_2pc_sink.sink.check.findings import Finding
    from spark_2pc_sink.sink.stream.listener import StreamListener

OPTIONS = SinkOptions.parse(
    transactional_id="orders",
    kafka={"bootstrap.servers": "127.0.0.1:9092"},
    database="postgresql+psycopg2://me@127.0.0.1/shop",
    topic="orders",
    table="orders",
)


def session(master: str) -> Any:
    conf = {"spark.master": master, "spark.driver.host": "driver"}
    return SimpleNamespace(conf=conf, sparkContext=SimpleNamespace(pythonExec=sys.executable))


def findings(spark: Any) -> list[Finding]:
    return list(executor_findings(OPTIONS, spark))


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What trying the executors ends with: a verdict, or an error."""
    ends: list[Any] = []

    def try_executors(spark: Any, listener: StreamListener, *, tasks: int) -> ExecutorVerdict:
        assert (listener.endpoint.host, tasks) == ("driver", 4)
        (end,) = ends
        if isinstance(end, Exception):
            raise end
        assert isinstance(end, ExecutorVerdict)
        return end

    monkeypatch.setattr(executors, "try_executors", try_executors)
    facts = SimpleNamespace(tasks_at_once=lambda: 4)
    monkeypatch.setattr(session_facts, "session_facts", lambda *_: facts)
    return ends


def test_without_a_session_they_are_not_tried() -> None:
    assert findings(None) == [NO_SESSION]


def test_there_are_none_with_a_local_master(tried: list[Any]) -> None:
    (found,) = findings(session("local[2]"))
    assert (found.level, found.text) == ("ok", "tasks run on the driver's machine, with its Python")


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (ExecutorVerdict({}, {}), [("ok", "all can run the sink's tasks and reach the driver")]),
        (ExecutorVerdict({"a": "a: broken"}, {"b": "b: weak"}), [("problem", "a: broken"), ("warning", "b: weak")]),
        (
            ConfigurationError(option="executors", value="a", rule="a: another Python", remedy="do"),
            [("problem", "a: another Python")],
        ),
        (
            PySparkException("\nno executor\n  at java"),
            [("not_checked", "Spark could not run a job on them: no executor")],
        ),
    ],
)
def test_each_host_is_a_line(tried: list[Any], end: object, said: list[tuple[str, str]]) -> None:
    tried.append(end)
    found = findings(session("spark://host:7077"))
    assert [(each.level, each.text) for each in found] == said
    assert all(bool(each.remedy) == (each.level != "ok") for each in found)
