"""A streaming query of classic Spark, whose driver is this process: JVM state, and configurations that are refused.

PySpark passes only a frame and a batch id to ``foreachBatch``. The query's id is a local property of the calling
thread; its run, and how it is executed, are known to its ``StreamExecution`` in the JVM, which is found by that
id in the map shared by all sessions of the application.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from jdbc_state.sink_log import sink_log
from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options.settings import HIDDEN
from spark_2pc_sink.sink.job.calling_query import CallingQuery, RunIds, current_query, lag_of
from spark_2pc_sink.sink.job.session_facts import Repeatability, elements_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark_2pc_sink.recipe.placement import RunRecord


_log = sink_log(__name__)

_JOB_GROUP = "spark.jobGroup.id"
#: Class names of StreamExecution with which several batches can be replayed as one batch id.
_ASYNC_EXECUTION = "AsyncProgressTrackingMicroBatchExecution"
_REAL_TIME_TRIGGER = "RealTimeTrigger"
#: Field of StreamExecution: True if the checkpoint is a temporary one created by Spark.
_TEMPORARY: Final = "deleteCheckpointOnStop"
#: Field of StreamExecution: the options of writeStream.
_OPTIONS: Final = "extraOptions"
#: Options of Spark's Kafka sink, with our keywords; foreachBatch receives neither.
_OF_KAFKA_SINK: Final = {"topic": "topic=", "includeheaders": "headers="}
_KAFKA_PREFIX: Final = "kafka."


def current_run(spark: SparkSession, query_id: str, execution: Any | None) -> RunIds:
    """The ids of the run on whose thread this is called.

    Without an execution the thread's job group is the run's id, unless the job has set its own.
    """
    run_id = spark.sparkContext.getLocalProperty(_JOB_GROUP) if execution is None else execution.runId().toString()
    return RunIds(query_id, str(run_id))


def stream_execution(spark: SparkSession, query_id: str) -> Any | None:
    """The JVM's StreamExecution of the query; None if this Spark does not show it."""
    jvm: Any = spark._jvm  # noqa: SLF001 - PySpark has no public way to the running query from foreachBatch
    active = spark._jsparkSession.sharedState().activeStreamingQueries()  # noqa: SLF001
    return active.get(jvm.java.util.UUID.fromString(query_id))


def check_session(speculation: str) -> None:
    """Refuse settings that would let two attempts of a task write."""
    if speculation.lower() == "true":
        raise ConfigurationError(
            option="spark.speculation",
            value="true",
            rule="a speculative copy of a task would write its records a second time",
            remedy="set spark.speculation=false for this application",
        )


def check_query(execution: Any | None) -> None:
    """Refuse a query whose batches cannot be replayed under their ids, and options that would be ignored."""
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
    """Refuse options of writeStream that are meant for Spark's own Kafka sink: they would be ignored."""
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
    """A field of the execution without an accessor; None if this Spark has no such field."""
    kind = execution.getClass()
    while kind is not None:
        found = next((field for field in kind.getDeclaredFields() if field.getName() == name), None)
        if found is not None:
            found.setAccessible(True)
            return found.get(execution)
        kind = kind.getSuperclass()
    return None


def is_stopping(execution: Any | None) -> bool:
    return execution is not None and not execution.isActive()


def is_running(execution: Any | None) -> bool:
    """False if the query has ended or is about to; True if this Spark does not show it. Callable from any thread."""
    from py4j.protocol import Py4JError  # noqa: PLC0415 - a client of Spark Connect has no py4j, and no execution

    try:
        return not is_stopping(execution)
    except (Py4JError, OSError):
        # The JVM has ended, and the query with it.
        return False


#: Spark's plan of a batch passed to foreachBatch: its rows, already planned.
_ROWS: Final = "LogicalRDD"
#: Plans that pass each row on as it arrives.
_STRAIGHT: Final = frozenset(
    {
        _ROWS,
        "Project",
        "SubqueryAlias",
        "EventTimeWatermark",
        "WriteToMicroBatchDataSource",
        "WriteToMicroBatchDataSourceV1",
        "StreamingRelation",
        "StreamingExecutionRelation",
        "StreamingRelationV2",
        "StreamingDataSourceV2Relation",
        "StreamingDataSourceV2ScanRelation",
    }
)
#: The TreePattern of a plan that calls user functions.
_OF_USERS: Final = ("PYTHON_UDF", "SCALA_UDF")


def comes_straight(batch: DataFrame, stream: Any, tasks: int) -> bool:
    """True if the first rows of a batch are cheap to get, so that the driver may try to collect it.

    They come straight from the source: through selects only, without user functions, and without operators in which one
    task would process many rows for a few, such as a very selective filter, a join, or a state. And there are not more
    partitions than concurrent tasks: the one task may have to open each.
    """
    jvm: Any = batch.sparkSession._jvm  # noqa: SLF001 - plans are not public in PySpark
    patterns = getattr(getattr(jvm.org.apache.spark.sql.catalyst.trees, "TreePattern$"), "MODULE$")
    called = [getattr(patterns, name)() for name in _OF_USERS]
    plan = batch._jdf.queryExecution().analyzed()  # noqa: SLF001 - as above
    if any(each.containsPattern(pattern) for each in (plan, stream) for pattern in called):
        return False
    if not (is_straight(stream) and is_straight(plan)):
        return False
    partitions = sum(int(rows.rdd().getNumPartitions()) for rows in elements_of(plan.collectLeaves()))
    return partitions <= tasks


def is_straight(plan: Any) -> bool:
    """Whether a plan and all below it pass each row on as it arrives."""
    return plan.getClass().getSimpleName() in _STRAIGHT and all(map(is_straight, elements_of(plan.children())))


class ClassicQuery(CallingQuery):
    def __init__(self, spark: SparkSession, ids: RunIds, execution: Any | None) -> None:
        super().__init__(ids)
        self._spark = spark
        self._execution = execution

    @classmethod
    def of(cls, spark: SparkSession) -> ClassicQuery:
        query_id = current_query(spark)
        execution = stream_execution(spark, query_id)
        return cls(spark, current_run(spark, query_id, execution), execution)

    def goes_on(self, spark: SparkSession) -> bool:
        query_id = current_query(spark)
        if query_id != self.ids.query_id:
            return False
        # A single JVM call while it is active: no two runs of one query are active at once.
        active = self._execution is not None and not is_stopping(self._execution)
        return active or self.ids == current_run(spark, query_id, stream_execution(spark, query_id))

    def check(self) -> None:
        check_query(self._execution)
        Repeatability(self._spark).check_stream(self._execution)

    def is_stopping(self) -> bool:
        return is_stopping(self._execution)

    def is_running(self) -> bool:
        return is_running(self._execution)

    def is_active(self, query_id: str) -> bool:
        """An id unknown to Spark is that of a backfill, which has no end."""
        try:
            UUID(query_id)
        except ValueError:
            return True
        return stream_execution(self._spark, query_id) is not None

    def comes_straight(self, batch: DataFrame, tasks: int) -> bool:
        return self._execution is not None and comes_straight(batch, self._execution.logicalPlan(), tasks)

    def lag(self) -> dict[str, Any]:
        progress = None if self._execution is None else self._execution.lastProgress()
        return {} if progress is None else lag_of(progress.json())

    def look_back(self, missing: range) -> RunRecord:
        from spark_2pc_sink.sink.job.run_record import run_record  # noqa: PLC0415 - py4j, which a pure client lacks

        return run_record(self._spark, self.ids.run_id, self._execution, missing)
