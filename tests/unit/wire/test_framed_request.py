"""Produce and EndTxn: the requests as kafka-python decodes them, and its answers as they are read."""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, strategies as st
from kafka.protocol.producer import EndTxnResponse, ProduceResponse

from spark_2pc_sink.errors import RemoteProtocolError
from spark_2pc_sink.ids import EPOCH_LIMIT, PRODUCER_ID_MAX, ProducerIdAndEpoch, TopicPartition
from spark_2pc_sink.wire.api_versions import Api
from spark_2pc_sink.wire.framed_request import ProducedPartition, end_txn_request, pair_of, produce_request
from spark_2pc_sink.wire.messages import sasl_authenticate_request
from tests.unit.reference.batches import message
from tests.unit.wire.test_messages import AUDIT_1, ORDERS_0, ORDERS_3, PRODUCER, as_broker_sees_it, versions

#: Partition 3 without an error: offset 40, and neither a time nor a start of the log.
_ANSWERED = bytes.fromhex("00000003 0000 0000000000000028 ffffffffffffffff ffffffffffffffff")
#: A text whose length takes two bytes, and more bytes than characters.
LONG_TEXT = "é" * 100


def produce(version: int = 12) -> Any:
    return produce_request("tid", {ORDERS_0: b"zero"}, timeout_ms=5).build(version)


def end(version: int = 5) -> Any:
    return end_txn_request("tid", PRODUCER, commit=True).build(version)


def answer_to(request: Any, response: Any) -> Any:
    """What is read of an answer that kafka-python has encoded."""
    response.with_header(correlation_id=7)
    return request.read(bytes(response.encode(header=True)))


# --- requests --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions(Api.PRODUCE))
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_produce_waits_for_all_replicas_and_carries_the_bytes(version: int, kind: Any) -> None:
    batches = {ORDERS_3: kind(b"three"), AUDIT_1: kind(b"one"), ORDERS_0: kind(b"zero")}
    seen = as_broker_sees_it(produce_request("tid", batches, timeout_ms=5).build(version))
    assert (seen["transactional_id"], seen["acks"], seen["timeout_ms"]) == ("tid", -1, 5)
    assert seen["topic_data"] == [
        {"name": "orders", "partition_data": [{"index": 3, "records": b"three"}, {"index": 0, "records": b"zero"}]},
        {"name": "audit", "partition_data": [{"index": 1, "records": b"one"}]},
    ]


def test_a_request_is_shown_without_what_it_carries() -> None:
    assert repr(sasl_authenticate_request(b"password").build(1)) == "SASL_AUTHENTICATE version 1"


def test_lengths_of_more_than_one_byte() -> None:
    batches = {TopicPartition(LONG_TEXT, number): b"v" * 20_000 for number in range(300)}
    seen = as_broker_sees_it(produce_request(LONG_TEXT, batches, timeout_ms=5).build(12))
    (topic,) = seen["topic_data"]
    assert (seen["transactional_id"], topic["name"]) == (LONG_TEXT, LONG_TEXT)
    assert [(part["index"], part["records"]) for part in topic["partition_data"]] == [
        (number, b"v" * 20_000) for number in range(300)
    ]


@pytest.mark.parametrize("version", versions(Api.END_TXN))
@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("producer", [PRODUCER, ProducerIdAndEpoch(PRODUCER_ID_MAX, EPOCH_LIMIT)], ids=str)
def test_end_txn(version: int, commit: bool, producer: ProducerIdAndEpoch) -> None:
    request = end_txn_request("tid", producer, commit=commit).build(version)
    assert as_broker_sees_it(request) == {
        "transactional_id": "tid",
        "producer_id": producer.producer_id,
        "producer_epoch": producer.epoch,
        "committed": commit,
    }


# --- answers ---------------------------------------------------------------------------------------------------------


def produced(version: int, topics: dict[str, list[Any]], **fields: Any) -> Any:
    responses = [{"name": name, "partition_responses": parts} for name, parts in topics.items()]
    return message(ProduceResponse, version, responses=responses, throttle_time_ms=9, **fields)


@pytest.mark.parametrize("version", versions(Api.PRODUCE))
def test_produced_partitions(version: int) -> None:
    errors = [{"batch_index": at, "batch_index_error_message": text} for at, text in ((2, "no"), (300, None))]
    told = {"record_errors": errors, "error_message": LONG_TEXT}
    refused = {"index": 3, "error_code": 87, "base_offset": -1, **told}
    fine = {"index": 0, "base_offset": 2**40}
    other = {"index": 1, "base_offset": 7, "log_append_time_ms": 99}
    assert answer_to(produce(version), produced(version, {"orders": [fine, refused], "audit": [other]})) == {
        ORDERS_0: ProducedPartition(0, 2**40, -1),
        ORDERS_3: ProducedPartition(87, -1, -1, LONG_TEXT, ((2, "no"), (300, None))),
        AUDIT_1: ProducedPartition(0, 7, 99),
    }


@pytest.mark.parametrize("version", [10, 11, 12])
def test_a_partition_that_has_moved_is_read_without_its_leader(version: int) -> None:
    """KIP-951: with NOT_LEADER_OR_FOLLOWER the broker says in tags who leads now, and where it listens."""
    moved = {"index": 0, "error_code": 6, "base_offset": -1, "current_leader": {"leader_id": 4, "leader_epoch": 9}}
    node = {"node_id": 4, "host": "four", "port": 9092}
    response = produced(version, {"orders": [moved, {"index": 3, "base_offset": 1}]}, node_endpoints=[node])
    found = answer_to(produce(version), response)
    assert found == {ORDERS_0: ProducedPartition(6, -1, -1), ORDERS_3: ProducedPartition(0, 1, -1)}


@pytest.mark.parametrize(
    ("version", "fields", "expected"),
    [
        (5, {"error_code": 0, "producer_id": 5, "producer_epoch": 2}, (0, ProducerIdAndEpoch(5, 2))),
        (5, {"error_code": 48, "producer_id": -1, "producer_epoch": -1}, (48, None)),
        (4, {"error_code": 0}, (0, None)),
        (3, {"error_code": 90}, (90, None)),
    ],
)
def test_ended_transaction(version: int, fields: dict[str, int], expected: tuple[int, Any]) -> None:
    answer = answer_to(end(version), EndTxnResponse(version=version, throttle_time_ms=0, **fields))
    assert (answer.error_code, pair_of(answer.producer_id, answer.producer_epoch)) == expected


def test_a_pair_that_no_coordinator_hands_out_is_refused() -> None:
    answer = answer_to(
        end(), EndTxnResponse(version=5, throttle_time_ms=0, error_code=0, producer_id=5, producer_epoch=-2)
    )
    with pytest.raises(RemoteProtocolError, match="5:-2"):
        pair_of(answer.producer_id, answer.producer_epoch)


def test_unknown_tags_are_left_aside() -> None:
    """KIP-482: whoever does not know a tag passes it by. In the header, behind a partition, and behind a topic."""
    tags = b"\x02\x05\x03abc\x90\x01\x00"
    answer = bytes(4) + tags + b"\x02\x07orders\x02" + _ANSWERED + b"\x01\x00" + tags + tags + bytes(4) + tags
    assert produce().read(answer) == {ORDERS_3: ProducedPartition(0, 40, -1)}


_WHOLE = bytes(4) + b"\x00\x02\x07orders\x02" + _ANSWERED + b"\x01\x03no\x00\x00"


@pytest.mark.parametrize("size", range(len(_WHOLE)))
def test_an_answer_that_ends_in_the_middle_is_none(size: int) -> None:
    """Any error is what connections close themselves for."""
    assert produce().read(_WHOLE) == {ORDERS_3: ProducedPartition(0, 40, -1, "no")}
    with pytest.raises((IndexError, struct.error)):
        produce().read(_WHOLE[:size])


@given(st.binary(max_size=200))
def test_whatever_is_answered_is_read_or_refused(data: bytes) -> None:
    for request in (produce(), end(), end(4)):
        with suppress(IndexError, ValueError, struct.error):
            request.read(data)
