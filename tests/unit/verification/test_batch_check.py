"""What is looked at before librdkafka reads it, on a scripted broker that answers one batch at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import KafkaError, KafkaTimeoutError
from spark_2pc_sink.reference.storage.batches import build_batch
from spark_2pc_sink.verification.batch_check import BatchCheck
from spark_2pc_sink.wire.api_versions import Api
from spark_2pc_sink.wire.record_batch import Compression, compress
from tests.unit.fakes.cluster import FakeCluster, fake_cluster
from tests.unit.fakes.wire import changed, keep_silent
from tests.unit.kafka.support import T0, options_for

BYTES_MAX = 100_000
TOGETHER_BYTES = 1_000
#: Less than one batch.
AHEAD_BYTES = 10


@pytest.fixture
def fake() -> Iterator[FakeCluster]:
    with fake_cluster(brokers=2) as cluster:
        yield cluster


def checker(fake: FakeCluster, *, max_block_ms: int = 10_000) -> BatchCheck:
    options = options_for(fake, max_block_ms=max_block_ms)
    return BatchCheck(options=options, bytes_max=BYTES_MAX, together_bytes=TOGETHER_BYTES, ahead_bytes=AHEAD_BYTES)


def batch(plain_bytes: int, codec: Compression = Compression.GZIP) -> bytes:
    """One that becomes so many bytes. Nobody looks for its records."""
    payload = bytes(memoryview(compress(pa.py_buffer(bytes(plain_bytes)), codec)))
    return build_batch(payload, record_count=1, timestamp_ms=0, attributes=codec.value)


def put(fake: FakeCluster, *batches: bytes) -> None:
    for each in batches:
        fake.partitions[T0].put(each)


def fetched(fake: FakeCluster) -> list[int]:
    """From where partition 0 was read."""
    return [
        partition.fetch_offset
        for request in fake.of(Api.FETCH)
        for topic in request.body.topics
        for partition in topic.partitions
        if partition.partition == T0.partition
    ]


def test_a_batch_that_becomes_too_large_is_named_with_its_remedy(fake: FakeCluster) -> None:
    """D13."""
    # What is not compressed has no bound.
    put(fake, batch(BYTES_MAX), batch(BYTES_MAX * 2, Compression.NONE))
    checker(fake).check({T0: (0, 2)})
    large = batch(BYTES_MAX + 1)
    put(fake, large)
    with pytest.raises(KafkaError) as raised:
        checker(fake).check({T0: (0, 3)})
    assert raised.value.code == Code.CORRUPT_MESSAGE
    text = str(raised.value)
    assert f"the batch at offset 2 of t-0, {len(large)} bytes: its GZIP data cannot be read: " in text
    assert f"more than {BYTES_MAX} bytes; kafka-dump-log.sh shows" in text


def test_a_batch_that_is_no_batch_is_named_with_its_partition(fake: FakeCluster) -> None:
    put(fake, batch(10))

    def damage(response: Any) -> None:
        part = response.responses[0].partitions[0]
        part.records = part.records[:-1] + b"?"

    fake.script(Api.FETCH, changed(damage))
    with pytest.raises(KafkaError, match="t-0: the batch at offset 0: it has CRC"):
        checker(fake).check({T0: (0, 1)})


def test_each_batch_is_read_once(fake: FakeCluster) -> None:
    put(fake, *[batch(10)] * 6)
    check = checker(fake)
    check.check({T0: (2, 4)})
    # The batch after the end is more than may be read ahead.
    assert fetched(fake) == [2, 3, 4]
    assert [check.has_seen(T0, offset) for offset in (1, 2, 4, 5)] == [False, True, True, False]
    check.check({T0: (2, 4)})
    check.check({T0: (3, 6)})
    assert fetched(fake) == [2, 3, 4, 5]
    put(fake, batch(10))
    check.check({T0: (3, 6)})
    assert fetched(fake) == [2, 3, 4, 5, 6]
    # Only an earlier beginning is another reading.
    check.check({T0: (0, 6)})
    assert fetched(fake)[5:] == [0, 1, 2, 3, 4, 5, 6]
    assert all(check.has_seen(T0, offset) for offset in range(7))


def test_what_librdkafka_may_read_ahead_is_looked_at_and_no_more(fake: FakeCluster) -> None:
    put(fake, batch(10), batch(BYTES_MAX + 1))
    with pytest.raises(KafkaError, match="the batch at offset 1 of t-0"):
        checker(fake).check({T0: (0, 1)})
    put(fake, *[batch(10)] * 2, batch(BYTES_MAX + 1))
    checker(fake).check({T0: (2, 3)})


def test_batches_that_become_too_much_together_are_told(fake: FakeCluster) -> None:
    """D13: each alone is in order."""
    half = batch(BYTES_MAX // 2 + 1)
    assert len(half) < TOGETHER_BYTES / 2
    check = checker(fake)
    put(fake, half, batch(TOGETHER_BYTES, Compression.NONE), half)
    check.check({T0: (0, 3)})
    assert not check.dense
    put(fake, half)
    check.check({T0: (3, 4)})
    assert check.dense


def test_a_reader_that_hears_of_no_record_gives_up(fake: FakeCluster) -> None:
    """A request that the deadline cuts short says less than the answers before it."""

    def empty(response: Any) -> None:
        response.responses[0].partitions[0].records = b""

    put(fake, batch(10))
    fake.script(Api.FETCH, changed(empty), *[keep_silent] * 100)
    with pytest.raises(KafkaTimeoutError, match="no record arrived of t-0"):
        checker(fake, max_block_ms=500).check({T0: (0, 1)})
