"""Record batch reader: validates headers, and decompresses records within bounds.

Executors read no batches, so the encoders do not import this module.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import Any, Final

import lz4.frame
import pyarrow as pa

from spark_2pc_sink.errors import RemoteProtocolError
from spark_2pc_sink.wire.arrow_layout import INT32_BYTES_MAX, ZERO_BYTES, ArrowBuffer
from spark_2pc_sink.wire.batch_format import (
    COMPRESSION_MAX,
    HEADER_BYTES,
    LOG_OVERHEAD,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    VARINT_BYTES_MAX,
    BatchHeader,
    Buffer,
    Record,
    StoredMarker,
    broken,
    end_marker,
    read_bytes,
    read_header,
    read_records,
    read_unsigned,
    read_varint,
)
from spark_2pc_sink.wire.record_batch import XERIAL_HEADER, XERIAL_LENGTH_BYTES, XERIAL_MAGIC, Compression, checksum

#: zlib's window of 2^15 bytes, plus 32 to read any of its headers.
_ANY_WINDOW_BITS: Final = 15 + 32
#: Largest decompressed batch. Brokers accept batches of 1 MB by default, and records shrink to a tenth or less; a batch
#: that grows by more than this is a decompression bomb.
DECOMPRESSED_BYTES_MAX: Final = 64 * 1024 * 1024
#: Bytes decompressed at a time between size checks.
_PIECE_BYTES: Final = 256 * 1024


class DecodedBatch(BatchHeader):
    """A batch header, checked against the CRC, with its undecoded records, still compressed."""

    payload: memoryview

    def records(self) -> Iterator[Record]:
        return read_records(decompress(self.payload, Compression(self.compression)), self)

    @property
    def marker(self) -> StoredMarker | None:
        """The end marker in this batch; None for data, and for control records that do not end a transaction."""
        return end_marker(next(self.records(), None)) if self.control else None


def decode_record_batches(data: Buffer) -> Iterator[DecodedBatch]:
    """The whole batches in order, without a truncated last one. RemoteProtocolError: before v2, wrong length or CRC."""
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
        raise broken(batch.base_offset, f"it has format v{batch.magic}; only v{MAGIC} is supported")
    computed = checksum(view)
    if computed != batch.crc:
        raise broken(batch.base_offset, f"it has CRC {batch.crc:#010x}, but that of its bytes is {computed:#010x}")
    if batch.compression > COMPRESSION_MAX:
        raise broken(batch.base_offset, f"it has the unknown compression {batch.compression}")
    return batch


def decompress(data: memoryview, compression: Compression, *, bytes_max: int = DECOMPRESSED_BYTES_MAX) -> bytes:
    """Decompress a records section produced by `compress` or any other producer.

    Decompression is incremental, so that data which grows beyond ``bytes_max`` takes no more memory than that, and is a
    RemoteProtocolError, as are invalid data. Without compression there is no limit.
    """
    pieces = list(decompressed_pieces(data, compression, bytes_max=bytes_max))
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def decompressed_pieces(data: memoryview, compression: Compression, *, bytes_max: int) -> Iterator[bytes]:
    """The result of `decompress`, in pieces: for callers that only count."""
    size = 0
    try:
        for piece in _PIECES[compression](data, bytes_max):
            size += len(piece)
            if compression is not Compression.NONE:
                _must_fit(size, bytes_max)
            yield piece
    except (zlib.error, RuntimeError, ValueError, IndexError, OSError, EOFError) as error:
        raise RemoteProtocolError(
            peer="the writer of a record batch", detail=f"its {compression.name} data cannot be read: {error}"
        ) from error


def _must_fit(size: int, bytes_max: int) -> None:
    if size > bytes_max:
        raise ValueError(f"it decompresses to more than {bytes_max} bytes")


def _pieces_of(stream: Any, data: memoryview) -> Iterator[bytes]:
    """The data decompressed by zlib, which returns what it has not read yet, or by lz4, which keeps that itself."""
    rest: bytes | memoryview = data
    while not stream.eof:
        piece = stream.decompress(rest, _PIECE_BYTES)
        rest = getattr(stream, "unconsumed_tail", b"")
        if not piece and not rest and not stream.eof:
            raise EOFError("it ends in the middle")
        yield piece


def _pieces_snappy(data: memoryview, bytes_max: int) -> Iterator[bytes]:
    if bytes(data[: len(XERIAL_MAGIC)]) != XERIAL_MAGIC:
        yield _decompress_snappy_block(data, bytes_max)  # librdkafka and others write one raw block
        return
    position = len(XERIAL_HEADER)
    while position < len(data):
        start = position + XERIAL_LENGTH_BYTES
        position = start + int.from_bytes(data[position:start], "big")
        yield _decompress_snappy_block(data[start:position], bytes_max)


def _decompress_snappy_block(block: memoryview, bytes_max: int) -> bytes:
    size, _ = read_unsigned(block, 0, bytes_max=VARINT_BYTES_MAX)
    _must_fit(size, bytes_max)  # this much is allocated before the first byte is read
    plain: bytes = pa.Codec("snappy").decompress(block, decompressed_size=size, asbytes=True)
    return plain


def _pieces_zstd(data: memoryview, _: int) -> Iterator[bytes]:
    with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(data)), "zstd") as stream:
        while piece := stream.read(_PIECE_BYTES):
            yield piece


#: The decompressed data in pieces of bounded size.
_PIECES: Final[Mapping[Compression, Callable[[memoryview, int], Iterator[bytes]]]] = {
    Compression.NONE: lambda data, _: iter((bytes(data),)),
    Compression.GZIP: lambda data, _: _pieces_of(zlib.decompressobj(_ANY_WINDOW_BITS), data),
    Compression.SNAPPY: _pieces_snappy,
    Compression.LZ4: lambda data, _: _pieces_of(lz4.frame.LZ4FrameDecompressor(), data),
    Compression.ZSTD: _pieces_zstd,
}


# --- the contents of records, by which a broker's refusal of some is traced to rows ----------------------------------


def contents_of(batch: Buffer | ArrowBuffer, record_count: int) -> list[bytes]:
    """Each record's key, value and headers, length-prefixed, wherever it is in a batch of `encode_unassigned_batch`."""
    view = memoryview(batch).cast("B")
    compression = Compression(read_header(view).compression)
    # The package's own batch: it had this size before compression.
    section = decompress(view[HEADER_BYTES:], compression, bytes_max=INT32_BYTES_MAX)
    contents = []
    position = 0
    for _ in range(record_count):
        length, start = read_varint(section, position)
        position = start + length
        _, content = read_varint(section, start + ZERO_BYTES)  # the offset delta, after two zeros
        contents.append(section[content:position])
    return contents


def key_and_value(content: bytes) -> tuple[bytes | None, bytes | None]:
    key, start = read_bytes(content, 0)
    return key, read_bytes(content, start)[0]


def content_digests(contents: Iterable[bytes]) -> frozenset[bytes]:
    """The digests in `RecordRefusedError`, for records from `contents_of`."""
    return frozenset(blake2b(content, digest_size=16).digest() for content in contents)
