"""The page of column types: which values of Spark go into which columns of PostgreSQL, asked of the planner itself."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from pyspark.sql import types as t

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options import Rows
from spark_2pc_sink.options.names import TableName
from spark_2pc_sink.sink.rows.catalog import TargetColumn, TargetTable
from spark_2pc_sink.sink.rows.column_plan import plan_columns
from tools.reference_pages.markdown import code, table

_COPIED, _CHECKED, _CAST = "copied", "checked", "cast"
_PAGE: Final = """\
# Column types

`make reference-pages` makes this page by asking the sink's own planner. A test compares it. An existing table may have
columns of any type. A value is

- **copied** as it is;
- **checked** first, and its row is a [bad row](../bad-rows.md) if the column cannot hold it unchanged;
- **cast**: copied as text into a temporary table, of which the database makes the value with the type's input function.
  The role needs TEMPORARY on the database, also to append. A text that the type does not take is a bad row. It is
  slower: for a million rows of a bigint and an inet, PostgreSQL took about 2 s longer than with a text column to append
  them (3 s instead of 1 s), and about 3 s longer by key (10.5 s instead of 7.5 s), on a busy machine of two cores;
- **refused** before anything is written, where it could change its meaning. The error has the remedy that is shown here
  for a column `x`.

A domain is treated as the type below it, and its constraints refuse rows. Lengths and precisions, as of `varchar(n)`,
`bit(n)` and `numeric(p,s)`, are checked: nothing is cut off or rounded. Text goes in as PostgreSQL reads it: `timetz`
keeps an offset, `time` ignores it, and `money` is read by `lc_monetary`. A new table gets the types
[of this list](../target-table.md#a-table-that-the-sink-creates).

## From Spark to PostgreSQL

Structs, maps, variants and arrays go into `json` and `jsonb`. For a column of a type that takes neither them nor their
JSON, the error has the `ALTER TABLE … ALTER COLUMN x TYPE jsonb USING to_jsonb(x)`.

{types}

## Arrays

An array column takes a one-dimensional array of what a column of its element type takes. Text is an array literal,
`{{1,2}}`, and is cast. Elements of domains take text, which is cast.

{arrays}
"""

_SPARK: Final = (
    t.BooleanType(),
    t.ByteType(),
    t.ShortType(),
    t.IntegerType(),
    t.LongType(),
    t.FloatType(),
    t.DoubleType(),
    t.DecimalType(10, 2),
    t.StringType(),
    t.BinaryType(),
    t.DateType(),
    t.TimestampType(),
    t.TimestampNTZType(),
    t.TimeType(),
    t.DayTimeIntervalType(),
    t.YearMonthIntervalType(),
    t.CalendarIntervalType(),
    t.ArrayType(t.StringType()),
    t.MapType(t.StringType(), t.StringType()),
    t.VariantType(),
    t.StructType([t.StructField("a", t.IntegerType())]),
)
#: Types as SQL has them, to `pg_type.typname`; '' for a type that is not built in.
_POSTGRESQL: Final[Mapping[str, str]] = {
    "boolean": "bool", "smallint": "int2", "integer": "int4", "bigint": "int8", "real": "float4",
    "double precision": "float8", "numeric": "numeric", "text, varchar, char": "text", "json": "json", "jsonb": "jsonb",
    "uuid": "uuid", "bytea": "bytea", "date": "date", "timestamp": "timestamp", "timestamptz": "timestamptz",
    "time": "time", "timetz": "timetz", "interval": "interval", "an enum, citext": "", "name": "name", '"char"': "char",
    "xml, inet, cidr, macaddr, macaddr8, money, bit, varbit": "inet",
    "point and other geometric types, tsvector, tsquery, jsonpath": "point",
    "oid, regclass and other reg* types, pg_lsn, xid8": "oid",
    "ranges, multiranges, composite types, hstore, ltree, types of other extensions": "range",
}  # fmt: skip
_ARRAYS: Final = {"integer": "int4", "text": "text", "inet": "inet", "jsonb": "jsonb"}
_ARRAY_VALUES: Final = (
    t.ArrayType(t.IntegerType()),
    t.ArrayType(t.LongType()),
    t.ArrayType(t.StringType()),
    t.StringType(),
    t.IntegerType(),
    t.ArrayType(t.ArrayType(t.IntegerType())),
    t.ArrayType(_SPARK[-1]),
)
_READS_TEXT: Final = ("an enum, citext", "name")
_EXPRESSION: Final = re.compile(r"columns=\{'x': '(.*)', \.\.\.\}")
_ALTER: Final = "alter it to jsonb"


def column_types_page() -> str:
    """The page as Markdown."""
    return _PAGE.format(
        types=_answers({sql: _column(sql, base) for sql, base in _POSTGRESQL.items()}, _SPARK),
        arrays=_answers(
            {f"{sql}[]": _column(f"{sql}[]", base, is_array=True) for sql, base in _ARRAYS.items()}, _ARRAY_VALUES
        ),
    )


def _column(sql: str, base: str, *, is_array: bool = False) -> TargetColumn:
    return TargetColumn("x", sql, base, is_array=is_array, element_oid=int(is_array), reads_text=sql in _READS_TEXT)


def _answers(columns: Mapping[str, TargetColumn], values: tuple[t.DataType, ...]) -> str:
    """A row for each type of PostgreSQL: which types of Spark are copied, checked, cast, and refused."""
    rows = []
    for sql, column in columns.items():
        found: dict[str, list[str]] = {}
        for kind in values:
            found.setdefault(_answer(kind, column), []).append(kind.simpleString())
        taken = [", ".join(found.pop(way, ())) for way in (_COPIED, _CHECKED, _CAST)]
        # What most types are told comes last, and of nested ones it is said once, above.
        told = sorted(((kinds, said) for said, kinds in found.items() if said != _ALTER), key=lambda each: len(each[0]))
        refused = [f"{', '.join(kinds) if kinds is not told[-1][0] else 'others'}: {said}" for kinds, said in told]
        rows.append((sql, *taken, "; ".join(refused)))
    return table(("PostgreSQL", _COPIED, _CHECKED, _CAST, "refused, and the remedy"), rows)


def _answer(kind: t.DataType, column: TargetColumn) -> str:
    """How a value is taken, or what its refusal says to do."""
    target = TargetTable(TableName("t", "public"), (column,))
    try:
        [planned] = plan_columns([("x", kind)], target, Rows("t")).columns
    except ConfigurationError as error:
        if 'TYPE jsonb USING to_jsonb("x")' in error.remedy:
            return _ALTER
        found = _EXPRESSION.search(error.remedy)
        return code(found[1].replace("`", "")) if found and "makes" not in found[1] else "an expression of your own"
    if planned.storage.cast:
        return _CAST
    return _CHECKED if planned.storage.checks else _COPIED
