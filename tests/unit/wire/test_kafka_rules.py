"""Compression, partitions of keys and error codes, against implementations and answers that are not ours."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cramjam
import lz4.frame
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import LocalProtocolError, RemoteProtocolError
from spark_2pc_sink.kafka import record_encoder
from spark_2pc_sink.kafka.record_encoder import NO_PARTITION, murmur2, partition_for_keys
from spark_2pc_sink.wire.batch_reader import DECOMPRESSED_BYTES_MAX, decompress
from spark_2pc_sink.wire.messages import ERROR_CODES, describe_error
from spark_2pc_sink.wire.record_batch import Compression, compress
from tests.unit.wire.rows import LAYOUTS

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


VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "murmur2.json").read_text())


def murmur2_of_one_key(key: bytes) -> int:
    """The algorithm of ``org.apache.kafka.common.utils.Utils.murmur2``, byte by byte."""
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    hashed = 0x9747B28C ^ len(key)
    whole = len(key) // 4 * 4
    for position in range(0, whole, 4):
        word = int.from_bytes(key[position : position + 4], "little") * m & mask
        word = (word ^ word >> 24) * m & mask
        hashed = (hashed * m & mask) ^ word
    if rest := key[whole:]:
        hashed = (hashed ^ int.from_bytes(rest, "little")) * m & mask
    hashed = (hashed ^ hashed >> 13) * m & mask
    hashed ^= hashed >> 15
    return hashed - (1 << 32) if hashed >> 31 else hashed


def test_every_vector_of_the_java_client() -> None:
    keys = pa.array([bytes.fromhex(vector["key"]) for vector in VECTORS["vectors"]])
    assert len(keys) >= 500
    assert murmur2(keys).tolist() == [vector["murmur2"] for vector in VECTORS["vectors"]]
    for index, count in enumerate(VECTORS["partition_counts"]):
        expected = [vector["partitions"][index] for vector in VECTORS["vectors"]]
        assert partition_for_keys(keys, count).tolist() == expected


@given(
    st.lists(st.none() | st.binary(max_size=70), max_size=30),
    st.sampled_from(sorted(LAYOUTS)),
    st.sampled_from([pa.binary(), pa.large_binary()]),
    st.integers(1, 100),
)
def test_columns_of_any_layout(items: list[bytes | None], layout: str, kind: Any, count: int) -> None:
    keys = LAYOUTS[layout](pa.array(items, kind))
    assert murmur2(keys).tolist() == [murmur2_of_one_key(item or b"") for item in items]
    assert partition_for_keys(keys, count).tolist() == [
        NO_PARTITION if item is None else (murmur2_of_one_key(item) & 0x7FFFFFFF) % count for item in items
    ]


#: Around what changes the way: how many keys are few, and how many words are many.
LENGTHS = st.one_of(st.integers(0, 40), st.integers(1_000, 1_100), st.integers(4_000, 5_000))


@given(st.lists(st.none() | LENGTHS, max_size=5), st.integers(0, 40), LENGTHS, st.integers(0, 2**32), st.integers(0, 3))
def test_keys_of_very_different_lengths(
    lengths: list[int | None], alike: int, length: int, seed: int, skipped: int
) -> None:
    """A few long ones among short ones, and as many long ones that they are not few."""
    chance = random.Random(seed)
    items = [None if each is None else chance.randbytes(each) for each in [*lengths, *[length] * alike]]
    chance.shuffle(items)
    keys = pa.array([b"x" * skipped, *items], pa.binary()).slice(1)  # so that words are not aligned
    assert murmur2(keys).tolist() == [murmur2_of_one_key(item or b"") for item in items]


def test_a_long_key_takes_no_step_of_numpys_for_each_of_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key of 10 MB took minutes, before the topic refused it."""
    steps: list[int] = []
    original = record_encoder._words

    class Counting:
        def __init__(self, layout: Any) -> None:
            self._words = original(layout)

        def __getitem__(self, positions: Any) -> Any:
            steps.append(len(positions))
            return self._words[positions]

    monkeypatch.setattr(record_encoder, "_words", Counting)
    murmur2(pa.array([b"x" * 1_000_000, *[b"k" * 20] * 100]))
    assert steps == [101] * 6


def test_a_topic_without_partitions_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match="at least one partition"):
        partition_for_keys(pa.array([b"k"]), 0)


def test_keys_that_are_not_bytes_are_refused() -> None:
    with pytest.raises(LocalProtocolError, match="binary or string"):
        murmur2(pa.array([1, 2]))


def test_every_code_with_a_branch_has_kafkas_name() -> None:
    assert {code: describe_error(code).name for code in Code} == {code: code.name for code in Code}


@pytest.mark.parametrize(
    ("code", "retriable"),
    [(14, True), (15, True), (16, True), (51, True), (6, True), (2, True), (45, False), (47, False), (48, False),
     (49, False), (53, False), (90, False), (105, False), (120, False), (0, False), (-1, False)],
)  # fmt: skip
def test_retriable_is_what_kafkas_clients_retry(code: int, retriable: bool) -> None:
    assert describe_error(code).retriable is retriable


def test_every_code_of_kafka_4_4_is_named() -> None:
    """Kafka 4.4.0 has -1 to 136, without a gap."""
    assert set(range(-1, 137)) <= set(ERROR_CODES)


def test_a_code_from_the_future_is_shown_and_not_retried() -> None:
    assert str(describe_error(900)) == "UNKNOWN_ERROR_900 (900)"
    assert not describe_error(900).retriable
    assert str(describe_error(90)) == "PRODUCER_FENCED (90)"
