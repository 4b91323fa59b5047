"""Spark's side of a check: a batch's schema against expressions and tables; and whether executors can run tasks.

This module loads Spark. The command line needs it only for a schema.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from jdbc_state import SqlStateStore
from spark_2pc_sink.errors import ConfigurationError, StateStoreError
from spark_2pc_sink.options import SinkOptions
from spark_2pc_sink.options.settings import refused
from spark_2pc_sink.plural import counted
from spark_2pc_sink.sink.check.findings import EXECUTORS, Finding
from spark_2pc_sink.sink.job.executors import remedy_for, try_executors
from spark_2pc_sink.sink.job.lane_columns import rows_of
from spark_2pc_sink.sink.job.session_facts import has_other_python, session_facts, stream_endpoint
from spark_2pc_sink.sink.job.table_loader import TableLoader
from spark_2pc_sink.sink.records.record_expressions import analyze, choose_expressions
from spark_2pc_sink.sink.stream.listener import StreamLimits, StreamListener


def rows_with(schema: StructType | str) -> DataFrame:
    """An empty frame with a schema, which may be columns as ``CREATE TABLE`` has them."""
    session = SparkSession.getActiveSession()
    if session is None:
        rule, remedy = "comparing it with the table needs a Spark session", "create the job's session first"
        raise refused("schema", schema, rule, remedy)
    try:
        return session.createDataFrame([], schema)
    except PySparkException as error:
        rule, remedy = f"it is not a schema: {error}", "pass for example 'order_id BIGINT, total DECIMAL(10, 2)'"
        raise refused("schema", schema, rule, remedy) from error


def schema_findings(options: SinkOptions, batch: DataFrame) -> Iterator[Finding]:
    with closing(SqlStateStore(options.database, options.store_settings())) as store:
        for lane in options.lanes:
            subject = "rows" if lane.rows is None else f"rows of {lane.rows.table}"
            try:
                with lane.naming():
                    rows = rows_of(batch, lane.source)
                    expressions = analyze(rows, choose_expressions(lane, rows.schema), lane.order_by)
                    if lane.rows is not None:
                        TableLoader(options, lane, store.database).prepare(batch, expressions, create=False)
            except ConfigurationError as error:
                yield Finding(subject, "problem", f"{error.option}={error.value!r}: {error.rule}", error.remedy)
            except StateStoreError as error:
                yield Finding(subject, "problem", str(error))
            else:
                count = len(expressions.columns)
                fit = f", {counted(count, 'column')} {'fits' if count == 1 else 'fit'} the table" if lane.rows else ""
                yield Finding(subject, "ok", f"the expressions fit the schema{fit}")


def executor_findings(options: SinkOptions, spark: SparkSession) -> Iterator[Finding]:
    """Whether each executor can run the sink's tasks and reach the driver."""
    if not has_other_python(spark):
        yield Finding(EXECUTORS, "ok", "tasks run on the driver's machine, with its Python")
        return
    try:
        tasks = session_facts(spark, options.transactional_id).tasks_at_once()
        with StreamListener(stream_endpoint(spark, options), StreamLimits()) as listener:
            verdict = try_executors(spark, listener, tasks=tasks)
    except ConfigurationError as error:
        yield Finding(EXECUTORS, "problem", str(error.rule), error.remedy)
        return
    except PySparkException as error:
        said = str(error).strip().partition("\n")[0]
        yield Finding(EXECUTORS, "not_checked", f"Spark could not run a job on them: {said}", "see Spark's log")
        return
    remedy = remedy_for(spark)
    for sentence in verdict.faults.values():
        yield Finding(EXECUTORS, "problem", sentence, remedy)
    for sentence in verdict.warnings.values():
        yield Finding(EXECUTORS, "warning", sentence, remedy)
    if not (verdict.faults or verdict.warnings):
        yield Finding(EXECUTORS, "ok", "all can run the sink's tasks and reach the driver")
