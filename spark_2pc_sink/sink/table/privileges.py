"""The privileges of the sink's role on the target table, checked before any record is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.sink.table.catalog import driver_connection
from spark_2pc_sink.sink.table.identifiers import quote_identifier

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from spark_2pc_sink.sink.table.column_plan import ColumnPlan

# INSERT on single columns is not enough: LOCK TABLE wants the table's. An upsert reads the columns that it stages and
# compares, and writes those that are not its keys; for both, rights on these columns would do.
_PRIVILEGES = """
SELECT current_user, current_database(),
  has_table_privilege(%(table)s, 'INSERT'),
  (SELECT coalesce(bool_and(has_column_privilege(%(table)s, name, 'SELECT')), true) FROM unnest(%(read)s::text[]) name),
  (SELECT coalesce(bool_and(has_column_privilege(%(table)s, name, 'UPDATE')), true)
   FROM unnest(%(updated)s::text[]) name),
  NOT %(deletes)s OR has_table_privilege(%(table)s, 'DELETE'),
  has_database_privilege(current_database(), 'TEMPORARY'),
  row_security_active(%(table)s)
"""


def check_privileges(connection: Connection, plan: ColumnPlan) -> None:
    """Refuse a role that could not write the batch.

    Args:
        connection: as the sink's role.
        plan: what is written, and how.

    Raises:
        ConfigurationError: a privilege is missing, and the GRANT is in the message; or the role is under row-level
            security, which COPY does not support.
    """
    upsert = bool(plan.upsert_keys)
    table = str(plan.table)
    asked = {
        "table": table,
        "read": list(plan.names) if upsert else [],
        "updated": list(plan.updated) if upsert else [],
        "deletes": plan.delete is not None,
    }
    with driver_connection(connection).cursor() as cursor:
        cursor.execute(_PRIVILEGES, asked)
        [(role, database, insert, select, update, delete, temporary, row_security)] = cursor.fetchall()
    has = {"INSERT": insert, "SELECT": select, "UPDATE": update, "DELETE": delete}
    missing = [name for name, granted in has.items() if not granted]
    grants = [f"GRANT {', '.join(missing)} ON {table} TO {quote_identifier(role)}"] if missing else []
    if (upsert or plan.casts) and not temporary:
        missing.append("TEMPORARY on the database")
        grants.append(f"GRANT TEMPORARY ON DATABASE {quote_identifier(database)} TO {quote_identifier(role)}")
    if missing:
        raise ConfigurationError(
            option="table",
            value=table,
            rule=f"role {role!r} lacks {' and '.join(missing)}, which mode={plan.mode!r} needs",
            remedy=f"have the owner run: {'; '.join(grants)}",
        )
    if row_security and not upsert:
        raise ConfigurationError(
            option="table",
            value=table,
            rule=f"its row-level security applies to role {role!r}, and PostgreSQL takes no COPY then",
            remedy=f"have an administrator run: ALTER ROLE {quote_identifier(role)} BYPASSRLS; or pass mode='upsert', "
            "which inserts, and whose rows the policies check",
        )
