"""Compression of record batches, as a Java consumer reads it.

``compression.type`` of a producer, and bits 0 to 2 of a batch's attributes
(``org.apache.kafka.common.record.CompressionType``).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any, Final

import lz4.frame
import pyarrow as pa

from spark_2pc_sink.errors import ConfigurationError, RemoteProtocolError
from spark_2pc_sink.wire.arrow_layout import ArrowBuffer
from spark_2pc_sink.wire.varints import VARINT_BYTES_MAX, read_unsigned

#: The level that stands for the library's own default, where one is not given (``compression.gzip.level``, KIP-390).
DEFAULT_LEVEL: Final = -1
#: zlib's window of 2^15 bytes, plus 16 for gzip's header and trailer; plus 32 to read any of its headers.
_GZIP_WINDOW_BITS: Final = 15 + 16
_ANY_WINDOW_BITS: Final = 15 + 32

#: What one batch may become. Brokers take batches of 1 MB by default, and records shrink to a tenth or less; a batch
#: that grows by more than this was made to fill somebody's memory.
DECOMPRESSED_BYTES_MAX: Final = 64 * 1024 * 1024
#: What is decompressed at a time before its size is looked at.
_PIECE_BYTES: Final = 256 * 1024

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
#: What ``SnappyOutputStream`` of xerial's snappy-java writes first: magic, version 1, compatible from version 1 on.
_XERIAL_HEADER: Final = _XERIAL_MAGIC + (1).to_bytes(4, "big") + (1).to_bytes(4, "big")
#: Bytes before compression in one block of the framing: snappy-java's default.
_XERIAL_BLOCK_BYTES: Final = 32 * 1024
_XERIAL_LENGTH_BYTES: Final = 4


class Compression(Enum):
    """How the records of a batch are compressed; the value is the number in the batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @classmethod
    def named(cls, name: str) -> Compression:
        """The compression that Kafka's ``compression.type`` calls ``name``.

        Raises:
            ConfigurationError: Kafka has none of that name.
        """
        found = _BY_NAME.get(name)
        if found is None:
            raise ConfigurationError(
                option="compression.type",
                value=name,
                rule=f"it is one of {', '.join(_BY_NAME)}",
                remedy="choose one of these; zstd is small and fast",
            )
        return found


_BY_NAME: Final = {compression.name.lower(): compression for compression in Compression}


def compress(records: ArrowBuffer, compression: Compression, level: int | None = None) -> Any:
    """Compress a records section.

    Args:
        records: a pyarrow.Buffer.
        compression: how.
        level: of gzip, -1 to 9, and of zstd, -131072 to 22; None for the library's default. The others have none.

    Returns:
        bytes, or ``records`` itself for NONE.
    """
    return _COMPRESS[compression](records, level)


def decompress(data: memoryview, compression: Compression, *, bytes_max: int = DECOMPRESSED_BYTES_MAX) -> bytes:
    """The records section that `compress` or any other producer compressed to ``data``.

    It is decompressed piece by piece, so that data which grows beyond ``bytes_max`` takes no more memory than that.

    Args:
        data: compressed.
        compression: how.
        bytes_max: of the result; without compression nothing grows, and there is no bound.

    Raises:
        RemoteProtocolError: ``data`` is not what the compression makes, or becomes more than ``bytes_max``.
    """
    pieces = list(decompressed_pieces(data, compression, bytes_max=bytes_max))
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def decompressed_pieces(data: memoryview, compression: Compression, *, bytes_max: int) -> Iterator[bytes]:
    """What `decompress` returns, in pieces: for who only counts, and keeps none.

    Args:
        data: compressed.
        compression: how.
        bytes_max: of all pieces; without compression there is no bound.

    Raises:
        RemoteProtocolError: as `decompress`.
    """
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
        raise ValueError(f"it becomes more than {bytes_max} bytes")


def _compress_none(records: ArrowBuffer, _: int | None) -> Any:
    return records


def _compress_gzip(records: ArrowBuffer, level: int | None) -> bytes:
    compressor = zlib.compressobj(DEFAULT_LEVEL if level is None else level, zlib.DEFLATED, _GZIP_WINDOW_BITS)
    return compressor.compress(memoryview(records)) + compressor.flush()


def _compress_snappy(records: ArrowBuffer, _: int | None) -> bytes:
    codec = pa.Codec("snappy")
    parts = [_XERIAL_HEADER]
    for start in range(0, records.size, _XERIAL_BLOCK_BYTES):
        block = codec.compress(records.slice(start, min(_XERIAL_BLOCK_BYTES, records.size - start)), asbytes=True)
        parts += [len(block).to_bytes(_XERIAL_LENGTH_BYTES, "big"), block]
    return b"".join(parts)


def _compress_lz4(records: ArrowBuffer, _: int | None) -> bytes:
    # Kafka refuses linked blocks ("Dependent block stream is unsupported", Lz4BlockInputStream), which are what
    # Arrow's lz4 writes. The block size and the absence of a content checksum are those of Java's producer.
    compressed: bytes = lz4.frame.compress(
        memoryview(records),
        block_linked=False,
        block_size=lz4.frame.BLOCKSIZE_MAX64KB,
        content_checksum=False,
        store_size=False,
    )
    return compressed


def _compress_zstd(records: ArrowBuffer, level: int | None) -> bytes:
    compressed: bytes = pa.Codec("zstd", compression_level=level).compress(records, asbytes=True)
    return compressed


def _pieces_none(data: memoryview, _: int) -> Iterator[bytes]:
    yield bytes(data)


def _pieces_gzip(data: memoryview, _: int) -> Iterator[bytes]:
    stream = zlib.decompressobj(_ANY_WINDOW_BITS)
    rest: bytes | memoryview = data
    while not stream.eof:
        piece = stream.decompress(rest, _PIECE_BYTES)
        if not piece and not stream.unconsumed_tail and not stream.eof:
            raise EOFError("it ends in the middle")
        rest = stream.unconsumed_tail
        yield piece


def _pieces_snappy(data: memoryview, bytes_max: int) -> Iterator[bytes]:
    if bytes(data[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        yield _decompress_snappy_block(data, bytes_max)  # librdkafka and others write one raw block
        return
    position = len(_XERIAL_HEADER)
    while position < len(data):
        start = position + _XERIAL_LENGTH_BYTES
        position = start + int.from_bytes(data[position:start], "big")
        yield _decompress_snappy_block(data[start:position], bytes_max)


def _decompress_snappy_block(block: memoryview, bytes_max: int) -> bytes:
    size, _ = read_unsigned(block, 0, bytes_max=VARINT_BYTES_MAX)
    _must_fit(size, bytes_max)  # that much is reserved before the first byte is read
    plain: bytes = pa.Codec("snappy").decompress(block, decompressed_size=size, asbytes=True)
    return plain


def _pieces_lz4(data: memoryview, _: int) -> Iterator[bytes]:
    stream = lz4.frame.LZ4FrameDecompressor()
    rest: bytes | memoryview = data
    while not stream.eof:
        piece: bytes = stream.decompress(rest, _PIECE_BYTES)
        if not piece and not stream.eof:
            raise EOFError("it ends in the middle")
        rest = b""
        yield piece


def _pieces_zstd(data: memoryview, _: int) -> Iterator[bytes]:
    with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(data)), "zstd") as stream:
        while piece := stream.read(_PIECE_BYTES):
            yield piece


_COMPRESS: Final[Mapping[Compression, Callable[[ArrowBuffer, int | None], Any]]] = {
    Compression.NONE: _compress_none,
    Compression.GZIP: _compress_gzip,
    Compression.SNAPPY: _compress_snappy,
    Compression.LZ4: _compress_lz4,
    Compression.ZSTD: _compress_zstd,
}
#: The decompressed data in pieces of bounded size, for data and a size that no single piece may go beyond.
_PIECES: Final[Mapping[Compression, Callable[[memoryview, int], Iterator[bytes]]]] = {
    Compression.NONE: _pieces_none,
    Compression.GZIP: _pieces_gzip,
    Compression.SNAPPY: _pieces_snappy,
    Compression.LZ4: _pieces_lz4,
    Compression.ZSTD: _pieces_zstd,
}
