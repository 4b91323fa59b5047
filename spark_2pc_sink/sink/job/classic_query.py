"""A streaming query of classic Spark, whose driver is this process: the JVM tells of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

from spark_2pc_sink.sink.job.calling_query import CallingQuery
from spark_2pc_sink.sink.job.first_batch import comes_straight
from spark_2pc_sink.sink.job.query_checks import (
    check_query,
    current_query,
    current_run,
    is_running,
    is_stopping,
    stream_execution,
)
from spark_2pc_sink.sink.job.repeatability import Repeatability

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark_2pc_sink.recipe.handed_over import RunRecord
    from spark_2pc_sink.sink.job.calling_query import RunIds


class ClassicQuery(CallingQuery):
    """One run of a streaming query.

    Args:
        spark: the session of its first batch.
        ids: of the query and of this run.
        execution: what `stream_execution` found.
    """

    def __init__(self, spark: SparkSession, ids: RunIds, execution: Any | None) -> None:
        super().__init__(ids)
        self._spark = spark
        self._execution = execution

    @classmethod
    def of(cls, spark: SparkSession) -> ClassicQuery:
        """The query on whose thread this is called.

        Raises:
            ConfigurationError: not called by a streaming query's foreachBatch.
        """
        query_id = current_query(spark)
        execution = stream_execution(spark, query_id)
        return cls(spark, current_run(spark, query_id, execution), execution)

    def goes_on(self, spark: SparkSession) -> bool:
        """See `CallingQuery.goes_on`."""
        query_id = current_query(spark)
        if query_id != self.ids.query_id:
            return False
        # One question while it is active, which no two runs of one query are.
        active = self._execution is not None and not is_stopping(self._execution)
        return active or self.ids == current_run(spark, query_id, stream_execution(spark, query_id))

    def check(self) -> None:
        """See `CallingQuery.check`."""
        check_query(self._execution)
        Repeatability(self._spark).check_stream(self._execution)

    def is_stopping(self) -> bool:
        """See `CallingQuery.is_stopping`."""
        return is_stopping(self._execution)

    def is_running(self) -> bool:
        """See `CallingQuery.is_running`."""
        return is_running(self._execution)

    def is_active(self, query_id: str) -> bool:
        """See `CallingQuery.is_active`. An id that is not Spark's is that of a backfill, which has no end."""
        try:
            UUID(query_id)
        except ValueError:
            return True
        return stream_execution(self._spark, query_id) is not None

    def comes_straight(self, batch: DataFrame, tasks: int) -> bool:
        """See `CallingQuery.comes_straight`."""
        return self._execution is not None and comes_straight(batch, self._execution.logicalPlan(), tasks)

    def look_back(self, missing: range) -> RunRecord:
        """See `CallingQuery.look_back`."""
        from spark_2pc_sink.sink.job.run_record import run_record  # noqa: PLC0415 - py4j, which a pure client lacks

        return run_record(self._spark, self.ids.run_id, self._execution, missing)
