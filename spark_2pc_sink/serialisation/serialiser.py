"""The serialiser of a record's key or value: an Arrow column is encoded for Confluent's deserializers.

Each encoding is prefixed by a zero byte and the schema's id, for Protobuf also by the message's indexes in its file
(Confluent, "Wire format").
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_2pc_sink.serialisation.avro_encoder import AvroEncoder
from spark_2pc_sink.serialisation.columns import NotEncodableError, without_nulls
from spark_2pc_sink.serialisation.protobuf_encoder import Message
from spark_2pc_sink.wire.arrow_layout import ArrowColumn, joined_rows, spread_rows
from spark_2pc_sink.wire.batch_format import encode_varint

_MAGIC = 0


@dataclass(frozen=True)
class Serialiser:
    """Encodes the keys or the values of a batch, each after the header. Can be pickled."""

    header: bytes
    encoder: AvroEncoder | Message

    def encode(self, column: ArrowColumn) -> ArrowColumn:
        """The bytes of each row, as a large_binary array; null if the column is null."""
        try:
            return self._encoded(column)
        except NotEncodableError as error:
            raise replace(error, row=self._first_refused(column)) from error

    def _encoded(self, column: ArrowColumn) -> Any:
        values, there = without_nulls(column)
        rows = joined_rows([self.header, *self.encoder.pieces(values)], len(values))
        if there is None:
            return rows
        return pc.if_else(pa.array(there), spread_rows(rows, there), pa.scalar(None, pa.large_binary()))

    def _first_refused(self, column: ArrowColumn) -> int:
        """The number of the first row that cannot be encoded; there must be one."""
        good, bad = 0, len(column)
        while bad - good > 1:
            middle = (good + bad) // 2
            try:
                self._encoded(column.slice(good, middle - good))
            except NotEncodableError:
                bad = middle
            else:
                good = middle
        return good


def header(schema_id: int, indexes: Sequence[int] | None = None) -> bytes:
    """The prefix of each encoding; ``indexes`` are Protobuf's, None for Avro."""
    begun = struct.pack(">bI", _MAGIC, schema_id)
    if indexes is None:
        return begun
    if tuple(indexes) == (0,):
        # The most common indexes, [0], are encoded as an empty list.
        return begun + encode_varint(0)
    return begun + b"".join(map(encode_varint, [len(indexes), *indexes]))
