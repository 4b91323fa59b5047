"""The shell of the coordinator over logs in memory: what is durable when, what a crash leaves, what time does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest

from spark_2pc_sink.codes import Code
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.reference.config.properties import BrokerProperties
from spark_2pc_sink.reference.coordinator.coordinator_state import Settings
from spark_2pc_sink.reference.coordinator.events import AddPartitionsToTxn, DescribeTransactions
from spark_2pc_sink.reference.coordinator.plans import AddPartitionsReply
from spark_2pc_sink.reference.coordinator.states import StateId
from spark_2pc_sink.reference.internal_topics import TRANSACTION_STATE
from spark_2pc_sink.reference.log.log_values import Appended
from spark_2pc_sink.reference.storage.errors import UnreadableRecordError
from spark_2pc_sink.reference.transactions.service import RETRY_PAUSE_MS, settings_of
from tests.unit.reference.coordinator.driver import KEEPING, metadata
from tests.unit.reference.node import START_MS, TID, Disk, FakeCluster, Node, batch, committed, node
from tests.unit.reference.seeds import seeded
from tests.unit.reference.waiting import present, until

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


async def test_an_event_without_a_record_is_answered_without_waiting() -> None:
    async with node() as running:
        waiting = running.service.submit(DescribeTransactions(transactional_ids=("nobody",)))
        with pytest.raises(StopIteration) as answered:
            waiting.send(None)
        assert answered.value.value.transactions[0].code == Code.TRANSACTIONAL_ID_NOT_FOUND


async def test_the_first_id_is_there_at_once_and_a_restart_goes_on_with_the_next_block() -> None:
    disk = Disk()
    async with node(disk) as running:
        assert [(await running.init(None)).producer_id for _ in range(2)] == [0, 1]
    async with node(disk.copied(everything=True)) as restarted:
        assert (await restarted.init(None)).producer_id == 1000


async def test_a_record_of_a_kind_that_is_not_known_does_not_keep_the_node_from_starting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """TransactionLog.readTxnRecordKey: an unknown key version is warned of and ignored, as left by an upgrade."""
    disk = seeded(metadata(StateId.COMPLETE_COMMIT))
    log = present(FakeCluster(disk).log(TRANSACTION_STATE, 0))
    end = log.append_records([(b"\0\x63of another kind", b"\0\0value")], now_ms=START_MS).base_offset
    async with node(disk.copied(everything=True)) as restarted:
        assert restarted.state() == "CompleteCommit"
    assert caplog.messages == [f"skipped offset {end} of __transaction_state-0: unknown key version 99"]


async def test_a_record_that_is_not_understood_is_named_and_nothing_is_lost() -> None:
    """D12."""
    disk = seeded(metadata(StateId.COMPLETE_COMMIT))
    log = present(FakeCluster(disk).log(TRANSACTION_STATE, 0))
    offset = log.append_records([(b"\0\0garbage", b"\0\0value")], now_ms=START_MS).base_offset
    before = disk.stores[TRANSACTION_STATE, 0].files[0].size_bytes
    with pytest.raises(UnreadableRecordError, match=r"Start the version that wrote it") as refused:
        async with node(disk):
            pass
    assert (refused.value.topic, refused.value.partition, refused.value.offset) == (TRANSACTION_STATE, 0, offset)
    assert refused.value.path == log.unreadable(offset, "").path
    assert disk.stores[TRANSACTION_STATE, 0].files[0].size_bytes == before


async def test_while_a_block_is_being_allocated_no_other_one_is() -> None:
    async with node() as running:
        allocate, asked, finish = running.cluster.allocate_producer_ids, 0, asyncio.Event()

        async def slow() -> Any:
            nonlocal asked
            asked += 1
            await finish.wait()
            return await allocate()

        running.cluster.allocate_producer_ids = slow  # type: ignore[method-assign]
        for _ in range(1000):
            assert (await running.init(None)).error_code == 0
            await asyncio.sleep(0)
        # Kafka answers so as long as it has no block.
        assert (await running.init(None)).error_code == Code.COORDINATOR_LOAD_IN_PROGRESS
        finish.set()
        await until(lambda: running.service.state.producer_ids.following is not None)
        assert (asked, (await running.init(None)).producer_id) == (1, 1000)


async def test_a_block_that_cannot_be_allocated_is_asked_for_again() -> None:
    async with node() as running:
        allocate, asked = running.cluster.allocate_producer_ids, 0

        async def failing() -> Any:
            nonlocal asked
            asked += 1
            if asked == 1:
                raise OSError("the catalog's disk")
            return await allocate()

        running.cluster.allocate_producer_ids = failing  # type: ignore[method-assign]
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        for _ in range(1000):
            await running.init(None)
            await asyncio.sleep(0)
        assert (asked, (await running.init(None)).producer_id) == (2, 1000)


async def test_nothing_is_answered_before_the_record_is_durable() -> None:
    disk = Disk(stop_at=1)
    async with node(disk) as running:
        task = asyncio.ensure_future(running.init())
        await until(disk.stopped.is_set)
        assert not task.done()
        # While it is pending every other request of the id waits, too.
        assert (await running.init()).error_code == Code.CONCURRENT_TRANSACTIONS
        disk.released.set()
        assert (await task).error_code == 0


async def test_a_caller_that_is_cancelled_leaves_no_id_pending() -> None:
    disk = Disk(stop_at=1)
    async with node(disk) as running:
        task = asyncio.ensure_future(running.init())
        await until(disk.stopped.is_set)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        disk.released.set()
        assert await running.settled() == "Empty"
        assert (await running.init()).producer_epoch == 1


@pytest.mark.parametrize("phase", ["init", "add", "end"])
async def test_an_append_that_fails_leaves_the_id_as_it_was(phase: str) -> None:
    async with node(seeded(metadata(StateId.COMPLETE_COMMIT))) as running:
        if phase == "end":
            assert await running.write((42, 5)) == 0
        before = running.service.state
        running.disk.append_error = TRANSACTION_STATE
        if phase == "init":
            assert (await running.init()).error_code == Code.NOT_COORDINATOR
        elif phase == "add":
            # The leader hides that the coordinator is away.
            assert await running.write((42, 5)) == Code.NOT_ENOUGH_REPLICAS
            assert running.batches() == []
        else:
            failed = await running.end((42, 5))
            assert (failed.error_code, failed.producer_id) == (Code.NOT_COORDINATOR, -1)
        assert running.service.state == before
        running.disk.append_error = ""
        assert (await running.end((42, 5), commit=False)).error_code == 0
        assert await running.settled() == "CompleteAbort"


async def test_a_record_that_may_not_be_durable_is_not_answered_as_done_and_the_restart_decides() -> None:
    """After a failed fdatasync nobody knows what is on the disk: the log takes nothing more until the next start."""
    disk = seeded(metadata(StateId.COMPLETE_COMMIT))
    async with node(disk) as running:
        before = running.service.state
        disk.sync_error = TRANSACTION_STATE
        for _ in range(2):
            assert (await running.init()).error_code == Code.NOT_COORDINATOR
            assert running.service.state == before
    for everything, epoch in ((True, 7), (False, 6)):
        async with node(disk.copied(everything=everything)) as restarted:
            made = await restarted.init()
            assert (made.error_code, made.producer_id, made.producer_epoch) == (0, 42, epoch)


async def test_a_completion_that_the_log_does_not_take_for_a_moment_is_tried_again_after_a_pause() -> None:
    async with node(seeded(metadata(StateId.COMPLETE_COMMIT))) as running:
        assert await running.write((42, 5)) == 0
        log = present(running.cluster.log(TRANSACTION_STATE, running.service.state.partition_of(TID)))
        append, tried_s = log.append_records, []

        def busy_once(records: Any, *, now_ms: int) -> Appended:
            tried_s.append(asyncio.get_running_loop().time())
            if len(tried_s) == 2:
                return Appended(Code.NOT_ENOUGH_REPLICAS)
            return append(records, now_ms=now_ms)

        with mock.patch.object(log, "append_records", busy_once):
            assert (await running.end((42, 5))).error_code == 0
            assert await running.settled() == "CompleteCommit"
        assert len(tried_s) == 3
        assert tried_s[2] - tried_s[1] >= 0.9 * RETRY_PAUSE_MS / 1000


async def test_a_marker_that_cannot_be_written_is_tried_again() -> None:
    async with node(seeded(metadata(StateId.COMPLETE_COMMIT))) as running:
        assert [await running.write((42, 5), partition=index) for index in (0, 1)] == [0, 0]
        running.disk.append_error = "t-1"
        assert (await running.end((42, 5))).error_code == 0
        await until(running.markers_of)
        loop = asyncio.get_running_loop()
        await until(lambda: running.disk.failed_appends >= 1)
        start_s = loop.time()
        await until(lambda: running.disk.failed_appends >= 2)
        assert loop.time() - start_s >= 0.9 * RETRY_PAUSE_MS / 1000
        found = present(running.service.state.get(TID))
        assert found.partitions == frozenset({T1})
        running.disk.append_error = ""
        assert await running.settled() == "CompleteCommit"
        # A partition that had its marker gets no second one.
        assert [running.markers_of(partition=index) for index in (0, 1)] == [[(42, 6, "commit")]] * 2


async def test_nothing_is_owed_to_a_deleted_topic() -> None:
    async with node(seeded(metadata(StateId.COMPLETE_COMMIT))) as running:
        answers = await running.produce(
            {("t", 0): batch(b"v", pair=(42, 5), sequence=0), ("u", 0): batch(b"v", pair=(42, 5), sequence=0)}
        )
        assert [each.error_code for each in answers.values()] == [0, 0]
        running.cluster.delete("u")
        assert (await running.end((42, 5))).error_code == 0
        assert await running.settled() == "CompleteCommit"
        assert running.markers_of() == [(42, 6, "commit")]


async def test_groups_hear_of_a_marker_in_their_partition_when_it_is_durable() -> None:
    async with node(seeded(metadata(StateId.COMPLETE_COMMIT))) as running:
        offsets = TopicPartition("__consumer_offsets", 2)
        event = AddPartitionsToTxn(transactional_id=TID, producer_id=42, producer_epoch=5, partitions=(T0, offsets))
        reply = await running.service.submit(event)
        assert isinstance(reply, AddPartitionsReply)
        assert set(reply.codes.values()) == {0}
        running.disk.append_error = "__consumer_offsets"
        assert (await running.end((42, 5), commit=False)).error_code == 0
        await until(lambda: running.disk.failed_appends)
        assert running.group_markers == []
        running.disk.append_error = ""
        assert await running.settled() == "CompleteAbort"
        assert running.group_markers == [(2, 42, False)]


# --- time -------------------------------------------------------------------------------------------------------------


async def test_the_timers_run_by_themselves_until_the_end() -> None:
    running = Node(Disk(), Settings(), verification=None)
    running.service._properties = BrokerProperties(
        transaction_abort_timed_out_transaction_cleanup_interval_ms=1,
        transaction_remove_expired_transaction_cleanup_interval_ms=1,
    )
    await running.service.load()
    running.service.start()
    made = await running.init()
    assert await running.write((made.producer_id, 0)) == 0
    running.now_ms += 60_001
    await until(running.markers_of)
    await running.service.stop()
    assert running.markers_of() == [(0, 1, "abort")]
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


async def test_who_waits_for_an_id_is_woken_by_its_next_change_or_by_time() -> None:
    async with node() as running:
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        await asyncio.gather(*(running.service.next_change(TID, timeout_ms=5) for _ in range(2)))
        assert loop.time() - start_s >= 0.004
        waiting = asyncio.ensure_future(running.service.next_change(TID, timeout_ms=60_000))
        await until(lambda: running.service._waiting_for_change)
        await running.init()
        await asyncio.wait_for(waiting, 5)
        assert running.service._waiting_for_change == {}


# --- crashes ----------------------------------------------------------------------------------------------------------


class Job:
    """A producer that writes one committed and one aborted transaction, and repeats what was not answered.

    It goes on with its pair after a crash of the node, as Kafka's clients do.
    """

    def __init__(self) -> None:
        self.pair = (-1, -1)
        self.done = 0

    async def run(self, running: Node) -> None:
        steps = (self._init, self._write_both, self._commit, self._write_both, self._abort)
        while self.done < len(steps):
            await steps[self.done](running)
            self.done += 1

    async def _init(self, running: Node) -> None:
        made = await running.init()
        if made.error_code == Code.CONCURRENT_TRANSACTIONS:
            await self._again(running)
            return
        assert made.error_code == 0
        self.pair = (made.producer_id, made.producer_epoch)

    async def _write_both(self, running: Node) -> None:
        records = batch(b"first" if self.done == 1 else b"second", pair=self.pair, sequence=0)
        codes = [each.error_code for each in (await running.produce({("t", 0): records, ("t", 1): records})).values()]
        if set(codes) & {Code.CONCURRENT_TRANSACTIONS}:
            await self._again(running)
            return
        assert codes == [0, 0]

    async def _commit(self, running: Node) -> None:
        await self._end(running, commit=True)

    async def _abort(self, running: Node) -> None:
        await self._end(running, commit=False)

    async def _end(self, running: Node, *, commit: bool) -> None:
        ended = await running.end(self.pair, commit=commit)
        if ended.error_code == Code.CONCURRENT_TRANSACTIONS:
            await self._again(running)
            return
        assert (ended.error_code, ended.producer_id) == (0, self.pair[0])
        assert ended.producer_epoch == self.pair[1] + 1
        self.pair = (ended.producer_id, ended.producer_epoch)

    async def _again(self, running: Node) -> None:
        self.done -= 1
        await asyncio.sleep(0.001)


async def _crashed(disk: Disk, job: Job, *, everything: bool) -> Disk:
    """Run the job until the disk stops, and return what is left on it."""
    async with node(disk) as running:
        task = asyncio.ensure_future(job.run(running))
        await until(lambda: task.done() or disk.stopped.is_set())
        # What was answered was answered: a reply that is ready goes out before the crash.
        await asyncio.sleep(0)
        left = disk.copied(everything=everything)
        task.cancel()
        disk.released.set()
        await asyncio.wait({task})
        return left


#: More than there are waits for the disk in a whole job, so that the last ones run to its end.
SYNCS_MAX = 16


def _crash_points() -> Iterator[tuple[int, bool]]:
    return ((stop_at, everything) for stop_at in range(1, SYNCS_MAX + 1) for everything in (True, False))


@pytest.mark.parametrize(("stop_at", "everything"), list(_crash_points()))
async def test_a_crash_at_any_wait_for_the_disk_changes_no_answer(stop_at: int, everything: bool) -> None:
    """Nothing that was answered is lost, nothing appears twice, and no transaction is left hanging."""
    job = Job()
    left = await _crashed(Disk(stop_at=stop_at), job, everything=everything)
    async with node(left) as restarted:
        await job.run(restarted)
        assert await restarted.settled() == "CompleteAbort"
        for index in (0, 1):
            got = await restarted.read(index)
            assert committed(got) == [b"first"]
            assert got.last_stable_offset == got.high_watermark
            assert {marker[1:] for marker in restarted.markers_of(partition=index)} == {
                (job.pair[1] - 1, "commit"),
                (job.pair[1], "abort"),
            }


async def test_the_crash_points_reach_to_the_end_of_the_job() -> None:
    disk = Disk()
    async with node(disk) as running:
        await Job().run(running)
        await running.settled()
    assert 10 < disk.syncs <= SYNCS_MAX


# --- what it is made of -----------------------------------------------------------------------------------------------


def test_settings_and_intervals_come_from_the_properties() -> None:
    properties = BrokerProperties.from_mapping(
        {
            "transaction.keep.prepared.enable": "true",
            "unstable.api.versions.enable": "true",
            "transaction.two.phase.commit.enable": "true",
            "transaction.max.timeout.ms": "1000",
            "transactional.id.expiration.ms": "2000",
        }
    )
    settings = settings_of(properties, transaction_version=1, offsets_partition_count=7)
    assert (settings.profile.name, settings.two_phase_commit_enable) == ("KEEP_PREPARED", True)
    assert (settings.transaction_version, settings.offsets_partition_count) == (1, 7)
    assert (settings.transaction_max_timeout_ms, settings.transactional_id_expiration_ms) == (1000, 2000)
    defaults = settings_of(BrokerProperties(), transaction_version=2, offsets_partition_count=50)
    assert defaults == replace(Settings(), two_phase_commit_enable=False)


#: Ids that the node hands out begin here, so that they are told from those of the traces.
FRESH = 5000


@asynccontextmanager
async def _followed(disk: Disk, **changes: Any) -> AsyncIterator[Node]:
    disk.next_producer_id = FRESH
    async with node(disk, settings=replace(KEEPING, **changes)) as running:
        yield running


def _ongoing(pair: tuple[int, int], client: tuple[int, int] | None = None) -> Disk:
    following = {} if client is None else {"next_producer_id": client[0], "next_producer_epoch": client[1]}
    return seeded(metadata(StateId.ONGOING, pair, **following), data={T0: pair})


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
