"""Fetch from message to message: how much, how long, and what a read_committed reader is shown."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest import mock

import pytest

from spark_2pc_sink.codes import Code
from spark_2pc_sink.reference.coordinator.events import AclOperation, Resource
from tests.unit.reference.coordinator.access import denying
from tests.unit.reference.node import Node, batch, committed, node
from tests.unit.reference.seeds import known
from tests.unit.reference.waiting import present, until

PAIR = (42, 5)


async def _plain(running: Node, *values: bytes, partition: int = 0) -> None:
    answers = await running.produce({("t", partition): batch(*values)}, tid=None)
    assert answers["t", partition].error_code == 0


def _reads(running: Node, topic: str = "t") -> Any:
    """Counts how often readers look into a log. Who has looked waits or has answered: nothing else comes between."""
    log = present(running.cluster.log(topic, 0))
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
