"""Record batches of the writer and the readers of logs: written from an encoded records section, and read back."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

import google_crc32c
import pyarrow as pa

from spark_2pc_sink.errors import LocalProtocolError
from spark_2pc_sink.ids import NO_PRODUCER_ID, ProducerIdAndEpoch
from spark_2pc_sink.wire.arrow_layout import INT32_BYTES_MAX, ArrowBuffer
from spark_2pc_sink.wire.arrow_records import RecordsSection
from spark_2pc_sink.wire.batch_format import (
    COMPRESSION_MAX,
    CRC_END,
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    NO_LEADER_EPOCH,
    NO_SEQUENCE,
    SEQUENCE_COUNT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Buffer,
    Record,
    StoredMarker,
    broken,
    end_marker,
    read_header,
    read_records,
)
from spark_2pc_sink.wire.compression import Compression, compress, decompress

_NO_PRODUCER_EPOCH: Final = -1
_CRC: Final = struct.Struct(">I")
_PRODUCER: Final = struct.Struct(">qhi")  # producer id, producer epoch, base sequence
_PRODUCER_POSITION: Final = CRC_END + struct.calcsize(">hiqq")


class DecodedBatch(BatchHeader):
    """The header of one batch, checked against its CRC, and its records still as they are.

    Attributes:
        payload: the records section, compressed.
    """

    payload: memoryview

    def records(self) -> Iterator[Record]:
        """Decode the records, see `read_records`.

        Raises:
            RemoteProtocolError: the records are not what the header announces.
        """
        return read_records(decompress(self.payload, Compression(self.compression)), self)

    @property
    def marker(self) -> StoredMarker | None:
        """The end marker in this batch; None for data, and for control records that end no transaction.

        Raises:
            RemoteProtocolError: a control batch whose records cannot be read.
        """
        return end_marker(next(self.records(), None)) if self.control else None


def encode_unassigned_batch(
    section: RecordsSection,
    *,
    timestamp_ms: int,
    compression: str,
    level: int | None = None,
) -> memoryview:
    """A batch of a transaction that nobody sends yet.

    `assign_producer` fills in who, from which sequence number, and the CRC. So the costly part can be made anywhere,
    and the sequence be given out by the one who sends.

    Args:
        section: its records; at least one. Without compression the batch is made in its `RecordsSection.frame`.
        timestamp_ms: of every record, milliseconds since 1970.
        compression: none, gzip, snappy, lz4 or zstd.
        level: of the compression, see `compress`.

    Raises:
        ConfigurationError: an unknown compression.
        LocalProtocolError: no records, or a length that the format cannot say.
    """
    if section.record_count == 0:
        raise LocalProtocolError(
            operation="encode a record batch", state="no records", rule="a batch has at least one record"
        )
    codec = Compression.named(compression)
    payload = compress(section.buffer, codec, level)
    batch_bytes = HEADER_BYTES + len(payload)
    if batch_bytes > INT32_BYTES_MAX:
        raise LocalProtocolError(
            operation="encode a record batch",
            state=f"{batch_bytes} bytes",
            rule=f"a batch has at most {INT32_BYTES_MAX} bytes: cut the rows before",
        )
    header = HEADER.pack(
        *BatchHeader(
            base_offset=0,
            length=batch_bytes - LOG_OVERHEAD_BYTES,
            leader_epoch=NO_LEADER_EPOCH,
            magic=MAGIC,
            crc=0,
            attributes=codec.value | TRANSACTIONAL_BIT,
            last_offset_delta=section.record_count - 1,
            base_timestamp_ms=timestamp_ms,
            max_timestamp_ms=timestamp_ms,
            producer_id=NO_PRODUCER_ID,
            producer_epoch=_NO_PRODUCER_EPOCH,
            base_sequence=NO_SEQUENCE,
            record_count=section.record_count,
        )
    )
    if codec is Compression.NONE:
        section.frame[:HEADER_BYTES] = header
        return section.frame
    return memoryview(bytearray().join((header, payload)))


def assign_producer(
    batch: bytes | memoryview | ArrowBuffer, *, producer: ProducerIdAndEpoch, base_sequence: int
) -> memoryview:
    """An encoded batch that comes from ``producer``, its first record with ``base_sequence``.

    Args:
        batch: from `encode_unassigned_batch`, or any batch of format v2. What can be written is changed in place, of
            other memory a copy is made.
        producer: the pair that the broker fences by.
        base_sequence: of the first record, 0 to 2147483647; the others follow, wrapping round.

    Raises:
        LocalProtocolError: a sequence number that the format cannot say.
    """
    if not 0 <= base_sequence < SEQUENCE_COUNT:
        raise LocalProtocolError(
            operation="encode a record batch",
            state=f"sequence {base_sequence}",
            rule=f"a sequence number is from 0 to {SEQUENCE_COUNT - 1}",
        )
    view = memoryview(batch).cast("B")
    own = memoryview(bytearray(view)) if view.readonly else view
    _PRODUCER.pack_into(own, _PRODUCER_POSITION, producer.producer_id, producer.epoch, base_sequence)
    _CRC.pack_into(own, CRC_END - _CRC.size, _checksum(own))
    return own


def decode_record_batches(data: Buffer) -> Iterator[DecodedBatch]:
    """The whole batches in ``data``, in order. A batch cut off at the end, as Fetch returns it, is left out.

    Raises:
        RemoteProtocolError: a batch of a format before v2, or one whose length or CRC is wrong.
    """
    view = memoryview(data).cast("B")
    position = 0
    while position + LOG_OVERHEAD_BYTES <= len(view):
        base_offset, length = LOG_OVERHEAD.unpack_from(view, position)
        if length < HEADER_BYTES - LOG_OVERHEAD_BYTES:
            raise broken(base_offset, f"its length is {length}: too short for format v2")
        stop = position + LOG_OVERHEAD_BYTES + length
        if stop > len(view):
            return
        yield _decode(view[position:stop])
        position = stop


def _decode(view: memoryview) -> DecodedBatch:
    batch = DecodedBatch._make(read_header(view))
    batch.payload = view[HEADER_BYTES:]
    if batch.magic != MAGIC:
        raise broken(batch.base_offset, f"it has format v{batch.magic}: this package reads v{MAGIC}")
    computed = _checksum(view)
    if computed != batch.crc:
        raise broken(batch.base_offset, f"it has CRC {batch.crc:#010x}, its bytes make {computed:#010x}")
    if batch.compression > COMPRESSION_MAX:
        raise broken(batch.base_offset, f"it has the unknown compression {batch.compression}")
    return batch


def _checksum(batch: memoryview) -> int:
    return int(google_crc32c.value(pa.py_buffer(batch[CRC_END:])))
