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


async def _goes_on(running: Node, *values: bytes, commit: bool) -> None:
    """One record more, the end, and what committed readers see of it; nothing hangs."""
    assert await running.write(PAIR, sequence=1) == 0
    assert (await running.end(PAIR, commit=commit)).error_code == 0
    await running.settled()
    got = await running.read()
    assert committed(got) == (list(values) if commit else [])
    assert got.last_stable_offset == got.high_watermark


@pytest.mark.parametrize("commit", [True, False])
async def test_the_producer_repeats_its_records_and_goes_on(commit: bool) -> None:
    async with node(seeded(metadata(StateId.COMPLETE_ABORT), data={T0: PAIR})) as running:
        assert (running.state(), _partitions(running)) == ("Ongoing", {T0})
        assert running.disk.syncs == 1  # before anybody is served
        answers = await running.produce({("t", 0): batch(b"before", pair=PAIR, sequence=0)})
        assert (answers["t", 0].error_code, answers["t", 0].base_offset) == (0, 0)
        await _goes_on(running, b"before", b"v", commit=commit)


@pytest.mark.parametrize(("pair", "level"), [((42, 4), 2), ((42, 6), 2), ((7, 5), 2), (PAIR, 1)])
async def test_a_transaction_of_another_pair_is_left_hanging(pair: tuple[int, int], level: int) -> None:
    """It is not of this start: whoever looks for hanging transactions (KIP-664) finds it.

    Below transaction.version 2 there are no implicit adds, and records of the pair may be of any transaction before.
    """
    disk = seeded(metadata(StateId.COMPLETE_COMMIT), data={T0: pair})
    async with node(disk, settings=Settings(two_phase_commit_enable=True, transaction_version=level)) as running:
        assert (running.state(), len(running.records())) == ("CompleteCommit", 1)
        assert (await running.read()).last_stable_offset == 0


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
        await _goes_on(restarted, b"v", b"v", commit=commit)
