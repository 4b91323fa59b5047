"""Rows and tables in a check: a schema against expressions and targets, as the first batch would meet them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

from jdbc_state import SqlStateStore, StoreSettings
from spark_2pc_sink.errors import ConfigurationError, StateStoreError
from spark_2pc_sink.plural import counted
from spark_2pc_sink.sink.check.findings import Finding
from spark_2pc_sink.sink.job.lane_columns import rows_of
from spark_2pc_sink.sink.job.table_loader import TableLoader
from spark_2pc_sink.sink.records.record_expressions import analyze, choose_expressions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from jdbc_state.connections import Database
    from spark_2pc_sink.options import SinkOptions
    from spark_2pc_sink.options.outputs import Lane


def rows_with(schema: StructType | str) -> DataFrame:
    """An empty frame with a given schema.

    Args:
        schema: a ``StructType``, or columns as ``CREATE TABLE`` has them.

    Raises:
        ConfigurationError: there is no Spark session, or the text is not a valid schema.
    """
    from pyspark.errors import PySparkException  # noqa: PLC0415 - the command line loads this without Spark
    from pyspark.sql import SparkSession  # noqa: PLC0415

    session = SparkSession.getActiveSession()
    if session is None:
        rule, remedy = "comparing it with the table needs a Spark session", "create the job's session first"
        raise ConfigurationError(option="schema", value=schema, rule=rule, remedy=remedy)
    try:
        return session.createDataFrame([], schema)
    except PySparkException as error:
        rule, remedy = f"it is not a schema: {error}", "pass for example 'order_id BIGINT, total DECIMAL(10, 2)'"
        raise ConfigurationError(option="schema", value=schema, rule=rule, remedy=remedy) from error


def schema_findings(options: SinkOptions, rows: DataFrame) -> Iterator[Finding]:
    """Findings about the schema of ``rows``, none of which is read."""
    with closing(SqlStateStore(options.database, StoreSettings(**options.store_settings()))) as store:
        for lane in options.lanes:
            yield _lane(options, lane, rows, store.database)


def _lane(options: SinkOptions, lane: Lane, batch: DataFrame, database: Database) -> Finding:
    subject = "rows" if lane.rows is None else f"rows of {lane.rows.table}"
    try:
        with lane.naming():
            rows = rows_of(batch, lane.source)
            expressions = analyze(rows, choose_expressions(lane, rows.schema), lane.order_by)
            if lane.rows is not None:
                TableLoader(options, lane, database).prepare(batch, expressions, create=False)
    except ConfigurationError as error:
        return Finding(subject, "problem", f"{error.option}={error.value!r}: {error.rule}", error.remedy)
    except StateStoreError as error:
        return Finding(subject, "problem", str(error))
    fitting = len(expressions.columns)
    columns = f", {counted(fitting, 'column')} {'fits' if fitting == 1 else 'fit'} the table" if lane.rows else ""
    return Finding(subject, "ok", f"the expressions fit the schema{columns}")
