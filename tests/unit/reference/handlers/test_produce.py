"""Produce and Fetch from message to message: who may write where, how much and how long is read, what is answered."""

from __future__ import annotations

import asyncio
import threading
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

from spark_2pc_sink.codes import Code
from spark_2pc_sink.reference.config.properties import BrokerProperties
from spark_2pc_sink.reference.coordinator.events import FULL_ACCESS, AclOperation, Resource
from spark_2pc_sink.reference.log.partition_log import LogSettings
from spark_2pc_sink.reference.storage.batches import build_batch
from spark_2pc_sink.wire.batch_reader import DECOMPRESSED_BYTES_MAX, decompress
from spark_2pc_sink.wire.record_batch import Compression, compress
from tests.unit.reference.coordinator.access import denying
from tests.unit.reference.coordinator.driver import KEEPING
from tests.unit.reference.node import START_MS, TID, Node, batch, committed, known, node
from tests.unit.reference.waiting import present, until

T0 = ("t", 0)
PAIR = (42, 5)


async def test_a_batch_that_fills_the_memory_is_refused_away_from_the_event_loop() -> None:
    """D13."""
    threads: list[str] = []
    async with node() as running:
        running.cluster.settings = LogSettings(
            cleanup_policy=frozenset({"compact"}), message_max_bytes=1 << 23, segment_bytes=1 << 23
        )

        def noted(*args: Any, **named: Any) -> bytes:
            threads.append(threading.current_thread().name)
            return decompress(*args, **named)

        zeros = bytes(memoryview(compress(pa.py_buffer(bytes(DECOMPRESSED_BYTES_MAX + 1)), Compression.ZSTD)))
        bomb = build_batch(zeros, record_count=1, timestamp_ms=START_MS, attributes=Compression.ZSTD.value)
        with mock.patch("spark_2pc_sink.wire.batch_reader.decompress", noted):
            answers = await running.produce({T0: bomb}, tid=None)
        assert answers[T0].error_code == Code.INVALID_RECORD
        assert threads
        assert all(name.startswith("decode") for name in threads)


async def test_internal_topics_are_for_privileged_principals_whatever_a_client_calls_itself() -> None:
    """D12: KafkaApis.handleProduceRequest goes by the client id alone; a name gives no right here."""
    brokers, writers = denying(), denying(AclOperation.CLUSTER_ACTION, resource=Resource.CLUSTER)
    async with node() as running:
        for topic in ("__consumer_offsets", "__transaction_state"):
            internal = (topic, 0)
            for client_id, access, code in (
                ("test", FULL_ACCESS, Code.INVALID_TOPIC_EXCEPTION),
                ("__admin_client", FULL_ACCESS, Code.INVALID_TOPIC_EXCEPTION),
                ("__admin_client", writers, Code.INVALID_TOPIC_EXCEPTION),
                ("test", brokers, Code.INVALID_TOPIC_EXCEPTION),
                ("__admin_client", brokers, Code.NONE),
            ):
                answers = await running.produce(
                    {internal: batch(b"a"), T0: batch(b"a")}, tid=None, client_id=client_id, access=access
                )
                assert [each.error_code for each in answers.values()] == [code, 0]


async def test_nothing_is_answered_before_it_is_durable_and_all_partitions_are_waited_for_at_once() -> None:
    async with node() as running:
        running.disk.stop_at = running.disk.syncs + 2
        names = [("t", 0), ("t", 1), ("t", 2)]
        task = asyncio.ensure_future(running.produce(dict.fromkeys(names, batch(b"a")), tid=None))
        await until(running.disk.stopped.is_set)
        assert [len(running.batches(*name)) for name in names] == [1, 1, 1]
        assert not task.done()
        # The next request of the connection may be begun.
        assert running.appended == 1
        running.disk.released.set()
        assert [each.error_code for each in (await task).values()] == [0, 0, 0]


async def test_what_could_not_be_written_or_made_durable_is_not_acknowledged() -> None:
    async with node() as running:
        running.disk.append_error, running.disk.sync_error = "t-2", "t-1"
        records = dict.fromkeys([T0, ("t", 1), ("t", 2)], batch(b"a"))
        answers = await running.produce(records, tid=None)
        assert [each.error_code for each in answers.values()] == [0, *[Code.KAFKA_STORAGE_ERROR] * 2]
        assert (answers["t", 1].base_offset, answers["t", 1].log_start_offset) == (-1, -1)


# --- transactions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [9, 11, 12, 13])
async def test_a_kept_transaction_takes_no_more_data(version: int) -> None:
    """KIP-939, Proposed Changes: 'increment the epoch ... so that we can fence requests from previous incarnations'.

    Neither where its partition is open already, nor after a restart, nor for a retry that has arrived before. B5.
    """
    async with node(known(), settings=KEEPING) as running:
        assert await running.write(PAIR) == 0
        assert (await running.init(keep=True)).producer_epoch == 6
        for tid in (TID, "another"):
            assert await running.write(PAIR, sequence=1, version=version, tid=tid) == Code.INVALID_PRODUCER_EPOCH
        assert await running.write(PAIR, sequence=0, version=version) == Code.INVALID_PRODUCER_EPOCH
        # Idempotent producers, and transactions that nobody kept, go on.
        assert (await running.produce({T0: batch(b"a")}, tid=None, version=version))[T0].error_code == 0
        disk = running.disk.copied(everything=True)
    async with node(disk, settings=KEEPING) as restarted:
        assert await restarted.write(PAIR, sequence=1, version=version) == Code.INVALID_PRODUCER_EPOCH
        assert (await restarted.end((42, 6))).error_code == 0
        assert await restarted.settled() == "CompleteCommit"
        assert len([each for each in restarted.batches() if not each.control and each.transactional]) == 1
        assert await restarted.write((42, 7)) == 0


async def test_the_next_transaction_waits_for_the_one_before_to_be_completed() -> None:
    """KIP-890: the leader tries again while the coordinator answers CONCURRENT_TRANSACTIONS."""
    async with node(
        known(),
        verification=BrokerProperties(
            add_partitions_to_txn_retry_backoff_ms=5_000, add_partitions_to_txn_retry_backoff_max_ms=10_000
        ),
    ) as running:
        for epoch in range(5, 25):
            assert await running.write((42, epoch)) == 0
            ended = await running.end((42, epoch))
            assert (ended.error_code, ended.producer_epoch) == (0, epoch + 1)
        await running.settled()
        assert len(running.markers_of()) == 20


@pytest.mark.parametrize(("version", "code", "asked_max"), [(12, 51, 6), (11, 19, 1), (10, 19, 1)])
async def test_the_leader_gives_up_when_it_takes_too_long(version: int, code: int, asked_max: int) -> None:
    """Only the implicit add is tried again: as long as the property says, with a pause in between."""
    async with node(
        known(),
        verification=BrokerProperties(
            add_partitions_to_txn_retry_backoff_ms=10, add_partitions_to_txn_retry_backoff_max_ms=40
        ),
    ) as running:
        assert await running.write(PAIR) == 0
        running.disk.append_error = "t-0"
        assert (await running.end(PAIR)).error_code == 0
        add = running.service.add
        with mock.patch.object(running.service, "add", side_effect=add) as asked:
            assert await running.write((42, 6), partition=1, version=version) == code
        assert min(2, asked_max) <= asked.call_count <= asked_max
        running.disk.append_error = ""


async def _plain(running: Node, *values: bytes, partition: int = 0) -> None:
    answers = await running.produce({("t", partition): batch(*values)}, tid=None)
    assert answers["t", partition].error_code == 0


def _reads(running: Node) -> Any:
    """Counts how often readers look into a log. Who has looked waits or has answered: nothing else comes between."""
    log = present(running.cluster.log("t", 0))
    return mock.patch.object(log, "read", wraps=log.read)


def _rows(response: Any) -> dict[tuple[str, int], Any]:
    return {(topic.topic, each.partition_index): each for topic in response.responses for each in topic.partitions}


async def test_errors_are_answered_per_partition_and_at_once() -> None:
    async with node(known()) as running:
        await _plain(running, b"a")
        offsets = {("t", 0): 0, ("t", 1): 5, ("t", 9): 0, ("missing", 0): 0, ("u", 0): 0}
        access = denying(AclOperation.READ, resource=Resource.TOPIC, name="u")
        rows = _rows(await running.fetch(offsets, access=access, min_bytes=1 << 20, max_wait_ms=60_000))
        assert {name: each.error_code for name, each in rows.items()} == {
            ("t", 0): Code.NONE,
            ("t", 1): Code.OFFSET_OUT_OF_RANGE,
            ("t", 9): Code.UNKNOWN_TOPIC_OR_PARTITION,
            ("missing", 0): Code.UNKNOWN_TOPIC_OR_PARTITION,
            ("u", 0): Code.TOPIC_AUTHORIZATION_FAILED,
        }
        failed = [each for name, each in rows.items() if name != ("t", 0)]
        assert {(each.high_watermark, each.last_stable_offset, each.log_start_offset) for each in failed} == {
            (-1, -1, -1)
        }
        # Measured on Kafka 4.4.0: null only where a log was asked.
        assert {name: each.aborted_transactions for name, each in rows.items()} == {
            ("t", 0): None,
            ("t", 1): None,
            ("t", 9): [],
            ("missing", 0): [],
            ("u", 0): [],
        }
        assert {each.records for each in failed} == {b""}


@pytest.mark.parametrize(("epoch", "code"), [(-1, 0), (1, 0), (0, 74), (2, 75)])
async def test_a_reader_that_knows_another_leader_is_told(epoch: int, code: int) -> None:
    async with node(known()) as running:
        # The node that wrote the seed was the first.
        assert (await running.read(current_leader_epoch=epoch)).error_code == code


# --- how much ---------------------------------------------------------------------------------------------------------


async def test_the_first_partition_with_data_gives_one_batch_however_large() -> None:
    async with node(known()) as running:
        for partition in (1, 2):
            for _ in range(2):
                await _plain(running, b"x" * 100, partition=partition)
        size_bytes = len(batch(b"x" * 100))
        offsets = {("t", partition): 0 for partition in range(3)}

        async def sizes(**fields: Any) -> list[int]:
            return [len(each.records) for each in _rows(await running.fetch(offsets, **fields)).values()]

        assert await sizes() == [0, 2 * size_bytes, 2 * size_bytes]
        assert await sizes(partition_max_bytes=1) == [0, size_bytes, 0]
        assert await sizes(max_bytes=1) == [0, size_bytes, 0]
        assert await sizes(partition_max_bytes=size_bytes + 1) == [0, size_bytes, size_bytes]
        assert await sizes(max_bytes=3 * size_bytes) == [0, 2 * size_bytes, size_bytes]
        assert await sizes(max_bytes=2 * size_bytes) == [0, 2 * size_bytes, 0]


# --- how long ---------------------------------------------------------------------------------------------------------


async def test_a_reader_waits_for_data_and_no_longer() -> None:
    async with node(known()) as running:
        with _reads(running) as reads:
            task = asyncio.ensure_future(running.read(max_wait_ms=60_000, isolation=0))
            await until(lambda: reads.call_count == 1)
            assert not task.done()
        await _plain(running, b"a")
        assert committed(await asyncio.wait_for(task, 5)) == [b"a"]


async def test_a_reader_gets_what_there_is_when_its_time_is_over() -> None:
    async with node(known()) as running:
        await _plain(running, b"a")
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        got = await asyncio.wait_for(running.read(max_wait_ms=30, min_bytes=1 << 19, isolation=0), 3)
        assert loop.time() - start_s >= 0.03
        assert committed(got) == [b"a"]
        # More than an answer may hold is not waited for.
        got = await running.read(max_wait_ms=60_000, min_bytes=1 << 19, max_bytes=10, isolation=0)
        assert committed(got) == [b"a"]


async def test_a_reader_of_committed_data_is_woken_by_the_end_of_the_transaction() -> None:
    async with node(known()) as running:
        with _reads(running) as reads:
            task = asyncio.ensure_future(running.read(max_wait_ms=60_000))
            await until(lambda: reads.call_count == 1)
            assert await running.write(PAIR) == 0
            await until(lambda: reads.call_count == 2)
            assert not task.done()
        assert (await running.end(PAIR)).error_code == 0
        assert committed(await asyncio.wait_for(task, 5)) == [b"v"]
