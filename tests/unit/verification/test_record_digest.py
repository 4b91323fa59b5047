"""The digest of records as they are read: the same as the sink's, which is computed by other code."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_2pc_sink.verification.record_digest import (
    MODULUS,
    content_of,
    digest_of,
    digest_text,
    length_bytes,
    record_hash,
)
from spark_2pc_sink.wire.batch_format import encode_varint
from spark_2pc_sink.wire.record_batch import content_digest, format_digest

TOPIC = "orders"
parts = st.none() | st.binary(max_size=300)
headers = st.lists(st.tuples(st.text(max_size=20), parts), max_size=3)


@pytest.mark.parametrize("length", [-1, 0, 1, 63, 64, 8_191, 8_192, 2**31 - 1])
def test_a_length_is_written_as_kafka_writes_it(length: int) -> None:
    assert length_bytes(length) == encode_varint(length)


@given(st.lists(st.tuples(parts, parts, headers), max_size=5))
def test_records_have_the_digest_that_the_sink_writes_down(
    records: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]],
) -> None:
    contents = [content_of(key, value, named) for key, value, named in records]
    written = [
        b"".join(
            [
                _behind_length(key),
                _behind_length(value),
                encode_varint(len(named)),
                *(part for name, each in named for part in (_behind_length(name.encode()), _behind_length(each))),
            ]
        )
        for key, value, named in records
    ]
    assert contents == written
    assert digest_of(TOPIC, contents) == content_digest(TOPIC, pa.array(written, pa.binary()))


def test_the_digest_is_the_sum_of_the_records_hashes_and_written_in_hexadecimal_digits() -> None:
    contents = [content_of(b"k", b"v", None), content_of(None, b"x" * 5_000, None)]
    total = sum(record_hash(TOPIC, content) for content in contents) % MODULUS
    assert digest_of(TOPIC, contents) == total
    assert digest_text(total) == format_digest(total)


def test_another_topic_and_another_place_of_a_byte_make_another_hash() -> None:
    whole = content_of(b"ab", b"c", None)
    assert record_hash(TOPIC, whole) != record_hash("other", whole)
    assert record_hash(TOPIC, whole) != record_hash(TOPIC, content_of(b"a", b"bc", None))


def _behind_length(data: bytes | None) -> bytes:
    return encode_varint(-1) if data is None else encode_varint(len(data)) + data
