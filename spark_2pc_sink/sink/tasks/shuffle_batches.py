"""The shuffle batches: a few large rows of Spark's shuffle in place of many small ones.

An encode task makes complete record batches of its rows. Each of these becomes one row of the shuffle, a shuffle batch;
the last one of a task is its receipt, an `EncodeReceipt`. A shuffle batch says which attempt of which encode task made
it, and its place among all that this attempt has made. Spark may run an encode task again, and then the order of its
rows, and so its shuffle batches, may be others: the driver takes only what adds up to one whole attempt of each task.

Where rows of an upsert may supersede each other there is a third kind. It says of the records that one task gets which
row each of them was (`RowIndex`), and is sorted to the front of what that task gets.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from spark_2pc_sink.errors import LocalProtocolError
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.producer.record_encoder import EncodedBatch
from spark_2pc_sink.sink.contract.receipts import EncodeReceipt
from spark_2pc_sink.sink.contract.shuffle_schema import (
    FILED_KIND,
    INDEX_KIND,
    RECEIPT_KIND,
    RECORDS_KIND,
    SALT,
    SHUFFLE_SCHEMA,
)
from spark_2pc_sink.wire.framed_request import RecordBytes

if TYPE_CHECKING:
    from spark_2pc_sink.sink.tasks.shuffle_files import ShuffleFile, ShuffleFiles
    from spark_2pc_sink.wire.arrow_layout import ArrowBuffer, ArrowColumn

_DIGEST_BYTES: Final = 16
#: Where a shuffle batch begins in its file, and how many bytes it has.
_PLACE: Final = struct.Struct("!qi")
#: Bytes of payloads in one Arrow batch, or more where the last one is larger. A larger payload is not copied for it.
ROWS_BYTES: Final = 64 * 1024


@dataclass(frozen=True)
class RowIndex:
    """Which rows the next records of an encode task for one task were, in the order of these records.

    Attributes:
        identities: of each row, what it shares with others of its upsert key (`upsert_order.row_identities`).
        orders: of each row, its order key (`upsert_order.order_keys`).
    """

    identities: ArrowColumn
    orders: ArrowColumn

    def __len__(self) -> int:
        return len(self.identities)

    @property
    def nbytes(self) -> int:
        """Its bytes."""
        return int(self.identities.nbytes + self.orders.nbytes)

    @classmethod
    def joined(cls, parts: Sequence[RowIndex]) -> RowIndex:
        """Several, at least one, one behind the other."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            pa.concat_arrays([part.identities for part in parts]), pa.concat_arrays([part.orders for part in parts])
        )

    def slice(self, start: int, stop: int) -> RowIndex:
        """The rows from ``start`` up to ``stop``."""
        return RowIndex(self.identities.slice(start, stop - start), self.orders.slice(start, stop - start))

    def take(self, rows: ArrowColumn) -> RowIndex:
        """These rows, in this order."""
        return RowIndex(self.identities.take(rows), self.orders.take(rows))

    def to_bytes(self) -> ArrowBuffer:
        """As Arrow's own stream."""
        out = pa.BufferOutputStream()
        batch = pa.record_batch([self.identities, self.orders], names=["identity", "order"])
        with pa.ipc.new_stream(out, batch.schema) as writer:
            writer.write_batch(batch)
        return out.getvalue()

    @classmethod
    def of_bytes(cls, payload: ArrowBuffer) -> RowIndex:
        """The index that `to_bytes` wrote."""
        with pa.ipc.open_stream(payload) as reader:
            batch = reader.read_next_batch()
        return cls(batch.column(0), batch.column(1))


@dataclass(frozen=True)
class ShuffleBatch:
    """One row of the shuffle.

    Attributes:
        encode_task: the Spark partition id of the task that made it.
        task_attempt: tells the attempts of one encode task apart.
        number: its place among the shuffle batches of the attempt, from 0.
        content: a record batch, the index of records that a task gets, or the receipt of the task attempt, which
            comes last.
        lane: of the records.
    """

    encode_task: int
    task_attempt: int
    number: int
    content: EncodedBatch | RowIndex | EncodeReceipt
    lane: int = 0

    def cells(self, salt: int, file: ShuffleFile | None = None) -> tuple[Any, ...]:
        """The cells of its row, in the order of `SHUFFLE_SCHEMA`; the last one is the payload.

        Args:
            salt: says which task gets it.
            file: where a record batch is put; None for the row itself.
        """
        content = self.content
        place: tuple[Any, ...]
        payload: RecordBytes | ArrowBuffer
        if isinstance(content, EncodedBatch):
            digest = content.digest.to_bytes(_DIGEST_BYTES, "big")
            partition = content.partition
            kind = FILED_KIND if file else RECORDS_KIND
            place = (partition.topic, partition.partition, content.record_count, digest, content.row_key)
            payload = _PLACE.pack(*file.append(content.payload)) if file else content.payload
        else:
            kind = INDEX_KIND if isinstance(content, RowIndex) else RECEIPT_KIND
            place = (None,) * 5
            payload = content.to_bytes() if isinstance(content, RowIndex) else pickle.dumps(content)
        return (salt, self.encode_task, self.task_attempt, self.number, self.lane, kind, *place, payload)


class ShuffleRows:
    """Puts small shuffle batches together, in their order, into Arrow batches.

    Each Arrow batch costs the worker and Spark a fifth of a millisecond, whatever it holds, and a topic of 1 000
    partitions has 1 000 shuffle batches for each encode task.
    """

    def __init__(self) -> None:
        self._rows: list[tuple[Any, ...]] = []
        self._payload_bytes = 0

    def add(self, cells: tuple[Any, ...]) -> Iterator[pa.RecordBatch]:
        """Take the cells of a row; yields what has become large enough."""
        self._rows.append(cells)
        self._payload_bytes += memoryview(cells[-1]).nbytes
        if self._payload_bytes >= ROWS_BYTES:
            yield from self.finish()

    def finish(self) -> Iterator[pa.RecordBatch]:
        """The rows that are left, if any."""
        if self._rows:
            *columns, payloads = zip(*self._rows, strict=True)
            arrays = [pa.array(cells, field.type) for cells, field in zip(columns, SHUFFLE_SCHEMA, strict=False)]
            yield pa.RecordBatch.from_arrays([*arrays, _binary_column(payloads)], schema=SHUFFLE_SCHEMA)
        self._rows, self._payload_bytes = [], 0


def partitions_of(batch: pa.RecordBatch) -> set[TopicPartition]:
    """Where the records in some rows go."""
    topics, numbers = batch.column("topic").to_pylist(), batch.column("partition").to_pylist()
    return {TopicPartition(topic, number) for topic, number in zip(topics, numbers, strict=True) if topic is not None}


def read_shuffle_batches(batch: pa.RecordBatch, files: ShuffleFiles | None = None) -> Iterator[ShuffleBatch]:
    """The shuffle batches in rows that `ShuffleBatch.to_row` made; what is in no file shares the memory of the rows.

    Args:
        batch: the rows.
        files: where payloads are that are not in the rows; None where all are.

    Raises:
        BatchRetryError: a file has not what a row says.
        LocalProtocolError: a row says that its shuffle batch is in a file, and there are none.
    """
    plain = {name: batch.column(name).to_pylist() for name in batch.schema.names if name in _PLAIN}
    payloads = batch.column("payload")
    for row, kind in enumerate(plain["kind"]):
        payload = payloads[row].as_buffer()
        encode_task, task_attempt = plain["encode_task"][row], plain["task_attempt"][row]
        content: EncodedBatch | RowIndex | EncodeReceipt
        if kind == RECEIPT_KIND:
            content = pickle.loads(payload)  # noqa: S301 - written by our own tasks
        elif kind == INDEX_KIND:
            content = RowIndex.of_bytes(payload)
        else:
            if kind == FILED_KIND:
                if files is None:
                    raise LocalProtocolError(operation="read a shuffle batch", state="no files", rule="it is in one")
                payload = files.read(encode_task, task_attempt, *_PLACE.unpack(payload))
            content = EncodedBatch(
                partition=TopicPartition(plain["topic"][row], plain["partition"][row]),
                payload=payload,
                record_count=plain["records"][row],
                digest=int.from_bytes(plain["digest"][row], "big"),
                row_key=plain["row_key"][row],
            )
        yield ShuffleBatch(encode_task, task_attempt, plain["number"][row], content, plain["lane"][row])


_PLAIN: Final = frozenset(SHUFFLE_SCHEMA.names) - {SALT, "payload"}


def _binary_column(payloads: Sequence[RecordBytes | ArrowBuffer]) -> pa.Array:
    """A binary column; one row alone is the payload itself, not a copy."""
    if len(payloads) > 1:
        return pa.array([memoryview(payload) for payload in payloads], pa.binary())
    offsets = pa.array([0, memoryview(payloads[0]).nbytes], pa.int32()).buffers()[1]
    return pa.Array.from_buffers(pa.binary(), 1, [None, offsets, pa.py_buffer(payloads[0])])
