"""A loss of power between the first records of a transaction and the record that adds their partition to it."""

from __future__ import annotations

import pytest

from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.reference.coordinator.coordinator_state import Settings
from spark_2pc_sink.reference.coordinator.states import StateId
from tests.unit.reference.coordinator.driver import T0, metadata
from tests.unit.reference.node import TID, Node, batch, committed, node
from tests.unit.reference.seeds import seeded
from tests.unit.reference.waiting import present

PAIR = (42, 5)


def _partitions(running: Node) -> set[TopicPartition]:
    found = present(running.service.state.get(TID))
    return set(found.partitions)


async def _nothing_hangs(running: Node, *partitions: int) -> None:
    for index in partitions:
        got = await running.read(index)
        assert got.last_stable_offset == got.high_watermark


@pytest.mark.parametrize("commit", [True, False])
async def test_the_producer_repeats_its_records_and_goes_on(commit: bool) -> None:
    async with node(seeded(metadata(StateId.COMPLETE_ABORT), data={T0: PAIR})) as running:
        assert (running.state(), _partitions(running)) == ("Ongoing", {T0})
        assert running.disk.syncs == 1  # before anybody is served
        answers = await running.produce({("t", 0): batch(b"before", pair=PAIR, sequence=0)})
        assert (answers["t", 0].error_code, answers["t", 0].base_offset) == (0, 0)
        assert await running.write(PAIR, sequence=1) == 0
        assert (await running.end(PAIR, commit=commit)).error_code == 0
        await running.settled()
        assert committed(await running.read()) == ([b"before", b"v"] if commit else [])
        await _nothing_hangs(running, 0)


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
