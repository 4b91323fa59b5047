"""The traces of KIP-939 with apache/kafka pull request 21735, through the handlers down to the markers in the logs.

They are the reference vectors A to I that the coordinator's own tests run on the pure machine; here the end markers,
the sequence numbers and the replay of the state log are the real ones.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.reference.coordinator.states import TransactionState
from tests.unit.reference.coordinator.driver import KEEPING, metadata
from tests.unit.reference.node import Disk, Node, committed, node
from tests.unit.reference.seeds import seeded
from tests.unit.reference.waiting import until

T0 = TopicPartition("t", 0)
#: Ids that the node hands out begin here, so that they are told from those of the traces.
FRESH = 5000


@asynccontextmanager
async def _followed(disk: Disk, **changes: Any) -> AsyncIterator[Node]:
    disk.next_producer_id = FRESH
    async with node(disk, settings=replace(KEEPING, **changes)) as running:
        yield running


def _ongoing(pair: tuple[int, int], client: tuple[int, int] | None = None) -> Disk:
    following = {} if client is None else {"next_producer_id": client[0], "next_producer_epoch": client[1]}
    return seeded(metadata(TransactionState.ONGOING, pair, **following), data={T0: pair})


async def _end(running: Node, pair: tuple[int, int], *, commit: bool = True) -> tuple[int, tuple[int, int]]:
    """The first answer that is not "try again", once nothing is pending."""
    await running.settled()
    ended = await running.end(pair, commit=commit)
    await running.settled()
    return ended.error_code, (ended.producer_id, ended.producer_epoch)


async def test_a_crash_between_the_decision_and_its_completion_keeps_the_pairs() -> None:
    """Trace I: the tags bring back the next pair, and the marker is sent again at 32767."""
    disk = _ongoing((42, 32766), (73, 32766))
    # The marker cannot be written, so the node stays between the two records.
    async with node(disk, settings=KEEPING) as running:
        disk.append_error = "t-0"
        assert (await running.end((73, 32766))).error_code == 0
        await until(lambda: len(running.records()) == 2)
        left = disk.copied(everything=False)
    async with _followed(left) as running:
        assert await running.settled() == "CompleteCommit"
        assert running.markers_of() == [(42, 32767, "commit")]
        assert await _end(running, (73, 32766)) == (0, (0, 0))


async def test_a_second_marker_after_a_crash_is_taken_and_changes_nothing() -> None:
    """The marker was durable, the Complete record was not: after the restart there are two, and one transaction."""
    disk = _ongoing((42, 100))
    async with node(disk, settings=KEEPING) as running:
        disk.stop_at = disk.syncs + 3  # PrepareCommit, marker, CompleteCommit
        assert (await running.end((42, 100))).error_code == 0
        await until(disk.stopped.is_set)
        left = disk.copied(everything=False)
        disk.released.set()
    async with _followed(left) as running:
        assert await running.settled() == "CompleteCommit"
        assert running.markers_of() == [(42, 101, "commit")] * 2
        assert committed(await running.read()) == [b"before"]
        assert await running.write((42, 101)) == 0
