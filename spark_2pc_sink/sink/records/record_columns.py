"""Columns from which a task builds records: names shared by driver and tasks, and keys also stored in the table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from spark_2pc_sink.wire.arrow_layout import ArrowColumn

if TYPE_CHECKING:
    from spark_2pc_sink.options.outputs import Part


TOPIC = "_2pc_topic"
PARTITION = "_2pc_partition"
KEY = "_2pc_key"
VALUE = "_2pc_value"
HEADERS = "_2pc_headers"
#: True for a record without a value.
TOMBSTONE = "_2pc_tombstone"
#: The columns that may have a format, with their names for users.
PARTS: Final[Mapping[str, Part]] = {KEY: "key", VALUE: "value"}
#: True for a row without a record, because another row of its upsert key has a greater order.
SUPERSEDED = "_2pc_superseded"


#: Spark types whose values are used as key bytes unchanged.
BYTES_TYPES: Final = frozenset({"string", "binary"})
#: Spark types that Arrow casts to exactly the same text as Spark.
ARROW_TEXT_TYPES: Final = frozenset({"boolean", "tinyint", "smallint", "int", "bigint"})


def key_expressions(kind: str) -> tuple[str, ...]:
    """SQL, with {} for a column, equivalent to `key_values` of that column; empty if only Spark can compute it."""
    as_it_is = ("{}",) if kind in BYTES_TYPES else ()
    # Binary is excluded: Spark's conversion of invalid UTF-8 to text is its own.
    as_text = ("CAST({} AS STRING)",) if kind == "string" or kind in ARROW_TEXT_TYPES else ()
    return as_it_is + as_text


def key_values(column: ArrowColumn) -> ArrowColumn:
    """The column itself if it holds text or bytes, else its text; null stays null."""
    kind = column.type
    numbers = pa.types.is_integer(kind) or pa.types.is_boolean(kind)
    return column.cast(pa.string()) if numbers else column
