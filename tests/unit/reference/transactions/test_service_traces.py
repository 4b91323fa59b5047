"""The traces of KIP-939 with apache/kafka pull request 21735, through the handlers down to the markers in the logs.

They are the reference vectors A to I that the coordinator's own tests run on the pure machine; here the end markers,
the sequence numbers and the replay of the state log are the real ones.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from spark_2pc_sink.codes import Code
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.reference.coordinator.states import TransactionMetadata, TransactionState
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


def _at_rest(pair: tuple[int, int]) -> TransactionMetadata:
    return metadata(TransactionState.COMPLETE_COMMIT, pair)


def _ongoing(pair: tuple[int, int], client: tuple[int, int] | None = None) -> Disk:
    following = {} if client is None else {"next_producer_id": client[0], "next_producer_epoch": client[1]}
    return seeded(metadata(TransactionState.ONGOING, pair, **following), data={T0: pair})


async def _keep(running: Node, **fields: Any) -> tuple[tuple[int, int], tuple[int, int]]:
    """The pair that is handed out, and that of the transaction that was kept."""
    made = await running.init(enable2_pc=True, keep_prepared_txn=True, **fields)
    assert made.error_code == 0
    return (made.producer_id, made.producer_epoch), (made.ongoing_txn_producer_id, made.ongoing_txn_producer_epoch)


async def _end(running: Node, pair: tuple[int, int], *, commit: bool = True) -> tuple[int, tuple[int, int]]:
    """The first answer that is not "try again", once nothing is pending."""
    await running.settled()
    ended = await running.end(pair, commit=commit)
    await running.settled()
    return ended.error_code, (ended.producer_id, ended.producer_epoch)


async def test_a_kept_transaction_is_committed_with_the_pair_that_was_handed_out() -> None:
    """Trace A: the marker has the transaction's epoch + 1, the next pair is one beyond the client's."""
    async with _followed(seeded(_at_rest((42, 100)))) as running:
        assert await running.write((42, 100)) == 0
        assert await _keep(running) == ((42, 101), (42, 100))
        assert await _end(running, (42, 101)) == (0, (42, 102))
        assert running.markers_of() == [(42, 101, "commit")]
        assert await _end(running, (42, 101)) == (0, (42, 102))
        assert await _end(running, (42, 100)) == (Code.PRODUCER_FENCED, (-1, -1))
        # The leader holds epoch 101 and no batches.
        assert await running.write((42, 102), sequence=1) == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert await running.write((42, 102), sequence=0) == 0
        assert await _end(running, (42, 102)) == (0, (42, 103))
        assert committed(await running.read()) == [b"v", b"v"]


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


async def test_nothing_can_be_added_to_a_kept_transaction() -> None:
    """KIP-939: after a restart "the application is only allowed to call" commit, abort or complete."""
    async with _followed(_ongoing((42, 100))) as running:
        assert await _keep(running) == ((42, 101), (42, 100))
        assert await running.write((42, 101), partition=1) == Code.INVALID_TXN_STATE
        # Where its data is already the leader fences the first producer; elsewhere the coordinator does.
        assert await running.write((42, 100), sequence=1) == Code.INVALID_PRODUCER_EPOCH
        assert await running.write((42, 100), partition=1) == Code.INVALID_PRODUCER_EPOCH
        assert await _end(running, (42, 101)) == (0, (42, 102))
        assert await running.write((42, 100), sequence=2) == Code.INVALID_PRODUCER_EPOCH


async def test_below_the_epoch_bump_markers_carry_the_epoch_of_the_data() -> None:
    """Transaction version 0: EndTxn v4 and AddPartitionsToTxn v3, whose transactions share an epoch."""
    async with _followed(Disk(), transaction_version=0) as running:
        made = await running.init()
        pair = (made.producer_id, made.producer_epoch)
        for sequence in (0, 1):
            assert await running.add(pair, ("t", 0)) == [0]
            assert await running.write(pair, sequence=sequence, version=11) == 0
            ended = await running.end(pair, version=4)
            assert (ended.error_code, ended.producer_id) == (0, -1)
            assert await running.settled() == "CompleteCommit"
        assert running.markers_of() == [(*pair, "commit")] * 2
