"""Batches of records that other batches had: as large as they may be, and no larger."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.producer.content_encoder import ContentEncoder
from spark_2pc_sink.producer.leader_lookup import TopicLimits
from spark_2pc_sink.producer.record_encoder import EncodedBatch
from spark_2pc_sink.wire.record_contents import contents_of
from tests.harness.record_batches import section_of
from tests.unit.producer.support import options_for

FIRST, SECOND = TopicPartition("t", 0), TopicPartition("t", 1)


def contents(count: int, value: str = "v" * 50) -> pa.Array:
    section = section_of(pa.array([f"k{n}" for n in range(count)]), pa.array([value] * count), None)
    return contents_of(memoryview(bytes(61) + bytes(section.buffer)), count)


def encoder(batch_bytes_max: int = 400, message_bytes_max: int | None = None) -> ContentEncoder:
    limits = TopicLimits(message_bytes_max, create_time=None)
    return ContentEncoder(
        options_for("nowhere:9092", batch_bytes_max=batch_bytes_max), timestamp_ms=1, limits=lambda _: limits
    )


def records(batches: list[EncodedBatch]) -> list[bytes]:
    return [content for batch in batches for content in contents_of(batch.payload, batch.record_count).to_pylist()]


@pytest.mark.parametrize(("batch_bytes_max", "message_bytes_max"), [(400, None), (10_000, 1_000)])
def test_batches_are_full_and_in_order(batch_bytes_max: int, message_bytes_max: int | None) -> None:
    """By the option, or by what the topic takes."""
    made = encoder(batch_bytes_max, message_bytes_max)
    full = [*made.append(FIRST, contents(20)), *made.append(FIRST, contents(5))]
    rest = [*made.finish()]
    assert records([*full, *rest]) == contents(20).to_pylist() + contents(5).to_pylist()
    assert all(len(batch.payload) <= (message_bytes_max or batch_bytes_max + 61) for batch in full)
    assert (len(full) > 3, len(rest)) == (True, 1)
    assert [*made.finish()] == []


def test_partitions_are_not_mixed() -> None:
    made = encoder()
    assert [*made.append(FIRST, contents(2)), *made.append(SECOND, contents(3))] == []
    assert {batch.partition: batch.record_count for batch in made.finish()} == {FIRST: 2, SECOND: 3}


def test_the_key_of_a_single_record_is_known() -> None:
    """An error about it names it."""
    assert encoder().encode(FIRST, contents(1), digest=7).row_key == "k0"
    assert encoder().encode(FIRST, contents(2), digest=7).row_key is None


def test_a_record_that_is_larger_than_a_batch_has_one_of_its_own() -> None:
    made = encoder()
    large = contents(2, "v" * 1_000)
    batches = [*made.append(FIRST, contents(1)), *made.append(FIRST, large), *made.append(FIRST, contents(1))]
    batches += made.finish()
    assert [batch.record_count for batch in batches] == [1, 1, 1, 1]
    assert records(batches) == [*contents(1).to_pylist(), *large.to_pylist(), *contents(1).to_pylist()]
