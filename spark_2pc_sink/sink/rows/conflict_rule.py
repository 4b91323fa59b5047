"""The conflict rule: the treatment of a row whose key is already in the table.

``upsert_late_rows="keep_newer"`` compares a row's upsert_order_by with that of the existing row, so a column of the
table has to hold it, and the database has to order that column as Spark does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from psycopg2 import sql

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options.settings import refused
from spark_2pc_sink.sink.rows.type_mapping import TEXTS, retyped
from spark_2pc_sink.sink.spark_sql import quoted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.types import DataType

    from spark_2pc_sink.sink.rows.catalog import TargetTable


@dataclass(frozen=True)
class ConflictRule:
    """A part of the plan of a batch's columns.

    Attributes:
        ignore: the existing row stays unchanged (``mode="insert_ignore"``).
        update_columns: which columns of the existing row change; None for all that are written.
        where: SQL over ``EXCLUDED`` and the table's name, as in PostgreSQL's ``ON CONFLICT … DO UPDATE … WHERE``: the
            existing row changes if this is None or true.
        unchanged: columns for which a row may carry no value (``unchanged_when``); the existing row keeps its own.
    """

    ignore: bool = False
    update_columns: tuple[str, ...] | None = None
    where: str | None = None
    unchanged: tuple[str, ...] = ()

    def updated(self, names: Sequence[str], keys: Sequence[str]) -> tuple[str, ...]:
        """The columns of the existing row that a row changes, among ``names``, all that are written."""
        if self.ignore:
            return ()
        chosen = names if self.update_columns is None else self.update_columns
        return tuple(name for name in names if name in chosen and name not in keys)

    def check(self, names: Sequence[str], keys: Sequence[str], *, order_column: str | None = None) -> None:
        """Refuse columns that cannot be updated: they are not among ``names``, all that are written, or are ``keys``.

        ``order_column`` is the column by which late rows are detected, if they are: it must be updated.
        """
        named = {"update_columns": self.update_columns or (), "unchanged_when": self.unchanged}
        for option, name in ((option, name) for option, given in named.items() for name in given):
            if name not in names or name in keys:
                why = "an upsert key, which never changes" if name in keys else "not among the columns that are written"
                others = ", ".join(other for other in names if other not in keys)
                raise refused(option, list(named[option]), f"{name!r} is {why}", f"the columns are {others}")
        if order_column is not None and order_column not in self.updated(names, keys):
            rule = f"late rows are detected by column {order_column!r}, which would never be updated"
            remedy = f"add {order_column!r}, or leave late rows at 'replace'"
            raise refused("update_columns", list(self.update_columns or ()), rule, remedy)


#: The existing row takes all values of the new one.
REPLACE: Final = ConflictRule()


_TEXTS: Final = ("text", "varchar")
#: pg_type.typname of the types that PostgreSQL orders as Spark orders their stored values. Excluded: char(n), which
#: ignores blanks, and uuid, jsonb and interval, with equal values that are spelled in several ways.
_ORDERED: Final = frozenset(
    {"bool", "int2", "int4", "int8", "float4", "float8", "numeric", "bytea", "date", "time", "timestamp", "timestamptz"}
    | set(_TEXTS)
)


@dataclass(frozen=True)
class LateRows:
    """How a late row is detected by comparison with the table's row.

    Attributes:
        column: column of the table that holds upsert_order_by.
        text: True for a text, which is compared by its bytes.
    """

    column: str
    text: bool

    def not_older(self, given: str, there: str) -> sql.Composable:
        """SQL that is true if row ``given`` may replace ``there``, the one in the table: it is as new, or newer.

        Null is less than any value, as among the rows of a batch. The result may be null instead of false.
        """
        collated = sql.SQL(' COLLATE pg_catalog."C"') if self.text else sql.SQL("")
        return sql.SQL("({there} IS NULL OR {given}{collated} >= {there}{collated})").format(
            given=sql.Identifier(given, self.column), there=sql.Identifier(there, self.column), collated=collated
        )


def order_in_table(
    order_by: str, columns: Mapping[str, str], target: TargetTable, upsert_keys: Sequence[str], order: DataType
) -> LateRows:
    """The table column that holds upsert_order_by, by the written expressions of all columns.

    Raises:
        ConfigurationError: no column holds it, or the database orders that column differently from Spark.
    """
    spellings = (order_by.strip(), quoted(order_by))
    written = {name: text.strip() for name, text in columns.items() if name not in upsert_keys}
    names = [name for name, text in written.items() if text in spellings]
    holding = [column for column in map(target.column, names) if column is not None]
    if not holding:
        raise _refused_order(
            f"the table's rows are compared by upsert_order_by={order_by!r}, and no column of {target.table} other "
            "than an upsert key holds it",
            f"write it to a column too, with columns={{..., 'updated': {order_by!r}}}",
        )
    column = next((each for each in holding if not each.is_array and each.base_type in _ORDERED), None)
    if column is None:
        column = holding[0]
        as_text = f"{retyped(target, column, 'text', order_by)}; or " if type(order).__name__ in TEXTS else ""
        raise _refused_order(
            f"column {column.name!r} of {target.table} holds upsert_order_by, and PostgreSQL does not order "
            f"{column.type_name} as Spark does",
            f"{as_text}order by a number or a timestamp",
        )
    return LateRows(column.name, text=column.base_type in _TEXTS)


def _refused_order(rule: str, remedy: str) -> ConfigurationError:
    return refused("upsert_late_rows", "keep_newer", rule, f"{remedy}; or leave it at upsert_late_rows='replace'")
