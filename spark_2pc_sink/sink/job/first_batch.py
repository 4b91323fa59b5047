"""Whether the driver may try to collect the first batch of a run, of which nothing tells the size.

A guess that turns out wrong has to be cheap: one task reads some rows, and then tasks write the batch as they would
have done. So the rows must come straight from the source: by selects alone, without functions of users, and without
anything that one task would go through alone for a few rows, such as a filter that keeps hardly any, a join, or a
state. And there are not more partitions than tasks that run at a time: the one task may have to open each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from spark_2pc_sink.sink.job.query_checks import elements_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Spark's plan of a batch, as foreachBatch hands it over: its rows, already planned.
_ROWS: Final = "LogicalRDD"
#: Plans that hand each row over as they come to it.
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
#: What a plan is marked with that calls functions of users (TreePattern).
_OF_USERS: Final = ("PYTHON_UDF", "SCALA_UDF")


def comes_straight(batch: DataFrame, stream: Any, tasks: int) -> bool:
    """Whether the first rows of a batch are cheap to get.

    Args:
        batch: of classic Spark, as the sink was given it.
        stream: the plan of the whole stream, in the JVM.
        tasks: how many run at a time.
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
    """Whether a plan and all below it hand each row over as they come to it."""
    return plan.getClass().getSimpleName() in _STRAIGHT and all(map(is_straight, elements_of(plan.children())))
