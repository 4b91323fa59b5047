"""Outgoing records: what may be sent, and which batches become of it."""

from __future__ import annotations

from typing import Any

import pytest

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.service.outgoing import EncodedRecords, OutgoingRecord, encode
from spark_2pc_sink.wire.batch_reader import decode_record_batches
from spark_2pc_sink.wire.record_batch import assign_producer
from tests.unit.kafka.support import PAIR

KAFKA = {"bootstrap.servers": "unused:9092", "compression.type": "none"}


def encoded(*records: OutgoingRecord, free: int = 0, **kafka: Any) -> EncodedRecords:
    options = KafkaOptions.parse({**KAFKA, **kafka})
    return encode(records, options, partition_count=len, free=free, timestamp_ms=5)


def contents(records: EncodedRecords) -> dict[str, list[tuple[bytes | None, bytes | None]]]:
    found: dict[str, list[tuple[bytes | None, bytes | None]]] = {}
    for batch in records.batches:
        whole = assign_producer(batch.payload, producer=PAIR, base_sequence=0)
        for decoded in decode_record_batches(whole):
            found.setdefault(str(batch.partition), []).extend((each.key, each.value) for each in decoded.records())
    return found


def test_records_go_where_they_are_told_where_their_key_goes_or_to_one_partition_for_all() -> None:
    records = encoded(
        OutgoingRecord.of("abc", None, "told", partition=2),
        OutgoingRecord.of("abc", "k", b"by key"),
        OutgoingRecord.of("abc", None, "free"),
        OutgoingRecord.of("abc", None, None),
        OutgoingRecord.of("x", "ü", None, headers=[("a", "b"), ("c", None)]),
        free=7,
    )
    found = contents(records)
    assert found["x-0"] == [("ü".encode(), None)]
    assert found["abc-1"][-2:] == [(None, b"free"), (None, None)]
    everything = [each for of_partition in found.values() for each in of_partition]
    assert sorted(everything, key=str) == sorted(
        [(None, b"told"), (b"k", b"by key"), (None, b"free"), (None, None), ("ü".encode(), None)], key=str
    )
    assert records.record_count == 5


def test_a_batch_is_cut_where_it_would_become_too_large() -> None:
    sent = [OutgoingRecord.of("x", None, bytes([number]) * 40) for number in range(7)]
    records = encoded(*sent, **{"batch.size": 120})
    assert [each.record_count for each in records.batches] == [2, 2, 2, 1]
    assert {each.partition for each in records.batches} == {TopicPartition("x", 0)}
    assert records.digest == encoded(*sent).digest


def test_a_partition_that_the_topic_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="has 3 partitions"):
        encoded(OutgoingRecord.of("abc", None, None, partition=3))
