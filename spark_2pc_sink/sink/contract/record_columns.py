"""The columns of which a task makes records: names that driver and tasks share, and a key that the table has too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_2pc_sink.options.outputs import Part
    from spark_2pc_sink.wire.arrow_layout import ArrowColumn


TOPIC = "_2pc_topic"
PARTITION = "_2pc_partition"
KEY = "_2pc_key"
VALUE = "_2pc_value"
HEADERS = "_2pc_headers"
#: True for a record without its value.
TOMBSTONE = "_2pc_tombstone"
#: The columns that may have a format, and what users call them.
PARTS: Final[Mapping[str, Part]] = {KEY: "key", VALUE: "value"}
#: True for a row of which no record is made: another one of its upsert key has a greater order.
SUPERSEDED = "_2pc_superseded"


#: Spark types that are the bytes of a key as they are.
BYTES_TYPES: Final = frozenset({"string", "binary"})
#: Spark types whose text Arrow's casts make byte by byte like Spark's.
ARROW_TEXT_TYPES: Final = frozenset({"boolean", "tinyint", "smallint", "int", "bigint"})


def key_expressions(kind: str) -> tuple[str, ...]:
    """The SQL, with {} for a column, whose results `key_values` makes of that column; none where only Spark can.

    Args:
        kind: the column's Spark type, as ``DataType.simpleString()`` gives it.
    """
    as_it_is = ("{}",) if kind in BYTES_TYPES else ()
    # Binary is not in it: as text, bytes that are not UTF-8 are Spark's own affair.
    as_text = ("CAST({} AS STRING)",) if kind == "string" or kind in ARROW_TEXT_TYPES else ()
    return as_it_is + as_text


def key_values(column: ArrowColumn) -> ArrowColumn:
    """The column itself where it holds text or bytes, else its text; null where it is null."""
    kind = column.type
    numbers = pa.types.is_integer(kind) or pa.types.is_boolean(kind)
    return column.cast(pa.string()) if numbers else column
