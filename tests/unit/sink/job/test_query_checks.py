"""What the sink refuses to run under, told by stand-ins of Spark's objects in the JVM."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.sink.job.query_checks import check_environment, is_running, is_stopping

MICRO_BATCH = "org.apache.spark.sql.execution.streaming.MicroBatchExecution"
ASYNC = "org.apache.spark.sql.execution.streaming.AsyncProgressTrackingMicroBatchExecution"
PROCESSING_TIME = "org.apache.spark.sql.execution.streaming.ProcessingTimeTrigger"
REAL_TIME = "org.apache.spark.sql.execution.streaming.RealTimeTrigger"


def instance_of(name: str, **members: Any) -> Any:
    return SimpleNamespace(getClass=lambda: SimpleNamespace(getName=lambda: name), **members)


def execution(name: str = MICRO_BATCH, trigger: str = PROCESSING_TIME) -> Any:
    return instance_of(name, trigger=lambda: instance_of(trigger))


def session(**settings: str) -> Any:
    return SimpleNamespace(sparkContext=SimpleNamespace(getConf=lambda: settings))


def test_ordinary_micro_batches_are_run() -> None:
    check_environment(session(), execution())
    check_environment(session(), None)


@pytest.mark.parametrize(
    ("running", "option"),
    [(execution(ASYNC), "asyncProgressTrackingEnabled"), (execution(trigger=REAL_TIME), "trigger")],
)
def test_triggers_without_ends_of_batches_are_refused(running: Any, option: str) -> None:
    """A13: several batches would come back as one."""
    with pytest.raises(ConfigurationError) as refused:
        check_environment(session(), running)
    assert refused.value.option == option


def test_speculation_is_refused_before_the_query_is_looked_at() -> None:
    """A4: a copy of a task would write a second time."""
    with pytest.raises(ConfigurationError, match=r"spark\.speculation"):
        check_environment(session(**{"spark.speculation": "TRUE"}), None)


def test_a_query_is_stopping_when_it_is_no_longer_active() -> None:
    """A14: no further attempt begins then."""
    assert is_stopping(SimpleNamespace(isActive=lambda: False))
    assert not is_stopping(SimpleNamespace(isActive=lambda: True))
    assert not is_stopping(None)


@pytest.mark.parametrize("error", [Py4JNetworkError("no JVM"), ConnectionRefusedError()])
def test_a_query_whose_jvm_is_gone_does_not_run(error: Exception) -> None:
    def ask() -> bool:
        raise error

    assert not is_running(SimpleNamespace(isActive=ask))
    assert not is_running(SimpleNamespace(isActive=lambda: False))
    assert is_running(SimpleNamespace(isActive=lambda: True))
    assert is_running(None)
