"""Varints, one and in columns, against the arithmetic of Kafka's ``ByteUtils`` and kafka-python's encoder."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kafka.record.util import encode_varint

from spark_2pc_sink.wire.arrow_layout import Varints, encode_varint_rows
from spark_2pc_sink.wire.batch_format import encode_varint as our_varint
from spark_2pc_sink.wire.batch_format import read_unsigned, read_varint

INT32 = st.integers(-(2**31), 2**31 - 1)


def kafka_varint(number: int) -> bytes:
    written = bytearray()
    encode_varint(number, written.append)
    return bytes(written)


@given(st.lists(st.tuples(INT32, INT32), max_size=40))
@example([(64 if row % 2 else 8192, row) for row in range(40)])  # sizes change often, and none is a single byte
def test_rows_are_what_kafka_python_writes(numbers: list[tuple[int, int]]) -> None:
    columns = [np.array([pair[side] for pair in numbers], np.int64) for side in (0, 1)]
    data, offsets = encode_varint_rows([Varints.of(columns[0]), None, Varints.of(columns[1])], len(numbers))

    rows = [bytes(data[start:stop]) for start, stop in pairwise(offsets)]
    assert rows == [kafka_varint(left) + b"\x00" + kafka_varint(right) for left, right in numbers]


@pytest.mark.parametrize("bits", [6, 13, 20, 27])
def test_a_varint_grows_exactly_at_its_corners(bits: int) -> None:
    corners = np.array([2**bits - 1, 2**bits, -(2**bits), -(2**bits) - 1], np.int64)
    expected = [len(kafka_varint(int(corner))) for corner in corners]
    assert Varints.of(corners).sizes.tolist() == expected
    assert expected == [bits // 7 + 1, bits // 7 + 2, bits // 7 + 1, bits // 7 + 2]


@given(st.integers(-(2**63), 2**63 - 1))
def test_one_number_is_what_kafka_python_writes_and_reads_back(number: int) -> None:
    data = our_varint(number)
    assert data == kafka_varint(number)
    assert read_varint(b"x" + data + b"y", 1) == (number, 1 + len(data))


def test_a_varint_that_does_not_end_in_time_is_refused() -> None:
    assert read_unsigned(b"\xff\xff\xff\xff\x0f", 0, bytes_max=5) == (2**32 - 1, 5)
    with pytest.raises(IndexError, match="more than 5 bytes"):
        read_unsigned(b"\xff" * 9, 0, bytes_max=5)
