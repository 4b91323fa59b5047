"""murmur2 against what Apache Kafka's Java client answered, and against the algorithm written for one key."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_2pc_sink.errors import LocalProtocolError
from spark_2pc_sink.kafka import record_encoder
from spark_2pc_sink.kafka.record_encoder import NO_PARTITION, murmur2, partition_for_keys
from tests.unit.wire.rows import LAYOUTS

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

    def counting(layout: Any, positions: Any) -> Any:
        steps.append(len(positions))
        return original(layout, positions)

    monkeypatch.setattr(record_encoder, "_words", counting)
    murmur2(pa.array([b"x" * 1_000_000, *[b"k" * 20] * 100]))
    assert steps == [101] * 5


def test_a_topic_without_partitions_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match="at least one partition"):
        partition_for_keys(pa.array([b"k"]), 0)


def test_keys_that_are_not_bytes_are_refused() -> None:
    with pytest.raises(LocalProtocolError, match="binary or string"):
        murmur2(pa.array([1, 2]))
