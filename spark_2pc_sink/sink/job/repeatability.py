"""The check that expressions give the same result when a batch is replayed; others are refused.

The plan of the stream is fixed for a run. A job's function may hand over another plan with each batch, and Spark's
optimizer is not asked: two questions to the analyzed plan cost less than a thousandth of a small batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.sink.job.query_checks import elements_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Aggregates that Spark calls non-deterministic because they follow the order of rows. A stream may well use them:
#: should a replay order them otherwise, the digest tells.
_ORDER_DEPENDENT: Final = frozenset(
    {"AggregateExpression", "AnyValue", "CollectList", "CollectSet", "First", "Last", "ListAgg"}
)
#: Functions that know of a task which file it reads, and what a file source calls the same in each row.
_OF_FILES: Final = {
    "input_file_name()": "_metadata.file_path",
    "input_file_block_start()": "_metadata.file_block_start",
    "input_file_block_length()": "_metadata.file_block_length",
}


class Repeatability:
    """Checks the plans of one run.

    Args:
        spark: the session of its batches.
    """

    def __init__(self, spark: SparkSession) -> None:
        jvm: Any = spark._jvm  # noqa: SLF001 - plans are not public in PySpark
        trees = jvm.org.apache.spark.sql.catalyst.trees
        self._current_like = getattr(getattr(trees, "TreePattern$"), "MODULE$").CURRENT_LIKE()

    def check_stream(self, execution: Any | None) -> None:
        """Refuse a stream whose own plan is not repeatable; Spark itself fixes the current time of each batch there.

        Args:
            execution: what `stream_execution` found.

        Raises:
            ConfigurationError: rand(), uuid() or the like.
        """
        if execution is not None:
            _refuse_culprit("the stream", execution.logicalPlan())

    def check(self, frame: DataFrame, where: str) -> None:
        """Refuse a frame that is not repeatable.

        Args:
            frame: a batch, or one with the sink's own expressions selected.
            where: what that is, for the message.

        Raises:
            ConfigurationError: rand(), uuid(), current_timestamp() or the like.
        """
        analyzed = frame._jdf.queryExecution().analyzed()  # noqa: SLF001 - plans are not public in PySpark
        if analyzed.containsPattern(self._current_like):
            # Spark fixes the current time per batch in the stream's own plan, but not in what is added to it.
            raise _unrepeatable(where, "the current date or time")
        _refuse_culprit(where, analyzed)


def _refuse_culprit(where: str, plan: Any) -> None:
    culprit = _culprit_in_plan(plan)
    if culprit is not None:
        raise _unrepeatable(where, culprit)


def _unrepeatable(where: str, culprit: str) -> ConfigurationError:
    remedy = (
        "derive the value from the data: hash(columns) in place of rand() or uuid(), a column that the source sets in "
        "place of the current time"
    )
    if culprit in _OF_FILES:
        remedy = f"select {_OF_FILES[culprit]} where the stream is read: it is the same in every replay"
    return ConfigurationError(
        option=where,
        value=culprit,
        rule="it gives another result each time, so a replayed batch would not be the same batch",
        remedy=remedy,
    )


def _culprit_in_plan(plan: Any) -> str | None:
    """The first expression of a plan that differs from one evaluation to the next."""
    if plan.deterministic():
        return None
    for expression in elements_of(plan.expressions()):
        culprit = _culprit(expression)
        if culprit is not None:
            return culprit
    return next(filter(None, map(_culprit_in_plan, elements_of(plan.children()))), None)


def _culprit(expression: Any) -> str | None:
    if expression.deterministic():
        return None
    inner = next(filter(None, map(_culprit, elements_of(expression.children()))), None)
    if inner is not None or expression.getClass().getSimpleName() in _ORDER_DEPENDENT:
        return inner
    return str(expression.toString())
