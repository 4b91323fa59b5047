"""Tombstones: records without a value, which say that their key has no row.

Whose row that is, only the record's key tells: it is the text of the column that names a row, or the JSON of all of
them.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from spark_2pc_sink.options.layout import SinkLayout
from spark_2pc_sink.verification.record_facts import as_object

#: Ends each name of ours that is used among fields of records or columns of tables. Those may have any name, but none
#: that was drawn after they were named.
OWN: Final = secrets.token_hex(8)
#: The field that marks a tombstone where a record's fields are read.
MARK: Final = f"tombstone {OWN}"


class UnknownKeyError(Exception):
    """A tombstone whose key does not tell the columns that name a row."""


@dataclass(frozen=True)
class Tombstones:
    """How tombstones are read, where the last record of a key is the table's row.

    Attributes:
        keys: the columns that name a row.
        column: the one of them whose text is the record's key; None where that is not known.
    """

    keys: tuple[str, ...]
    column: str | None = None

    @classmethod
    def of(cls, layout: SinkLayout | None, keys: Sequence[str]) -> Tombstones:
        """Those of a sink.

        Args:
            layout: as the sink has noted it; None where it has not.
            keys: the columns that name a row.
        """
        if len(keys) != 1:
            return cls(tuple(keys))
        (column,) = keys
        if layout is None or layout.key is None:
            return cls(tuple(keys), column)
        written = (layout.columns or {}).get(column, column).strip()
        meant = {form.format(sql) for sql in (column, f"`{column}`", written) for form in ("{}", "CAST({} AS STRING)")}
        return cls(tuple(keys), column if layout.key.strip() in meant else None)

    def text(self, key: bytes | None) -> bytes:
        """The JSON text that stands for a tombstone.

        Raises:
            UnknownKeyError: its key does not tell which row it means.
        """
        fields = as_object(key)
        if fields is not None and all(name in fields for name in self.keys):
            named = {name: fields[name] for name in self.keys}
        elif key is not None and self.column is not None:
            named = {self.column: key.decode(errors="replace")}
        else:
            message = f"the key {key!r} of a tombstone does not tell {', '.join(self.keys)}; pass record_columns, with "
            raise UnknownKeyError(message + "expressions over key for these columns")
        return json.dumps({**named, MARK: True}).encode()
