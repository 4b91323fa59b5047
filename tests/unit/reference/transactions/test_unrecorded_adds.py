"""A loss of power between the first records of a transaction and the record that adds their partition to it."""

from __future__ import annotations

import asyncio

import pytest

from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.reference.config.properties import BrokerProperties
from spark_2pc_sink.reference.coordinator.coordinator_state import Settings
from spark_2pc_sink.reference.coordinator.states import Pair, StateId
from spark_2pc_sink.reference.internal_topics import TRANSACTION_STATE
from tests.unit.reference.coordinator.driver import T0, T1, metadata
from tests.unit.reference.node import TID, Node, batch, committed, node
from tests.unit.reference.seeds import seeded
from tests.unit.reference.waiting import present, until

PAIR = (42, 5)
AT_REST = [StateId.EMPTY, StateId.COMPLETE_COMMIT, StateId.COMPLETE_ABORT]


def _partitions(running: Node) -> set[TopicPartition]:
    found = present(running.service.state.get(TID))
    return set(found.partitions)


async def _nothing_hangs(running: Node, *partitions: int) -> None:
    for index in partitions:
        got = await running.read(index)
        assert got.last_stable_offset == got.high_watermark


@pytest.mark.parametrize("state", AT_REST)
@pytest.mark.parametrize("commit", [True, False])
async def test_the_producer_repeats_its_records_and_goes_on(state: StateId, commit: bool) -> None:
    async with node(seeded(metadata(state), data={T0: PAIR})) as running:
        assert (running.state(), _partitions(running)) == ("Ongoing", {T0})
        assert running.disk.syncs == 1  # before anybody is served
        answers = await running.produce({("t", 0): batch(b"before", pair=PAIR, sequence=0)})
        assert (answers["t", 0].error_code, answers["t", 0].base_offset) == (0, 0)
        assert await running.write(PAIR, sequence=1) == 0
        assert (await running.end(PAIR, commit=commit)).error_code == 0
        await running.settled()
        assert committed(await running.read()) == ([b"before", b"v"] if commit else [])
        await _nothing_hangs(running, 0)


async def test_a_further_partition_joins_the_open_transaction() -> None:
    async with node(seeded(metadata(StateId.ONGOING), data={T0: PAIR, T1: PAIR})) as running:
        assert _partitions(running) == {T0, T1}
        assert (await running.end(PAIR)).error_code == 0
        await running.settled()
        assert (running.markers_of(partition=0), running.markers_of(partition=1)) == ([(42, 6, "commit")],) * 2
        await _nothing_hangs(running, 0, 1)


@pytest.mark.parametrize("pair", [(42, 4), (42, 6), (7, 5)])
async def test_a_transaction_of_another_pair_is_left_hanging(pair: tuple[int, int]) -> None:
    """It is not of this start: whoever looks for hanging transactions (KIP-664) finds it."""
    async with node(seeded(metadata(StateId.COMPLETE_COMMIT), data={T0: pair})) as running:
        assert (running.state(), len(running.records())) == ("CompleteCommit", 1)
        assert (await running.read()).last_stable_offset == 0


async def test_below_transaction_version_2_nothing_is_added() -> None:
    """There are no implicit adds, and records of the pair may be of any transaction before."""
    disk = seeded(metadata(StateId.COMPLETE_COMMIT), data={T0: PAIR})
    async with node(disk, settings=Settings(transaction_version=1)) as running:
        assert (running.state(), len(running.records())) == ("CompleteCommit", 1)


@pytest.mark.parametrize("commit", [True, False])
async def test_records_that_were_answered_are_in_the_transaction_after_a_loss_of_power(commit: bool) -> None:
    """What adds their partition was not on the disk yet."""
    disk = seeded(metadata(StateId.COMPLETE_COMMIT))
    async with node(disk) as running:
        assert await running.write(PAIR) == 0
        left = disk.copied(everything=False)
        assert (running.state(), len(running.records())) == ("Ongoing", 2)
    async with node(left) as restarted:
        assert (restarted.state(), _partitions(restarted)) == ("Ongoing", {T0})
        assert await restarted.write(PAIR, sequence=1) == 0
        assert (await restarted.end(PAIR, commit=commit)).error_code == 0
        await restarted.settled()
        assert committed(await restarted.read()) == ([b"v", b"v"] if commit else [])
        await _nothing_hangs(restarted, 0)


async def test_records_that_were_lost_with_what_adds_them_are_written_again() -> None:
    disk = seeded(metadata(StateId.COMPLETE_COMMIT))
    async with node(disk) as running:
        disk.stop_in = "t-0"
        task = asyncio.ensure_future(running.write(PAIR))
        await until(disk.stopped.is_set)
        left = disk.copied(everything=False)
        assert not task.done()
        disk.released.set()
        await task
    async with node(left) as restarted:
        assert restarted.state() == "CompleteCommit"
        assert await restarted.write(PAIR) == 0
        assert (await restarted.end(PAIR)).error_code == 0
        await restarted.settled()
        assert committed(await restarted.read()) == [b"v"]


async def test_a_state_log_that_fails_leaves_records_for_the_next_start() -> None:
    disk = seeded(metadata(StateId.COMPLETE_COMMIT))
    async with node(disk) as running:
        disk.sync_error = TRANSACTION_STATE
        assert await running.write(PAIR) == 0
        assert (await running.end(PAIR)).error_code != 0
        assert running.state() == "Ongoing"
    async with node(disk.copied(everything=False)) as restarted:
        assert (await restarted.end(PAIR)).error_code == 0
        await restarted.settled()
        assert committed(await restarted.read()) == [b"v"]


OFFSETS = TopicPartition("__consumer_offsets", 1)


@pytest.mark.parametrize(
    ("version", "enabled", "code", "added"),
    [(5, True, 0, True), (5, False, 0, True), (4, True, 120, False), (3, True, 48, False), (3, False, 0, False)],
)
async def test_offsets_are_added_for_new_clients_and_verified_for_old_ones(
    version: int, enabled: bool, code: int, added: bool
) -> None:
    disk = seeded(metadata(StateId.COMPLETE_COMMIT))
    async with node(disk, verification=BrokerProperties(transaction_partition_verification_enable=enabled)) as running:
        assert await running.verification.for_offsets(version, TID, Pair(42, 5), OFFSETS) == code
        found = present(running.service.state.get(TID))
        assert (OFFSETS in found.partitions) is added
        if enabled:
            assert await running.verification.for_offsets(version, TID, Pair(42, 4), OFFSETS) == 47


async def test_offsets_are_asked_for_once() -> None:
    """Unlike Produce, TxnOffsetCommit hears of CONCURRENT_TRANSACTIONS at once."""
    async with node(seeded(metadata(StateId.COMPLETE_COMMIT))) as running:
        assert await running.write((42, 5)) == 0
        running.disk.append_error = "t-0"
        assert (await running.end((42, 5))).error_code == 0
        assert await running.verification.for_offsets(5, TID, Pair(42, 6), OFFSETS) == 51
        running.disk.append_error = ""


async def test_questions_are_counted() -> None:
    """KIP-890, Metrics: VerificationTimeMs and VerificationFailureRate, of Produce and of TxnOffsetCommit."""
    async with node(seeded(metadata(StateId.COMPLETE_COMMIT))) as running:
        counted = running.verification.metrics
        assert await running.write((42, 5)) == 0
        assert (counted.asked, counted.failures) == (1, 0)
        assert await running.write((42, 5), sequence=1) == 0  # is in it: nobody is asked
        assert await running.write((42, 4), partition=1) == 47
        assert await running.verification.for_offsets(4, TID, Pair(42, 5), OFFSETS) == 120
        assert (counted.asked, counted.failures) == (3, 2)
        assert counted.time_ms > 0
