"""Spark's record of batches for which the sink was not called: whether they finished, and whether they had rows.

The progress of a query shows which batches are finished, but too little about their rows: ``numInputRows`` counts rows
read from the sources, which is also 0 for a batch of many rows that the function did not read, and large if a filter
removes all. So the rows read by the actions on the batch itself are examined, such as its ``isEmpty()``: Spark keeps
these for the last ``spark.sql.ui.retainedExecutions`` executions, with or without the web UI.

A completed action that found no row where it read the batch has read all of the batch: actions end early only because
of rows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError

from jdbc_state.sink_log import sink_log
from spark_2pc_sink.recipe.placement import NOTHING_SHOWN, RunRecord
from spark_2pc_sink.sink.job.session_facts import elements_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import SparkSession

_log = sink_log(__name__)

#: How long Spark may take to record an event.
_RECORDED_MS_MAX: Final = 10_000
_DROPPED_EVENTS: Final = "queue.appStatus.numDroppedEvents"
_OUTPUT_ROWS: Final = "number of output rows"
#: The operator with which an action reads the batch, or its copy after persist().
_READERS: Final = frozenset({"Scan ExistingRDD", "InMemoryTableScan"})
#: Other operators allowed in the plan of an action that reads all of a batch unless it finds rows. A join, for example,
#: need not read one side if the other is empty.
_THOROUGH: Final = _READERS | {
    *("AQEShuffleRead", "AdaptiveSparkPlan", "Coalesce", "CollectLimit", "Exchange", "Filter", "GlobalLimit"),
    *("HashAggregate", "LocalLimit", "Project", "ShuffleQueryStage", "WholeStageCodegen"),
}
#: WholeStageCodegen (1)
_NUMBER: Final = re.compile(r" \(\d+\)$")


@dataclass(frozen=True)
class Node:
    """An operator of an executed plan.

    Attributes:
        metrics: ids of its metrics, unique to the operator.
        rows: its metric of output rows, as Spark formats it; None without one, or if no task has run.
    """

    name: str
    metrics: frozenset[int]
    rows: str | None


@dataclass(frozen=True)
class PlanExecution:
    """One execution of a plan inside a batch.

    Attributes:
        nodes: all operators, including those of the stream's own plan.
    """

    nodes: tuple[Node, ...]
    succeeded: bool
    tasks: int


def shows_no_rows(stream: Iterable[Node], actions: Iterable[PlanExecution]) -> bool:
    """True if actions show that a batch had no rows.

    Args:
        stream: the plan that produces the batch.
    """
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
        thorough = bool(read) and all(node.name in _THOROUGH for node in action.nodes if node in own)
        complete = None not in read or action.tasks == 0
        shown = shown or (action.succeeded and thorough and complete)
    return shown


def run_record(spark: SparkSession, run_id: str, execution: Any | None, missing: range) -> RunRecord:
    if execution is None:
        return NOTHING_SHOWN
    finished = frozenset(progress.batchId() for progress in execution.recentProgress()).intersection(missing)
    try:
        recorded = _Recorded(spark)
        empty = frozenset(batch for batch in missing if recorded.had_no_rows(run_id, batch))
    except Py4JError as error:
        # Spark has no record then, and the batch that arrived is refused.
        _log.warning("Spark does not tell whether batches %s had rows: %s", missing, str(error).partition("\n")[0])
        empty = frozenset()
    return RunRecord(finished | empty, empty)


class _Recorded:
    def __init__(self, spark: SparkSession) -> None:
        self._store: Any = spark._jsparkSession.sharedState().statusStore()  # noqa: SLF001 - PySpark does not show it
        context: Any = spark.sparkContext._jsc.sc()  # noqa: SLF001 - as above
        self._jobs: Any = context.statusStore()
        bus = context.listenerBus()
        bus.waitUntilEmpty(_RECORDED_MS_MAX)
        dropped = bus.metrics().metricRegistry().getCounters().get(_DROPPED_EVENTS)
        #: False if events were lost, so that the record may be incomplete.
        self._complete = dropped is not None and dropped.getCount() == 0
        self._by_batch: dict[str, list[Any]] = {}
        for execution in elements_of(self._store.executionsList()):
            self._by_batch.setdefault(execution.description(), []).append(execution)

    def had_no_rows(self, run_id: str, batch_id: int) -> bool:
        of_batch = re.compile(rf"runId = {re.escape(run_id)}\s+batch = {batch_id}$")
        found = [each for said, executions in self._by_batch.items() if of_batch.search(said) for each in executions]
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
            rows = [values.get(number) for number, name in metrics.items() if name == _OUTPUT_ROWS]
            shown = rows[0].get() if rows and rows[0].isDefined() else None
            yield Node(_NUMBER.sub("", node.name()), frozenset(metrics), shown)
