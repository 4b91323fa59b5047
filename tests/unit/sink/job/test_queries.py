"""The query that calls: classic or Spark Connect, what is refused of it, its lag, and the sinks of its runs."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from spark_2pc_sink.errors import ConfigurationError, HaltCause, HaltError
from spark_2pc_sink.sink.driver.batch_values import RunIds
from spark_2pc_sink.sink.job import calling_query
from spark_2pc_sink.sink.job.calling_query import ConnectQuery, lag_of
from spark_2pc_sink.sink.job.classic_query import ClassicQuery, check_options, check_query
from spark_2pc_sink.sink.job.session_facts import WORKER_URL, stream_endpoint
from spark_2pc_sink.sink.sink import SinksOfRuns
from spark_2pc_sink.sink.stream.listener import StreamEndpoint
from tests.harness.halts import halt
from tests.unit.options.test_sink_options import sink as sink_options

RUN = RunIds("query", "run")
KAFKA = {"endOffset": {"a": {"0": 10, "1": 7}}, "latestOffset": {"a": {"0": 15, "1": 7}}}


@pytest.mark.parametrize(
    ("sources", "behind"),
    [
        pytest.param([KAFKA, {"endOffset": {"b": {"0": 1}}, "latestOffset": {"b": {"0": 3}}}], 7, id="two sources"),
        pytest.param([{**KAFKA, "latestOffset": {"a": {"0": 10, "2": 9}}}], 0, id="a partition that is new"),
        pytest.param([{"endOffset": {"logOffset": 3}, "latestOffset": {"logOffset": 4}}], None, id="files"),
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


def session(*queries: str) -> Any:
    active = [SimpleNamespace(id=query, isActive=True) for query in queries]
    return mock.Mock(streams=SimpleNamespace(active=active))


@pytest.fixture
def beside_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WORKER_URL, "sc://localhost:15002/;user_id=me")


@pytest.mark.usefixtures("beside_server")
def test_the_one_query_of_the_session_in_which_the_stream_was_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Since PySpark 4.3 a batch's own session is a clone that knows no query."""
    monkeypatch.setattr(calling_query, "session_by_id", {"root": session("a")}.__getitem__)
    assert ConnectQuery.of(session(), None, "root").ids.query_id == "a"
    assert ConnectQuery.of(session("a"), None, None).ids.query_id == "a"


@pytest.mark.usefixtures("beside_server")
@pytest.mark.parametrize(("queries", "shown"), [((), "is unknown"), (("a", "b"), "has 2 queries")])
def test_where_it_cannot_be_told_which_query_calls_a_name_is_asked_for(queries: tuple[str, ...], shown: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{shown}; pass query_name='orders'"):
        ConnectQuery.of(session(*queries), None, None)


@pytest.mark.parametrize(
    ("settings", "options", "endpoint"),
    [
        ({"spark.driver.bindAddress": "10.0.0.7"}, {}, StreamEndpoint("10.0.0.7", "driver")),
        ({}, {"driver_port": 7100, "driver_port_range": 3}, StreamEndpoint("driver", "driver", (7100, 7101, 7102))),
        ({"spark.network.crypto.enabled": "true"}, {}, StreamEndpoint("driver", "driver", encrypted=True)),
    ],
)
def test_executors_reach_the_driver_as_they_reach_it_for_spark(
    settings: dict[str, str], options: dict[str, Any], endpoint: StreamEndpoint
) -> None:
    """By Spark's own settings; encrypted where Spark's traffic is."""
    conf = {"spark.master": "spark://host:7077", "spark.driver.host": "driver", **settings}
    spark: Any = type("SparkSession", (), {"__module__": "pyspark.sql.session", "conf": conf})()
    assert stream_endpoint(spark, sink_options(**options)) == endpoint


MICRO_BATCH = "org.apache.spark.sql.execution.streaming.MicroBatchExecution"
ASYNC = "org.apache.spark.sql.execution.streaming.AsyncProgressTrackingMicroBatchExecution"
PROCESSING_TIME = "org.apache.spark.sql.execution.streaming.ProcessingTimeTrigger"
REAL_TIME = "org.apache.spark.sql.execution.streaming.RealTimeTrigger"


def instance_of(name: str, fields: dict[str, Any] | None = None, **members: Any) -> Any:
    """An object of a class without fields, whose superclass has these."""
    declared = [
        SimpleNamespace(getName=lambda name=name: name, setAccessible=lambda _: None, get=lambda _, value=value: value)
        for name, value in (fields or {}).items()
    ]
    above = SimpleNamespace(getDeclaredFields=lambda: declared, getSuperclass=lambda: None)
    own = SimpleNamespace(getName=lambda: name, getDeclaredFields=list, getSuperclass=lambda: above)
    return SimpleNamespace(getClass=lambda: own, **members)


def execution(
    name: str = MICRO_BATCH, trigger: str = PROCESSING_TIME, *, temporary: bool = False, options: tuple[str, ...] = ()
) -> Any:
    keys = SimpleNamespace(mkString=lambda between: between.join(options))
    fields = {"deleteCheckpointOnStop": temporary, "extraOptions": SimpleNamespace(keys=lambda: keys)}
    return instance_of(name, fields, trigger=lambda: instance_of(trigger))


@pytest.mark.parametrize(
    ("running", "option"),
    [(execution(ASYNC), "asyncProgressTrackingEnabled"), (execution(trigger=REAL_TIME), "trigger")],
)
def test_triggers_without_ends_of_batches_are_refused(running: Any, option: str) -> None:
    """A13: several batches would come back as one."""
    check_options(["checkpointLocation", "maxFilesPerTrigger"])
    with pytest.raises(ConfigurationError) as refused:
        check_query(running)
    assert refused.value.option == option


def classic(is_active: Callable[[], bool] | None) -> ClassicQuery:
    spark: Any = None
    return ClassicQuery(spark, RUN, None if is_active is None else SimpleNamespace(isActive=is_active))


@pytest.mark.parametrize(("is_active", "running"), [(lambda: False, False), (lambda: True, True), (None, True)])
def test_a_query_is_stopping_when_it_is_no_longer_active(is_active: Callable[[], bool] | None, running: bool) -> None:
    """A14: no further attempt begins then."""
    query = classic(is_active)
    assert (query.is_running(), query.is_stopping()) == (running, not running)


def check_in(sinks: SinksOfRuns, run: RunIds = RUN, *, active: bool = True, **given: Any) -> None:
    sinks.check_in(run, sink_options(**given), is_active=lambda _: active)


@pytest.fixture
def sinks() -> SinksOfRuns:
    sinks = SinksOfRuns()
    check_in(sinks)
    return sinks


@pytest.mark.parametrize(
    "given",
    [
        {"topic": "others"},
        {"table": "others"},
        {"database": "postgresql://job@h/other"},
        {"columns": {"id": "id"}},
        {"mode": "upsert", "upsert_keys": ["id"]},
    ],
)
def test_another_sink_of_the_id_is_refused(sinks: SinksOfRuns, given: dict[str, Any]) -> None:
    """A20: both are told apart by name, and the remedy is an id of its own. The first goes on."""
    with pytest.raises(ConfigurationError, match="transactional_id of its own") as refused:
        check_in(sinks, **given)
    assert f"{next(iter(given))}=" in refused.value.rule
    assert "pass-word" not in str(refused.value)
    check_in(sinks)


def test_a_sink_whose_options_were_refused_gives_way_until_a_batch_is_written(sinks: SinksOfRuns) -> None:
    """A person corrects them in the same process, as in a notebook."""
    refusal = ConfigurationError(option="columns", value="x", rule="it is none", remedy="name another one")
    for columns in (None, {"x": "a"}, {"x": "b"}):
        check_in(sinks, columns=columns)
        with pytest.raises(ConfigurationError, match="it is none"):
            call(sinks, 0, refusal)
    check_in(sinks, columns={"x": "c"})
    call(sinks, 0)
    with pytest.raises(ConfigurationError, match="it is none"):
        call(sinks, 1, refusal)
    with pytest.raises(ConfigurationError, match="transactional_id of its own"):
        check_in(sinks)


@pytest.mark.parametrize(
    "given",
    [
        {"transactional_id": "others", "table": "others"},
        {"lock_timeout_ms": 7_000, "on_batch": print},
        {"database": "postgresql://somebody:else@db:5433/shop"},
    ],
)
def test_the_same_sink_built_anew_and_others_are_taken(sinks: SinksOfRuns, given: dict[str, Any]) -> None:
    """How a sink works may change, and its password."""
    check_in(sinks, **given)
    unpickled = pickle.loads(pickle.dumps(sink_options(**given)))  # noqa: S301
    sinks.check_in(RUN, unpickled, is_active=lambda _: True)


def test_functions_that_are_made_anew_in_every_call_are_no_difference(sinks: SinksOfRuns) -> None:
    """No two functions are equal, and a job may build its sink in the function that it hands to Spark."""
    run = RunIds("query", "run with functions")
    for _ in range(2):
        check_in(sinks, run, on_decide=lambda *_: None, on_batch=lambda _: None)
    with pytest.raises(ConfigurationError, match="table="):
        check_in(sinks, run, table="others", on_decide=lambda *_: None)


def test_a_restarted_query_may_write_something_else(sinks: SinksOfRuns) -> None:
    """The state row says which batch it goes on with."""
    check_in(sinks, RunIds("query", "next run"), table="others")
    with pytest.raises(ConfigurationError):
        check_in(sinks, RunIds("query", "next run"))
    assert len(sinks._known) == 1


def test_queries_that_have_ended_are_forgotten(sinks: SinksOfRuns) -> None:
    for number in range(5):
        check_in(sinks, RunIds(f"query {number}", "run"), active=False)
    assert len(sinks._known) == 1


def call(sinks: SinksOfRuns, batch_id: int, error: Exception | None = None, run: RunIds = RUN) -> None:
    with sinks.call(run, "orders", batch_id):
        if error is not None:
            raise error


def test_a_function_that_goes_on_after_an_error_is_told_so_at_the_next_batch(sinks: SinksOfRuns) -> None:
    """A23: with the error that it has swallowed; and again, as it swallows the halt too."""
    with pytest.raises(ValueError, match="out of range"):
        call(sinks, 1, ValueError("out of range"))
    for batch_id in (2, 3):
        with pytest.raises(HaltError, match=r"continued after an error .* in batch 1.*ValueError: out of") as halted:
            call(sinks, batch_id, halt())
        assert halted.value.cause is HaltCause.NOT_HANDED_OVER
        assert halted.value.remedies[0].startswith("call the sink for every batch")


def test_a_second_call_for_one_batch_with_other_rows_is_named_as_that(sinks: SinksOfRuns) -> None:
    """A20: the first has written the batch, and the check of replays refuses the second."""
    call(sinks, 1)
    with pytest.raises(HaltError, match="called the sink twice for batch 1 in this run") as halted:
        call(sinks, 1, halt(HaltCause.REPLAY_DIFFERS))
    assert "unionByName" in halted.value.remedies[0]
