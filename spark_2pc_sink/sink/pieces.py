"""What the tasks that read hand to the tasks that send: a few large rows in place of many small ones.

A source task encodes its rows to complete record batches. Each of these is one row of the shuffle, a piece; the last
piece of a source is its account, an `EncodedSource`. A piece says which run of which source made it, and its place
among all pieces of that run. Spark may run a source again, and then the order of its rows, and so its pieces, may be
others: the driver takes only what adds up to whole runs, one for each source.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.producer.record_encoder import EncodedBatch
from spark_2pc_sink.sink.receipts import EncodedSource
from spark_2pc_sink.wire.messages import RecordBytes

RECORDS_KIND: Final = "records"
SOURCE_KIND: Final = "source"

#: The shuffle is by this column: see `spark_2pc_sink.sink.routing.balanced_salts`.
SALT: Final = "salt"
_SCHEMA: Final = pa.schema(
    [
        (SALT, pa.int32()),
        ("source", pa.int32()),
        ("run", pa.int64()),
        ("number", pa.int64()),
        ("kind", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("records", pa.int32()),
        ("digest", pa.binary()),
        ("row_key", pa.string()),
        ("payload", pa.binary()),
    ]
)
PIECE_DDL: Final = (
    f"{SALT} int, source int, run bigint, number bigint, kind string, topic string, partition int, records int, "
    "digest binary, row_key string, payload binary"
)
_DIGEST_BYTES: Final = 16


@dataclass(frozen=True)
class Piece:
    """One row of the shuffle.

    Attributes:
        source: the Spark partition id of the task that made it.
        run: tells the runs of one source apart.
        number: its place among the pieces of the run, from 0.
        content: a record batch, or the account of the run, which is its last piece.
    """

    source: int
    run: int
    number: int
    content: EncodedBatch | EncodedSource

    def to_row(self, salt: int) -> pa.RecordBatch:
        """The row; ``salt`` says which task gets it."""
        content = self.content
        cells: list[Any] = [salt, self.source, self.run, self.number]
        if isinstance(content, EncodedBatch):
            digest = content.digest.to_bytes(_DIGEST_BYTES, "big")
            place = (content.partition.topic, content.partition.partition)
            cells += [RECORDS_KIND, *place, content.record_count, digest, content.row_key]
            payload = content.payload
        else:
            cells += [SOURCE_KIND, None, None, None, None, None]
            payload = pickle.dumps(content)
        arrays = [pa.array([cell], field.type) for cell, field in zip(cells, _SCHEMA, strict=False)]
        return pa.RecordBatch.from_arrays([*arrays, _binary_cell(payload)], schema=_SCHEMA)


def read_pieces(batch: pa.RecordBatch) -> Iterator[Piece]:
    """The pieces in rows that `Piece.to_row` made; their payloads share the memory of the batch."""
    plain = {name: batch.column(name).to_pylist() for name in batch.schema.names if name in _PLAIN}
    payloads = batch.column("payload")
    for row, kind in enumerate(plain["kind"]):
        payload = payloads[row].as_buffer()
        content: EncodedBatch | EncodedSource
        if kind == RECORDS_KIND:
            content = EncodedBatch(
                partition=TopicPartition(plain["topic"][row], plain["partition"][row]),
                payload=payload,
                record_count=plain["records"][row],
                digest=int.from_bytes(plain["digest"][row], "big"),
                row_key=plain["row_key"][row],
            )
        else:
            content = pickle.loads(payload)  # noqa: S301 - written by our own tasks
        yield Piece(plain["source"][row], plain["run"][row], plain["number"][row], content)


_PLAIN: Final = frozenset(_SCHEMA.names) - {SALT, "payload"}


def _binary_cell(payload: RecordBytes | pa.Buffer) -> pa.Array:
    """A binary column of one row that is ``payload`` itself, not a copy."""
    offsets = pa.array([0, len(memoryview(payload))], pa.int32()).buffers()[1]
    return pa.Array.from_buffers(pa.binary(), 1, [None, offsets, pa.py_buffer(payload)])
