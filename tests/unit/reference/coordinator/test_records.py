"""Bytes of ``__transaction_state``. The vectors were written by Kafka 4.4.0's own generated TransactionLogValue."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from spark_2pc_sink.errors import LocalProtocolError, RemoteProtocolError
from spark_2pc_sink.ids import TIMEOUT_NEVER_MS, TopicPartition
from spark_2pc_sink.reference.coordinator.plans import (
    KEY_VERSION,
    LogRecord,
    decode_value,
    encode_value,
    fits,
    key_version,
)
from spark_2pc_sink.reference.coordinator.states import COMPLETION, StateId, TransactionMetadata

from .driver import metadata

EMPTY = TransactionMetadata(
    transactional_id="orders",
    producer_id=42,
    producer_epoch=0,
    timeout_ms=60_000,
    state=StateId.EMPTY,
    last_update_ms=1000,
)
ONGOING = replace(
    EMPTY,
    producer_epoch=7,
    state=StateId.ONGOING,
    partitions=frozenset({TopicPartition("t", 0), TopicPartition("t", 3), TopicPartition("uü", 1)}),
    start_ms=900,
)
VECTORS = {
    "v0 Ongoing": (
        0,
        ONGOING,
        (
            "0000000000000000002a00070000ea600100000002000174000000020000000000000003000375c3bc0000000100000001"
            "00000000000003e80000000000000384"
        ),
    ),
    "v1 Empty, 2PC": (
        1,
        replace(EMPTY, timeout_ms=TIMEOUT_NEVER_MS, previous_producer_id=42),
        "0001000000000000002a00007fffffff000000000000000003e8ffffffffffffffff010008000000000000002a",
    ),
    "v1 PrepareCommit of a kept transaction, all tags": (
        1,
        replace(
            EMPTY,
            producer_epoch=32767,
            state=StateId.PREPARE_COMMIT,
            partitions=frozenset({TopicPartition("t", 0)}),
            start_ms=900,
            previous_producer_id=73,
            next_producer_id=85,
            client_transaction_version=2,
            next_producer_epoch=0,
            pending=StateId.COMPLETE_COMMIT,
        ),
        (
            "0001000000000000002a7fff0000ea600202027402000000000000000000000003e8000000000000038404000800000000"
            "00000049010800000000000000550202000203020000"
        ),
    ),
}


@pytest.mark.parametrize(("version", "value", "expected"), VECTORS.values(), ids=VECTORS.keys())
def test_values_have_kafkas_bytes(version: int, value: TransactionMetadata, expected: str) -> None:
    """TransactionLogValue.json: the fields in order, tags 0 to 3, a tag at its default left out."""
    assert encode_value(value, version).hex() == expected
    assert decode_value("orders", bytes.fromhex(expected)) == value


def key_of(transactional_id: str) -> bytes:
    return LogRecord(partition=3, transactional_id=transactional_id, value=None).key_bytes


def test_the_key_is_the_transactional_id() -> None:
    assert key_of("orders").hex() == "000000066f7264657273"
    assert LogRecord.decode(3, key_of("bestellung-ü"), None).transactional_id == "bestellung-ü"
    assert key_version(key_of("orders")) == KEY_VERSION


def test_a_tombstone_is_read_back_as_one() -> None:
    record = LogRecord(partition=3, transactional_id="orders", value=None)
    assert record.value_bytes is None
    assert LogRecord.decode(3, record.key_bytes, record.value_bytes) == record


@pytest.mark.parametrize(
    "tag", [{"client_transaction_version": 2}, {"next_producer_epoch": 3, "client_transaction_version": 0}]
)
def test_a_value_that_version_0_would_cut_short_is_not_written(tag: dict[str, Any]) -> None:
    """v0 value + ClientTransactionVersion != 0 cannot be serialised."""
    value = metadata(StateId.ONGOING, **tag)
    assert not fits(value, 0)
    with pytest.raises(LocalProtocolError, match="version 1"):
        encode_value(value, 0)


def test_unknown_tags_of_a_later_kafka_are_skipped() -> None:
    """KIP-915: tagged fields are how later versions add to the record."""
    assert V1.endswith(b"\x00")
    assert decode_value("orders", V1[:-1] + bytes.fromhex("01090177")) == EMPTY


V0, V1 = (encode_value(EMPTY, version) for version in (0, 1))
BROKEN = {
    "value of version 2": lambda: decode_value("orders", b"\x00\x02" + V1[2:]),
    "state Dead is never stored": lambda: decode_value("orders", V0[:16] + b"\x06" + V0[17:]),
    "cut short": lambda: decode_value("orders", V1[:-3]),
    "bytes after the end": lambda: decode_value("orders", V0 + b"\x00"),
    "an array longer than the record": lambda: decode_value("orders", V0[:17] + b"\x7f" * 20),
    "key without a version": lambda: key_version(b"\x00"),
    "key that is cut off": lambda: LogRecord.decode(3, key_of("orders")[:-3], None),
    "key that is not UTF-8": lambda: LogRecord.decode(3, b"\x00\x00\x00\x01\xff", None),
    "a string of negative length": lambda: LogRecord.decode(3, b"\x00\x00\xff\xff", None),
    "a varint without an end": lambda: decode_value("orders", V1[:17] + b"\xff" * 9),
    "a string over an int16 length": lambda: key_of("x" * 40_000),
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN.keys())
def test_what_is_no_record_is_refused(broken: object) -> None:
    with pytest.raises(RemoteProtocolError):
        broken()  # type: ignore[operator]


names = st.text(max_size=40).filter(str.isprintable)
values = st.builds(
    TransactionMetadata,
    transactional_id=names,
    producer_id=st.integers(0, 2**63 - 1),
    producer_epoch=st.integers(0, 32767),
    timeout_ms=st.integers(1, 2**31 - 1),
    state=st.sampled_from(list(StateId)[:6]),
    partitions=st.frozensets(
        st.builds(TopicPartition, st.text(max_size=9).filter(str.isprintable), st.integers(0, 2**31 - 1))
    ),
    last_update_ms=st.integers(-1, 2**62),
    start_ms=st.integers(-1, 2**62),
    previous_producer_id=st.integers(-1, 2**63 - 1),
    next_producer_id=st.integers(-1, 2**63 - 1),
    client_transaction_version=st.integers(0, 2),
    next_producer_epoch=st.integers(-1, 32766),
)


@given(value=values, version=st.sampled_from([0, 1]))
def test_any_value_survives_its_bytes(value: TransactionMetadata, version: int) -> None:
    """But for the pairs that version 0 has no tags for; Empty has no partitions."""
    value = replace(value, pending=COMPLETION.get(value.state))
    if value.state is StateId.EMPTY:
        value = replace(value, partitions=frozenset())
    if fits(value, version):
        record = LogRecord(partition=3, transactional_id=value.transactional_id, value=value, version=version)
        untagged = value if version else replace(value, previous_producer_id=-1, next_producer_id=-1)
        expected = replace(record, value=untagged)
        assert LogRecord.decode(3, record.key_bytes, record.value_bytes) == expected
