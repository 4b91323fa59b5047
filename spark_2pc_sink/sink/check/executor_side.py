"""Executors in a check: whether each can run the sink's tasks and reach the driver."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.sink.check.findings import Finding

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_2pc_sink.options import SinkOptions

_SUBJECT: Final = "executors"
#: A command has no session, nor does a program that has not loaded this module.
NO_SESSION: Final = Finding(
    _SUBJECT,
    "not_checked",
    "the job's Spark session is not available",
    "call sink.check() in the job; the job itself checks its executors before its first batch",
)


def active_session() -> SparkSession | None:
    """The active session of this thread; None without one. Does not load Spark."""
    sql: Any = sys.modules.get("pyspark.sql")
    session: SparkSession | None = None if sql is None else sql.SparkSession.getActiveSession()
    return session


def executor_findings(options: SinkOptions, spark: SparkSession | None) -> Iterator[Finding]:
    """Findings about executors, if there is a session."""
    if spark is None:
        yield NO_SESSION
        return
    # Local import: it loads PySpark.
    from pyspark.errors import PySparkException  # noqa: PLC0415

    from spark_2pc_sink.sink.job.session_facts import has_other_python, session_facts  # noqa: PLC0415

    if not has_other_python(spark):
        yield Finding(_SUBJECT, "ok", "tasks run on the driver's machine, with its Python")
        return
    try:
        tasks = session_facts(spark, options.transactional_id).tasks_at_once()
        yield from _tried(options, spark, tasks=tasks)
    except ConfigurationError as error:
        yield Finding(_SUBJECT, "problem", str(error.rule), error.remedy)
    except PySparkException as error:
        said = str(error).strip().partition("\n")[0]
        yield Finding(_SUBJECT, "not_checked", f"Spark could not run a job on them: {said}", "see Spark's log")


def _tried(options: SinkOptions, spark: SparkSession, *, tasks: int) -> Iterator[Finding]:
    from spark_2pc_sink.sink.job.executors import remedy_for, try_executors  # noqa: PLC0415
    from spark_2pc_sink.sink.job.session_facts import stream_endpoint  # noqa: PLC0415
    from spark_2pc_sink.sink.stream.listener import StreamLimits, StreamListener  # noqa: PLC0415

    with StreamListener(stream_endpoint(spark, options), StreamLimits()) as listener:
        verdict = try_executors(spark, listener, tasks=tasks)
    remedy = remedy_for(spark)
    for sentence in verdict.faults.values():
        yield Finding(_SUBJECT, "problem", sentence, remedy)
    for sentence in verdict.warnings.values():
        yield Finding(_SUBJECT, "warning", sentence, remedy)
    if not (verdict.faults or verdict.warnings):
        yield Finding(_SUBJECT, "ok", "all can run the sink's tasks and reach the driver")
