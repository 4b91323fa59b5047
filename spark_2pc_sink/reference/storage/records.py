"""Records inside batches: the broker's own encoded, and any decoded when somebody has to look inside."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import RemoteProtocolError
from spark_2pc_sink.reference.storage.batches import build_batch
from spark_2pc_sink.reference.storage.errors import BatchError
from spark_2pc_sink.wire.batch_format import (
    ABORT,
    COMMIT,
    CONTROL_BIT,
    CONTROL_KEY,
    HEADER_BYTES,
    MARKER_VALUE,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Record,
    StoredMarker,
    end_marker,
    read_records,
)
from spark_2pc_sink.wire.varints import encode_varint

#: Records of a compressed batch that are looked into. Uncompressed, a batch of 1 MB holds a sixth of it at most.
COMPRESSED_RECORDS_MAX: Final = 1_000_000

#: A record to be written: key and value, None for null (a null value is a tombstone).
KeyValue: TypeAlias = tuple[bytes | None, bytes | None]


def encode_records(records: Sequence[KeyValue]) -> bytes:
    """The records section of a batch whose records all have its timestamp."""
    return b"".join(_encode_record(delta, key, value) for delta, (key, value) in enumerate(records))


def build_marker(
    *, producer_id: int, producer_epoch: int, commit: bool, coordinator_epoch: int, timestamp_ms: int
) -> bytes:
    """A control batch that ends a transaction (KIP-98, "Control Records"), at base offset 0."""
    key = CONTROL_KEY.pack(0, COMMIT if commit else ABORT)
    return build_batch(
        encode_records([(key, MARKER_VALUE.pack(0, coordinator_epoch))]),
        record_count=1,
        timestamp_ms=timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        attributes=TRANSACTIONAL_BIT | CONTROL_BIT,
    )


def read_marker(batch: bytes, header: BatchHeader) -> StoredMarker | None:
    """The end marker in a control batch; None for control records that end no transaction.

    Raises:
        BatchError: the control record cannot be read.
    """
    record = next(decode_records(batch, header), None)
    try:
        return end_marker(record)
    except RemoteProtocolError as error:
        raise BatchError(code=Code.CORRUPT_MESSAGE, detail=error.detail) from error


def decode_records(batch: bytes, header: BatchHeader) -> Iterator[Record]:
    """The records of a whole batch, decompressed if they have to be.

    Raises:
        BatchError: CORRUPT_MESSAGE, the records are not what the header announces, or are more than anyone sends: of
            a compressed batch above `COMPRESSED_RECORDS_MAX`, or larger than `decompress` lets them become.
    """
    if header.compression and header.record_count > COMPRESSED_RECORDS_MAX:
        detail = f"{header.record_count} records in a compressed batch; up to {COMPRESSED_RECORDS_MAX} are read"
        raise BatchError(code=Code.CORRUPT_MESSAGE, detail=detail)
    try:
        yield from read_records(_section(batch, header), header)
    except RemoteProtocolError as error:
        raise BatchError(code=Code.CORRUPT_MESSAGE, detail=error.detail) from error


def _section(batch: bytes, header: BatchHeader) -> bytes:
    if not header.compression:
        return batch[HEADER_BYTES:]
    # Only here: it loads pyarrow, which the server can do without until a client asks for a timestamp.
    from spark_2pc_sink.wire.compression import Compression, decompress  # noqa: PLC0415

    return decompress(memoryview(batch)[HEADER_BYTES:], Compression(header.compression))


def _encode_record(delta: int, key: bytes | None, value: bytes | None) -> bytes:
    body = b"".join((b"\x00\x00", encode_varint(delta), _sized(key), _sized(value), b"\x00"))
    return encode_varint(len(body)) + body


def _sized(data: bytes | None) -> bytes:
    return encode_varint(-1) if data is None else encode_varint(len(data)) + data
