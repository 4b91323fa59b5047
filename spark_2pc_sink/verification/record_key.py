"""The key that a record of a row has, as far as the sink's own note of its key tells it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from spark_2pc_sink.options.layout import SinkLayout

#: An expression that is a column, or its text.
_COLUMN: Final = re.compile(r"(?:CAST\s*\(\s*)?(`[^`]+`|\w+)(?:\s+AS\s+STRING\s*\))?", re.IGNORECASE)
#: The column that is the key where the sink was given no expression, as with Spark's own Kafka sink.
_KEY_COLUMN: Final = "key"


@dataclass(frozen=True)
class RecordKey:
    """Where the key comes from.

    Attributes:
        column: whose text it is; None for a record without a key.
        note: what a person has to know about it; a sentence.
        unknown: why it cannot be made; '' where it can.
    """

    column: str | None
    note: str
    unknown: str = ""


def record_key(layout: SinkLayout | None, *, columns: Sequence[str], row_key: Sequence[str]) -> RecordKey:
    """The key of a record that is made of a row.

    Args:
        layout: as the sink has noted it; None where it has not.
        columns: of the row.
        row_key: those that name a row; () where nothing does.
    """
    if layout is None:
        if len(row_key) == 1:
            note = (
                f"The key of each record is the text of column {row_key[0]}. Make sure that it is what the sink sends."
            )
            return RecordKey(row_key[0], note)
        if not row_key:
            note = "The records have no key, as no column names a row. Make sure that the sink sends none."
            return RecordKey(None, note)
        return RecordKey(None, "", f"which key the columns {', '.join(row_key)} make is not known")
    if layout.key is None and _KEY_COLUMN not in columns:
        return RecordKey(None, "The records have no key, like those of the sink.")
    expression = layout.key or _KEY_COLUMN
    found = _COLUMN.fullmatch(expression.strip())
    column = None if found is None else found.group(1).strip("`")
    if column not in columns:
        return RecordKey(None, "", f"the sink's key is {expression}, which only Spark can make")
    return RecordKey(column, f"The key of each record is the text of column {column}, like that of the sink.")
