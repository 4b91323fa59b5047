"""The checks of the query that calls the sink: what Spark says of it, and what the sink refuses.

PySpark passes a frame and a batch id to ``foreachBatch`` and nothing else. The query's id is a local property of the
calling thread; its run, and how it is executed, are known to its ``StreamExecution`` in the JVM, which is found by that
id in the map that all sessions of the application share.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError

from jdbc_state.sink_log import sink_log
from spark_2pc_sink.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

_log = sink_log(__name__)

_QUERY_ID = "sql.streaming.queryId"
_JOB_GROUP = "spark.jobGroup.id"
#: Class names of StreamExecution under which several batches can come back as one batch id.
_ASYNC_EXECUTION = "AsyncProgressTrackingMicroBatchExecution"
_REAL_TIME_TRIGGER = "RealTimeTrigger"


@dataclass(frozen=True)
class RunIds:
    """By which Spark knows one run of one streaming query.

    Attributes:
        query_id: kept in the checkpoint, the same after a restart from it.
        run_id: new at each start.
    """

    query_id: str
    run_id: str


def current_query(spark: SparkSession) -> str:
    """Id of the query on whose thread this is called.

    Raises:
        ConfigurationError: not called by a streaming query's foreachBatch.
    """
    query_id = spark.sparkContext.getLocalProperty(_QUERY_ID)
    if query_id is None:
        raise ConfigurationError(
            option="foreachBatch",
            value="called outside a streaming query",
            rule="a batch is only safe to replay under the id of its query",
            remedy="pass the sink to writeStream.foreachBatch(sink) and start() the query",
        )
    return str(query_id)


def current_run(spark: SparkSession, query_id: str, execution: Any | None) -> RunIds:
    """The ids of the run on whose thread this is called.

    Args:
        spark: the session of the batch.
        query_id: of the query.
        execution: what `stream_execution` found. Where it found nothing, the thread's job group is the run's id, unless
            the job has set one of its own.
    """
    run_id = spark.sparkContext.getLocalProperty(_JOB_GROUP) if execution is None else execution.runId().toString()
    return RunIds(query_id, str(run_id))


def runs_here(spark: SparkSession) -> bool:
    """True where tasks run on the driver's machine, by Spark's master."""
    master = str(spark.sparkContext.master)
    return master == "local" or master.startswith("local[")


def local_directory(spark: SparkSession) -> Path:
    """Where Spark puts what tasks spill, and so where there is room; of several the first."""
    setting = spark.sparkContext.getConf().get("spark.local.dir")
    return Path((os.environ.get("SPARK_LOCAL_DIRS") or setting or tempfile.gettempdir()).partition(",")[0])


def stream_execution(spark: SparkSession, query_id: str) -> Any | None:
    """The JVM's StreamExecution of the query, None where this Spark does not show it."""
    jvm: Any = spark._jvm  # noqa: SLF001 - PySpark has no public way to the running query from foreachBatch
    active = spark._jsparkSession.sharedState().activeStreamingQueries()  # noqa: SLF001
    return active.get(jvm.java.util.UUID.fromString(query_id))


def check_environment(spark: SparkSession, execution: Any | None) -> None:
    """Refuse what would let two attempts write, or several batches come back under one id.

    Args:
        spark: the session of the batch.
        execution: what `stream_execution` found.

    Raises:
        ConfigurationError: speculation, asynchronous progress tracking or real-time mode is on.
    """
    if spark.sparkContext.getConf().get("spark.speculation", "false").lower() == "true":
        raise ConfigurationError(
            option="spark.speculation",
            value="true",
            rule="a speculative copy of a task would write its records a second time",
            remedy="set spark.speculation=false for this application",
        )
    if execution is None:
        _log.warning("the running query is not visible: asynchronous progress tracking is not checked for")
        return
    if _ASYNC_EXECUTION in execution.getClass().getName():
        raise ConfigurationError(
            option="asyncProgressTrackingEnabled",
            value="true",
            rule="after a restart several batches would come back under one batch id",
            remedy="remove the option from writeStream",
        )
    if _REAL_TIME_TRIGGER in execution.trigger().getClass().getName():
        raise ConfigurationError(
            option="trigger",
            value="real-time mode",
            rule="its batches have no end until they are recorded, so they cannot be decided one by one",
            remedy="use the default trigger, processingTime or availableNow",
        )


def is_stopping(execution: Any | None) -> bool:
    """True when the query was told to stop: another attempt of the batch would only delay that."""
    return execution is not None and not execution.isActive()


def is_running(execution: Any | None) -> bool:
    """False when the query has ended or is about to; True where this Spark does not show it. For any thread."""
    try:
        return not is_stopping(execution)
    except (Py4JError, OSError):
        # The JVM is gone, and the query with it.
        return False


def elements_of(sequence: Any) -> Iterator[Any]:
    """The elements of a Scala Seq."""
    return (sequence.apply(index) for index in range(sequence.size()))
