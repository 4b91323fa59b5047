"""Spark's record of batches for which the sink was not called: whether they finished, and had any rows.

The progress of a query tells which batches are finished. Of their rows it tells too little: ``numInputRows`` is what
was read of the sources, which is 0 as well for a batch of many rows that the function did not look at, and many where
a filter leaves none. So it is asked what the actions on the batch itself have read, such as its ``isEmpty()``: Spark
keeps that of the last ``spark.sql.ui.retainedExecutions`` executions, with or without a web page to show it.

An action that was carried out, and found no row where it read the batch, has read all of the batch: what ends early
does so because of rows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError

from jdbc_state.sink_log import sink_log
from spark_2pc_sink.recipe.handed_over import NOTHING_SHOWN, RunRecord
from spark_2pc_sink.sink.job.session_facts import elements_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import SparkSession

_log = sink_log(__name__)

#: How long Spark may take to write down what has happened.
_RECORDED_MS_MAX: Final = 10_000
_DROPPED_EVENTS: Final = "queue.appStatus.numDroppedEvents"
_OUTPUT_ROWS: Final = "number of output rows"
#: Where an action reads the batch, or its copy after persist().
_READERS: Final = frozenset({"Scan ExistingRDD", "InMemoryTableScan"})
#: What else may be in the plan of an action that reads all of a batch unless it finds rows. A join, for instance, need
#: not read one side when the other is empty.
_THOROUGH: Final = _READERS | {
    *("AQEShuffleRead", "AdaptiveSparkPlan", "Coalesce", "CollectLimit", "Exchange", "Filter", "GlobalLimit"),
    *("HashAggregate", "LocalLimit", "Project", "ShuffleQueryStage", "WholeStageCodegen"),
}
#: WholeStageCodegen (1)
_NUMBER: Final = re.compile(r" \(\d+\)$")


@dataclass(frozen=True)
class Node:
    """An operator of a plan that was carried out.

    Attributes:
        name: of the operator.
        metrics: identities of its metrics, which no other operator has.
        rows: what its metric of output rows says, as Spark writes it; None without one, or where no task has run.
    """

    name: str
    metrics: frozenset[int]
    rows: str | None


@dataclass(frozen=True)
class Action:
    """One execution of a plan inside a batch.

    Attributes:
        nodes: all operators, those of the stream's own plan among them.
        succeeded: it has ended without an error, and so have its jobs.
        tasks: how many tasks its jobs had.
    """

    nodes: tuple[Node, ...]
    succeeded: bool
    tasks: int


def shows_no_rows(stream: Iterable[Node], actions: Iterable[Action]) -> bool:
    """True where actions show that a batch had no rows.

    Args:
        stream: the plan that makes the batch.
        actions: everything that was executed in the batch.
    """
    of_stream = frozenset[int]().union(*(node.metrics for node in stream))
    shown = False
    for action in actions:
        # The plan of the batch is a part of the plan of what reads it.
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
    """Ask Spark about batches.

    Args:
        spark: the session of the query.
        run_id: of the run of the query.
        execution: what `stream_execution` found.
        missing: their ids.
    """
    if execution is None:
        return NOTHING_SHOWN
    finished = frozenset(progress.batchId() for progress in execution.recentProgress()).intersection(missing)
    try:
        recorded = _Recorded(spark)
        empty = frozenset(batch for batch in missing if recorded.had_no_rows(run_id, batch))
    except Py4JError as error:
        # Nothing is shown then, and the batch that came is refused.
        _log.warning("Spark does not tell whether batches %s had rows: %s", missing, str(error).partition("\n")[0])
        empty = frozenset()
    return RunRecord(finished | empty, empty)


class _Recorded:
    """The executions that Spark remembers."""

    def __init__(self, spark: SparkSession) -> None:
        self._store: Any = spark._jsparkSession.sharedState().statusStore()  # noqa: SLF001 - PySpark does not show it
        context: Any = spark.sparkContext._jsc.sc()  # noqa: SLF001 - as above
        self._jobs: Any = context.statusStore()
        bus = context.listenerBus()
        bus.waitUntilEmpty(_RECORDED_MS_MAX)
        dropped = bus.metrics().metricRegistry().getCounters().get(_DROPPED_EVENTS)
        #: With events lost, what is recorded may be less than what happened.
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

    def _action(self, execution: Any) -> Action:
        jobs = execution.jobs()
        error = execution.errorMessage()
        succeeded = execution.completionTime().isDefined() and (error.isEmpty() or error.get() == "")
        return Action(
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
