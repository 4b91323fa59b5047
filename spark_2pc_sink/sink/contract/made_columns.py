"""The columns that Spark makes beside those of the table, of which tasks build the JSON of a record (`record_json`).

What is nested is JSON in most tables, too: where that is the same text, or differs by fields that are null, tasks take
it from there.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from spark_2pc_sink.sink.contract.record_json import NESTED, made_sql
from spark_2pc_sink.sink.table.json_sql import json_sql, parts_of
from spark_2pc_sink.sink.table.spark_sql import quoted
from spark_2pc_sink.sink.table.text_guards import guarded

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from pyspark.sql.types import DataType, StructType

    from spark_2pc_sink.sink.contract.record_json import JsonField

#: Types of which `json_sql` makes what Spark's to_json does: all but timestamps, and what later versions may add.
_SAME_IN_TABLES: Final = frozenset(
    {
        *("BooleanType", "ByteType", "ShortType", "IntegerType", "LongType", "FloatType", "DoubleType", "DecimalType"),
        *("StringType", "CharType", "VarcharType", "BinaryType", "DateType", "ArrayType", "MapType", "StructType"),
    }
)


class TableText(Enum):
    """How the JSON of a column in the table is that of the record."""

    OTHER = "it is another text"
    SAME = "it is the same"
    SAME_WITHOUT_NULL = "it is the same where no field is null: the record leaves those out"


@dataclass(frozen=True)
class MadeColumn:
    """One column that Spark makes.

    Attributes:
        name: of it.
        source: the column of the table of which it is made.
        sql: over the batch.
        guarded: tasks refuse it where it is no text.
        in_table: what the JSON of the table's column is to it.
        table_sql: of the JSON of the table's column.
    """

    name: str
    source: str
    sql: str
    guarded: bool = False
    in_table: TableText = TableText.OTHER
    table_sql: str = ""

    def select(self, json_columns: Collection[str]) -> str | None:
        """SQL of what tasks need beside the table's columns, with its name; None where these say it all.

        Args:
            json_columns: the columns of the table that tasks get as JSON.
        """
        shared = self.in_table if self.source in json_columns else TableText.OTHER
        if shared is TableText.SAME:
            return None
        sql = self.sql
        if shared is TableText.SAME_WITHOUT_NULL:
            # Spark evaluates what the table gets once (spark.sql.subexpressionElimination.enabled).
            sql = f"CASE WHEN contains({self.table_sql}, 'null') THEN {self.sql} END"
        return f"{sql} AS {self.name}"


def made_columns(fields: Iterable[JsonField], schema: StructType) -> tuple[MadeColumn, ...]:
    """Those that the fields need.

    Args:
        fields: from `record_json.json_fields`.
        schema: of the batch.
    """
    return tuple(_made(each, each.made, schema[each.column].dataType) for each in fields if each.made is not None)


def _made(field: JsonField, name: str, kind: DataType) -> MadeColumn:
    sql = made_sql(field)
    if field.kind != NESTED:
        return MadeColumn(name, field.column, sql)
    source = quoted(field.column)
    marked = guarded(sql, [(source, kind)])
    return MadeColumn(name, field.column, marked, marked != sql, _in_table(field, kind), json_sql(source, kind))


def _in_table(field: JsonField, kind: DataType) -> TableText:
    parts = {type(part).__name__ for part in parts_of(kind)}
    if not parts <= _SAME_IN_TABLES:
        return TableText.OTHER
    return TableText.SAME if field.keeps_null or "StructType" not in parts else TableText.SAME_WITHOUT_NULL
