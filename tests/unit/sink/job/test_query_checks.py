"""What the sink refuses to run under, told by stand-ins of Spark's objects in the JVM."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.sink.job.classic_query import check_options, check_query, check_session, is_running, is_stopping

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


def test_ordinary_micro_batches_are_run() -> None:
    check_session("false")
    check_query(execution(options=("checkpointLocation", "path")))
    check_query(None)


def test_a_spark_without_the_fields_is_not_asked_further() -> None:
    """They are private to Spark, and may have other names one day."""
    check_query(instance_of(MICRO_BATCH, trigger=lambda: instance_of(PROCESSING_TIME)))


def test_a_temporary_checkpoint_is_refused_with_the_option_to_give() -> None:
    """A restart would begin again with batch 0, of another query."""
    with pytest.raises(ConfigurationError, match=r"writeStream\.option\('checkpointLocation', DIRECTORY\)"):
        check_query(execution(temporary=True))


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("kafka.bootstrap.servers", r"pass kafka=\{'bootstrap\.servers': …\} to DualWriteSink"),
        ("KAFKA.sasl.jaas.config", r"pass kafka=\{'sasl\.jaas\.config': …\}"),
        ("topic", "pass topic= to DualWriteSink"),
        ("includeHeaders", "pass headers= to DualWriteSink"),
    ],
)
def test_options_of_spark_s_kafka_sink_are_refused_and_those_that_are_meant_named(name: str, meant: str) -> None:
    with pytest.raises(ConfigurationError, match=meant):
        check_query(execution(options=("checkpointLocation", name)))
    check_options(["checkpointLocation", "maxFilesPerTrigger"])


@pytest.mark.parametrize(
    ("running", "option"),
    [(execution(ASYNC), "asyncProgressTrackingEnabled"), (execution(trigger=REAL_TIME), "trigger")],
)
def test_triggers_without_ends_of_batches_are_refused(running: Any, option: str) -> None:
    """A13: several batches would come back as one."""
    with pytest.raises(ConfigurationError) as refused:
        check_query(running)
    assert refused.value.option == option


def test_speculation_is_refused() -> None:
    """A4: a copy of a task would write a second time."""
    with pytest.raises(ConfigurationError, match=r"spark\.speculation"):
        check_session("TRUE")


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
