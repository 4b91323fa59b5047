"""A streaming query of classic Spark, whose driver is this process: JVM state, and configurations that are refused.

PySpark passes only a frame and a batch id to ``foreachBatch``. The query's id is a local property of the calling
thread; its run, and how it is executed, are known to its ``StreamExecution`` in the JVM, which is found by that
id in the map shared by all sessions of the application.

Whether a batch for which the sink was not called had rows is not in the progress of its query: ``numInputRows`` counts
rows read from the sources. So the rows read by the actions on the batch itself, such as its ``isEmpty()``, are examined
(``spark.sql.ui.retainedExecutions``). A completed action that found no row where it read the batch has read all of it:
actions end early only because of rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from pyspark.sql import DataFrame, SparkSession

from jdbc_state.sink_log import sink_log
from spark_2pc_sink.options.settings import HIDDEN, refused
from spark_2pc_sink.recipe.placement import NOTHING_SHOWN, RunRecord
from spark_2pc_sink.sink.driver.batch_values import RunIds
from spark_2pc_sink.sink.job.batch_size import FIRST_BYTES_MAX
from spark_2pc_sink.sink.job.calling_query import CallingQuery, current_query, lag_of
from spark_2pc_sink.sink.job.session_facts import elements_of, refuse_unrepeatable

_log = sink_log(__name__)

#: Options of Spark's Kafka sink, with our keywords; foreachBatch receives neither.
_OF_KAFKA_SINK: Final = {"topic": "topic=", "includeheaders": "headers="}
_KAFKA_PREFIX: Final = "kafka."


def stream_execution(spark: SparkSession, query_id: str) -> Any | None:
    """The JVM's StreamExecution of the query; None if this Spark does not show it."""
    jvm: Any = spark._jvm  # noqa: SLF001 - PySpark has no public way to the running query from foreachBatch
    active = spark._jsparkSession.sharedState().activeStreamingQueries()  # noqa: SLF001
    return active.get(jvm.java.util.UUID.fromString(query_id))


def check_query(execution: Any) -> None:
    """Refuse a query whose batches cannot be replayed under their ids, and options that would be ignored."""
    if "AsyncProgressTrackingMicroBatchExecution" in execution.getClass().getName():
        rule = "after a restart several batches would be replayed under one batch id"
        raise refused("asyncProgressTrackingEnabled", "true", rule, "remove the option from writeStream")
    if "RealTimeTrigger" in execution.trigger().getClass().getName():
        rule = "its batches end only when they are recorded, so they cannot be committed one by one"
        raise refused("trigger", "real-time mode", rule, "use the default trigger, processingTime or availableNow")
    # True if the checkpoint is a temporary one created by Spark.
    if _private(execution, "deleteCheckpointOnStop") is True:
        rule = "without it Spark makes a temporary checkpoint, and a restarted query would begin again with batch 0"
        remedy = "set writeStream.option('checkpointLocation', DIRECTORY) to a directory that outlives the job"
        raise refused("checkpointLocation", None, rule, remedy)
    options = _private(execution, "extraOptions")
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
        rule = "this is an option of Spark's own Kafka sink; foreachBatch does not pass it on to this sink"
        remedy = f"{remedy}, and remove the option from writeStream"
        raise refused(f"writeStream.option({name!r})", HIDDEN, rule, remedy)


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


#: Plans that pass each row on as it arrives.
_STRAIGHT: Final = re.compile(
    "LogicalRDD|Project|SubqueryAlias|EventTimeWatermark"  # the first: rows of a batch, already planned
    "|WriteToMicroBatchDataSource(V1)?|StreamingRelation(V2)?"
    "|StreamingExecutionRelation|StreamingDataSourceV2(Scan)?Relation"
)
#: No batch has as much: 1 PiB.
_UNKNOWN_BYTES_MIN: Final = 2**50


def is_known_large(estimated_bytes: int) -> bool:
    """Whether Spark's estimate says that a batch is not small.

    For a source that does not tell its size, such as Kafka, Spark assumes spark.sql.defaultSizeInBytes, 8 EiB, or a
    part of it after a select.
    """
    return FIRST_BYTES_MAX < estimated_bytes < _UNKNOWN_BYTES_MIN


def is_plain_plan(plan: Any) -> bool:
    """Whether a plan and all below it pass each row on as it arrives."""
    straight = _STRAIGHT.fullmatch(plan.getClass().getSimpleName())
    return bool(straight) and all(map(is_plain_plan, elements_of(plan.children())))


#: How long Spark may take to record an event.
_RECORDED_MS_MAX: Final = 10_000
#: The operator with which an action reads the batch, or its copy after persist().
_READERS: Final = frozenset({"Scan ExistingRDD", "InMemoryTableScan"})
#: Other operators allowed in the plan of an action that reads all of a batch unless it finds rows. A join, for example,
#: need not read one side if the other is empty.
_THOROUGH: Final = re.compile(
    "AdaptiveSparkPlan|AQEShuffleRead|ShuffleQueryStage|WholeStageCodegen"
    "|Coalesce|Exchange|Filter|HashAggregate|Project|(Collect|Global|Local)Limit"
)
#: WholeStageCodegen (1)
_NUMBER: Final = re.compile(r" \(\d+\)$")


@dataclass(frozen=True)
class Node:
    """An operator of an executed plan."""

    name: str
    #: Ids, unique to the operator.
    metrics: frozenset[int]
    #: Its metric of output rows, as Spark formats it; None without one, or if no task has run.
    rows: str | None


@dataclass(frozen=True)
class PlanExecution:
    """One execution of a plan inside a batch; nodes include those of the stream's own plan."""

    nodes: tuple[Node, ...]
    succeeded: bool
    tasks: int


def shows_no_rows(stream: Iterable[Node], actions: Iterable[PlanExecution]) -> bool:
    """True if actions show that a batch had no rows; ``stream`` is the plan that produces the batch."""
    of_stream = frozenset[int]().union(*(node.metrics for node in stream))
    shown = False
    for action in actions:
        # The batch's plan is part of the plan of each action that reads it.
        if not any(node.metrics & of_stream for node in action.nodes):
            continue
        own = [node for node in action.nodes if not node.metrics & of_stream]
        read = [node.rows for node in own if node.name in _READERS]
        if any(rows not in {None, "0"} for rows in read):
            return False
        thorough = bool(read) and all(node.name in _READERS or _THOROUGH.fullmatch(node.name) for node in own)
        complete = None not in read or action.tasks == 0
        shown = shown or (action.succeeded and thorough and complete)
    return shown


class _Recorded:
    def __init__(self, spark: SparkSession) -> None:
        self._store: Any = spark._jsparkSession.sharedState().statusStore()  # noqa: SLF001 - PySpark does not show it
        context: Any = spark.sparkContext._jsc.sc()  # noqa: SLF001 - as above
        self._jobs: Any = context.statusStore()
        bus = context.listenerBus()
        bus.waitUntilEmpty(_RECORDED_MS_MAX)
        dropped = bus.metrics().metricRegistry().getCounters().get("queue.appStatus.numDroppedEvents")
        #: False if events were lost, so that the record may be incomplete.
        self._complete = dropped is not None and dropped.getCount() == 0
        self._executions = [(each.description(), each) for each in elements_of(self._store.executionsList())]

    def had_no_rows(self, run_id: str, batch_id: int) -> bool:
        of_batch = re.compile(rf"runId = {re.escape(run_id)}\s+batch = {batch_id}$")
        found = [each for said, each in self._executions if of_batch.search(said)]
        roots = [each for each in found if each.executionId() == each.rootExecutionId()]
        if not self._complete or len(roots) != 1:
            return False
        actions = (self._action(each) for each in found if each.executionId() != each.rootExecutionId())
        return shows_no_rows(self._nodes(roots[0]), actions)

    def _action(self, execution: Any) -> PlanExecution:
        jobs = execution.jobs()
        error = execution.errorMessage()
        succeeded = execution.completionTime().isDefined() and (error.isEmpty() or error.get() == "")
        return PlanExecution(
            nodes=tuple(self._nodes(execution)),
            succeeded=succeeded and jobs.values().toSet().mkString(",") in {"", "SUCCEEDED"},
            tasks=sum(self._jobs.job(int(job)).numTasks() for job in jobs.keys().mkString(" ").split()),
        )

    def _nodes(self, execution: Any) -> Iterator[Node]:
        values = self._store.executionMetrics(execution.executionId())
        for node in elements_of(self._store.planGraph(execution.executionId()).allNodes()):
            metrics = {metric.accumulatorId(): metric.name() for metric in elements_of(node.metrics())}
            rows = [values.get(number) for number, name in metrics.items() if name == "number of output rows"]
            shown = rows[0].get() if rows and rows[0].isDefined() else None
            yield Node(_NUMBER.sub("", node.name()), frozenset(metrics), shown)


class ClassicQuery(CallingQuery):
    def __init__(self, spark: SparkSession, ids: RunIds, execution: Any | None) -> None:
        super().__init__(ids)
        self._spark = spark
        self._execution = execution

    @classmethod
    def of(cls, spark: SparkSession) -> ClassicQuery:
        """The query on whose thread this is called."""
        query_id = current_query(spark)
        execution = stream_execution(spark, query_id)
        # Without an execution the thread's job group is the run's id, unless the job has set its own.
        local: Any = spark.sparkContext.getLocalProperty
        run_id = local("spark.jobGroup.id") if execution is None else execution.runId().toString()
        return cls(spark, RunIds(query_id, str(run_id)), execution)

    def is_current_run(self, spark: SparkSession) -> bool:
        if current_query(spark) != self.ids.query_id:
            return False
        # A single JVM call while it is active: no two runs of one query are active at once.
        active = self._execution is not None and not self.is_stopping()
        return active or self.ids == ClassicQuery.of(spark).ids

    def check(self) -> None:
        if self._execution is None:
            _log.warning("this Spark does not show the running query: checkpoint and trigger are not checked")
            return
        check_query(self._execution)
        # Spark itself fixes the current time of each batch in the stream's own plan.
        refuse_unrepeatable("the stream", self._execution.logicalPlan())

    def is_stopping(self) -> bool:
        return self._execution is not None and not self._execution.isActive()

    def is_running(self) -> bool:
        from py4j.protocol import Py4JError  # noqa: PLC0415 - a client of Spark Connect has no py4j, and no execution

        try:
            return not self.is_stopping()
        except (Py4JError, OSError):
            # The JVM has ended, and the query with it.
            return False

    def is_active(self, query_id: str) -> bool:
        """An id unknown to Spark is that of a backfill, which has no end."""
        try:
            UUID(query_id)
        except ValueError:
            return True
        return stream_execution(self._spark, query_id) is not None

    def is_plain_scan(self, batch: DataFrame, tasks: int) -> bool:
        """True if the first rows of a batch are cheap to get, so that the driver may try to collect it.

        They come straight from the source: through selects only, without user functions, and without operators in
        which one task would process many rows for a few, such as a very selective filter, a join, or a state. There are
        not more partitions than concurrent tasks: the one task may have to open each. And the source is not known to
        have more bytes than a small batch.
        """
        if self._execution is None:
            return False
        jvm: Any = self._spark._jvm  # noqa: SLF001 - plans are not public in PySpark
        patterns = getattr(getattr(jvm.org.apache.spark.sql.catalyst.trees, "TreePattern$"), "MODULE$")
        called = (patterns.PYTHON_UDF(), patterns.SCALA_UDF())
        plans = batch._jdf.queryExecution().analyzed(), self._execution.logicalPlan()  # noqa: SLF001 - as above
        calls_functions = any(plan.containsPattern(pattern) for plan in plans for pattern in called)
        if calls_functions or not all(map(is_plain_plan, plans)):
            return False
        leaves = list(elements_of(plans[0].collectLeaves()))
        partitions = sum(int(rows.rdd().getNumPartitions()) for rows in leaves)
        return partitions <= tasks and not any(is_known_large(int(str(rows.stats().sizeInBytes()))) for rows in leaves)

    def lag(self) -> dict[str, Any]:
        progress = None if self._execution is None else self._execution.lastProgress()
        return {} if progress is None else lag_of(progress.json())

    def skipped_batches(self, missing: range) -> RunRecord:
        from py4j.protocol import Py4JError  # noqa: PLC0415 - as above

        if self._execution is None:
            return NOTHING_SHOWN
        finished = frozenset(progress.batchId() for progress in self._execution.recentProgress()).intersection(missing)
        try:
            recorded = _Recorded(self._spark)
            empty = frozenset(batch for batch in missing if recorded.had_no_rows(self.ids.run_id, batch))
        except Py4JError as error:
            # Spark has no record then, and the batch that arrived is refused.
            _log.warning("cannot determine whether batches %s had rows: %s", missing, str(error).partition("\n")[0])
            empty = frozenset()
        return RunRecord(finished | empty, empty)
