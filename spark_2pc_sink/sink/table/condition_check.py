"""The check of ``upsert_where`` before the first batch: PostgreSQL plans the statement that has it, for no rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg2

from jdbc_state.sqlstate import describe
from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options.sql_text import bare_statements
from spark_2pc_sink.sink.table.catalog import driver_connection
from spark_2pc_sink.sink.table.identifiers import quote_identifier
from spark_2pc_sink.sink.table.keyed_statements import explain_statement, target_alias

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from spark_2pc_sink.sink.table.column_plan import ColumnPlan


def check_condition(connection: Connection, plan: ColumnPlan) -> None:
    """Refuse a condition that PostgreSQL does not take. The last statement of its transaction, which it may end.

    Args:
        connection: as the sink's role.
        plan: of the batch.

    Raises:
        ConfigurationError: the condition is no SQL, names a column that is not there, is no condition, or reads a
            column that the role may not read.
    """
    where = plan.conflict.where
    if where is None:
        return
    if len(bare_statements(where)) > 1:
        raise _refused(plan, "it is one condition, and a ';' ends it")
    with driver_connection(connection).cursor() as cursor:
        try:
            cursor.execute(explain_statement(plan))
        except (psycopg2.ProgrammingError, psycopg2.DataError, psycopg2.NotSupportedError) as error:
            rule = f"PostgreSQL does not take it as a condition of ON CONFLICT: {describe(error)}"
            raise _refused(plan, rule) from error


def _refused(plan: ColumnPlan, rule: str) -> ConfigurationError:
    name = quote_identifier(target_alias(plan))
    return ConfigurationError(
        option="upsert_where",
        value=plan.conflict.where,
        rule=rule,
        remedy=f"write it over EXCLUDED (the row of the batch) and {name} (the row in the table), as in "
        f"{name}.version < EXCLUDED.version",
    )
