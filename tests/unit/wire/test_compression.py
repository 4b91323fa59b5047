"""Each compression against a decompressor that is not ours, and what a Java consumer insists on."""

from __future__ import annotations

import gzip
from collections.abc import Callable

import cramjam
import lz4.frame
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_2pc_sink.errors import RemoteProtocolError
from spark_2pc_sink.wire.batch_reader import DECOMPRESSED_BYTES_MAX, decompress
from spark_2pc_sink.wire.record_batch import Compression, compress

_XERIAL_HEADER = b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"


def unsnap(data: bytes) -> bytes:
    """Read snappy-java's stream: a header of 16 bytes, then blocks behind their length (SnappyInputStream)."""
    assert data[:16] == _XERIAL_HEADER
    plain, position = b"", 16
    while position < len(data):
        size = int.from_bytes(data[position : position + 4], "big")
        plain += bytes(cramjam.snappy.decompress_raw(data[position + 4 : position + 4 + size]))
        position += 4 + size
    assert position == len(data)
    return plain


OTHERS: dict[Compression, Callable[[bytes], bytes]] = {
    Compression.NONE: bytes,
    Compression.GZIP: gzip.decompress,
    Compression.SNAPPY: unsnap,
    Compression.LZ4: lambda data: bytes(cramjam.lz4.decompress(data)),
    Compression.ZSTD: lambda data: bytes(cramjam.zstd.decompress(data)),
}
SECTIONS = st.one_of(
    st.binary(max_size=50),
    st.builds(lambda unit, times: unit * times, st.binary(min_size=1, max_size=9), st.integers(1, 20_000)),
)


@given(SECTIONS, st.sampled_from(list(Compression)))
def test_what_we_compress_others_can_read_and_so_can_we(section: bytes, compression: Compression) -> None:
    packed = memoryview(compress(pa.py_buffer(section), compression)).tobytes()
    assert OTHERS[compression](packed) == section
    assert decompress(memoryview(packed), compression) == section


def test_lz4_blocks_are_independent() -> None:
    """Kafka's Lz4BlockInputStream: "Dependent block stream is unsupported (BLOCK_INDEPENDENCE must be set)"."""
    packed = compress(pa.py_buffer(b"0123456789" * 100_000), Compression.LZ4)
    info = lz4.frame.get_frame_info(packed)
    assert info["block_linked"] is False
    assert packed[4] & 0x20, "bit 5 of FLG says that blocks are independent"


def test_snappy_is_cut_into_blocks_of_32_kib() -> None:
    packed = compress(pa.py_buffer(bytes(100_000)), Compression.SNAPPY)
    assert unsnap(packed) == bytes(100_000)
    first_block = int.from_bytes(packed[16:20], "big")
    assert len(cramjam.snappy.decompress_raw(packed[20 : 20 + first_block])) == 32 * 1024


def test_a_raw_snappy_block_is_read_too() -> None:
    raw = bytes(cramjam.snappy.compress_raw(b"librdkafka" * 1000))
    assert decompress(memoryview(raw), Compression.SNAPPY) == b"librdkafka" * 1000


@pytest.mark.parametrize(
    ("data", "compression"),
    [
        (b"no gzip", Compression.GZIP),
        (gzip.compress(b"cut", mtime=0)[:-1], Compression.GZIP),
        (bytes(lz4.frame.compress(b"cut"))[:-1], Compression.LZ4),
        (b"no lz4 frame at all", Compression.LZ4),
        (b"no zstd", Compression.ZSTD),
        (b"\xff\xff\xff\xff\xff\xff", Compression.SNAPPY),
        (b"", Compression.SNAPPY),
        (_XERIAL_HEADER + b"\x00\x00\x00\x09short", Compression.SNAPPY),
        (_XERIAL_HEADER + b"\x00\x00\x00\x04\x05\x00\x00\x00", Compression.SNAPPY),
    ],
)
def test_garbage_is_the_writers_fault(data: bytes, compression: Compression) -> None:
    with pytest.raises(RemoteProtocolError, match=compression.name):
        decompress(memoryview(data), compression)


@pytest.mark.parametrize("compression", list(Compression)[1:])
@pytest.mark.parametrize("pieces", [1, 3])
def test_what_grows_beyond_the_bound_is_refused_before_it_is_there(compression: Compression, pieces: int) -> None:
    bytes_max = pieces * 256 * 1024
    packed = memoryview(compress(pa.py_buffer(bytes(bytes_max)), compression)).tobytes()
    assert decompress(memoryview(packed), compression, bytes_max=bytes_max) == bytes(bytes_max)
    with pytest.raises(RemoteProtocolError, match=f"{compression.name} .* more than {bytes_max - 1} bytes"):
        decompress(memoryview(packed), compression, bytes_max=bytes_max - 1)


@pytest.mark.parametrize("compression", list(Compression)[1:])
def test_a_bomb_costs_no_more_than_the_bound(compression: Compression) -> None:
    """D13."""
    bomb = memoryview(compress(pa.py_buffer(bytes(DECOMPRESSED_BYTES_MAX + 1)), compression))
    with pytest.raises(RemoteProtocolError, match=f"more than {DECOMPRESSED_BYTES_MAX} bytes"):
        decompress(bomb.cast("B"), compression)
