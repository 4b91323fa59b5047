"""The checks of the query that calls the sink: what Spark says of it, and what the sink refuses.

PySpark passes a frame and a batch id to ``foreachBatch`` and nothing else. The query's id is a local property of the
calling thread; its run, and how it is executed, are known to its ``StreamExecution`` in the JVM, which is found by that
id in the map that all sessions of the application share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from jdbc_state.sink_log import sink_log
from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options.settings import HIDDEN
from spark_2pc_sink.sink.job.calling_query import RunIds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

_log = sink_log(__name__)

_QUERY_ID = "sql.streaming.queryId"
_JOB_GROUP = "spark.jobGroup.id"
#: Class names of StreamExecution under which several batches can come back as one batch id.
_ASYNC_EXECUTION = "AsyncProgressTrackingMicroBatchExecution"
_REAL_TIME_TRIGGER = "RealTimeTrigger"
#: Of StreamExecution: True where the checkpoint is a temporary one that Spark has made.
_TEMPORARY: Final = "deleteCheckpointOnStop"
#: Of StreamExecution: the options of writeStream.
_OPTIONS: Final = "extraOptions"
#: What Spark's Kafka sink has for an option, and ours for a keyword; foreachBatch hears of neither.
_OF_KAFKA_SINK: Final = {"topic": "topic=", "includeheaders": "headers="}
_KAFKA_PREFIX: Final = "kafka."


def current_query(spark: SparkSession) -> str:
    """Id of the query on whose thread this is called.

    Raises:
        ConfigurationError: not called by a streaming query's foreachBatch.
    """
    query_id = running_query(spark)
    if query_id is None:
        raise ConfigurationError(
            option="foreachBatch",
            value="called outside a streaming query",
            rule="a batch is only safe to replay under the id of its query",
            remedy="pass the sink to writeStream.foreachBatch(sink) and start() the query; a frame that is no stream "
            "is written with sink.write(df, batch_id=…); in a thread that your function starts, call it by way of "
            "pyspark.inheritable_thread_target(spark), which tells the thread whose query it is",
        )
    return query_id


def running_query(spark: SparkSession) -> str | None:
    """The same, None where this is not called by a streaming query."""
    query_id = spark.sparkContext.getLocalProperty(_QUERY_ID)
    return None if query_id is None else str(query_id)


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


def stream_execution(spark: SparkSession, query_id: str) -> Any | None:
    """The JVM's StreamExecution of the query, None where this Spark does not show it."""
    jvm: Any = spark._jvm  # noqa: SLF001 - PySpark has no public way to the running query from foreachBatch
    active = spark._jsparkSession.sharedState().activeStreamingQueries()  # noqa: SLF001
    return active.get(jvm.java.util.UUID.fromString(query_id))


def check_session(speculation: str) -> None:
    """Refuse what would let two attempts of a task write.

    Args:
        speculation: the setting ``spark.speculation``.

    Raises:
        ConfigurationError: speculation is on.
    """
    if speculation.lower() == "true":
        raise ConfigurationError(
            option="spark.speculation",
            value="true",
            rule="a speculative copy of a task would write its records a second time",
            remedy="set spark.speculation=false for this application",
        )


def check_query(execution: Any | None) -> None:
    """Refuse a query whose batches cannot be replayed under their ids, and options that nobody reads.

    Args:
        execution: what `stream_execution` found.

    Raises:
        ConfigurationError: asynchronous progress tracking or real-time mode is on, the checkpoint is a temporary one,
            or writeStream has options of Spark's own Kafka sink.
    """
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
    if _private(execution, _TEMPORARY) is True:
        raise ConfigurationError(
            option="checkpointLocation",
            value=None,
            rule="without it Spark makes a temporary checkpoint, and a restarted query would begin again with batch 0",
            remedy="writeStream.option('checkpointLocation', DIRECTORY), one that outlives the job",
        )
    options = _private(execution, _OPTIONS)
    if options is not None:
        check_options(str(options.keys().mkString("\n")).splitlines())


def check_options(names: list[str]) -> None:
    """Refuse options of writeStream that are meant for Spark's own Kafka sink: nobody would read them.

    Args:
        names: of all options.

    Raises:
        ConfigurationError: one is; what is meant for this sink is named.
    """
    for name in names:
        folded = name.lower()
        if folded in _OF_KAFKA_SINK:
            remedy = f"pass {_OF_KAFKA_SINK[folded]} to DualWriteSink"
        elif folded.startswith(_KAFKA_PREFIX):
            remedy = f"pass kafka={{{name[len(_KAFKA_PREFIX) :]!r}: …}} to DualWriteSink"
        else:
            continue
        raise ConfigurationError(
            option=f"writeStream.option({name!r})",
            value=HIDDEN,
            rule="it is an option of Spark's own Kafka sink, and foreachBatch hands no option to this sink",
            remedy=f"{remedy}, and remove the option from writeStream",
        )


def _private(execution: Any, name: str) -> Any | None:
    """A field of the execution that has no accessor; None where this Spark has no such field."""
    kind = execution.getClass()
    while kind is not None:
        found = next((field for field in kind.getDeclaredFields() if field.getName() == name), None)
        if found is not None:
            found.setAccessible(True)
            return found.get(execution)
        kind = kind.getSuperclass()
    return None


def is_stopping(execution: Any | None) -> bool:
    """True when the query was told to stop: another attempt of the batch would only delay that."""
    return execution is not None and not execution.isActive()


def is_running(execution: Any | None) -> bool:
    """False when the query has ended or is about to; True where this Spark does not show it. For any thread."""
    from py4j.protocol import Py4JError  # noqa: PLC0415 - a client of Spark Connect has no py4j, and no execution

    try:
        return not is_stopping(execution)
    except (Py4JError, OSError):
        # The JVM is gone, and the query with it.
        return False


def elements_of(sequence: Any) -> Iterator[Any]:
    """The elements of a Scala Seq."""
    return (sequence.apply(index) for index in range(sequence.size()))
