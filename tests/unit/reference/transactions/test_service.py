"""The shell of the coordinator over logs in memory: what is durable when, what a crash or a loss of power leaves."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from unittest import mock

import pytest

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import RemoteProtocolError
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.reference.config.properties import BrokerProperties
from spark_2pc_sink.reference.coordinator.events import AddPartitionsToTxn
from spark_2pc_sink.reference.coordinator.plans import AddPartitionsReply
from spark_2pc_sink.reference.coordinator.states import Settings, StateId
from spark_2pc_sink.reference.internal_topics import TRANSACTION_STATE
from spark_2pc_sink.reference.log.partition_log import UnreadableRecordError
from spark_2pc_sink.reference.transactions.service import RETRY_PAUSE_MS, Background
from tests.unit.reference.coordinator.driver import T0, T1, metadata
from tests.unit.reference.node import START_MS, TID, Disk, FakeCluster, Node, batch, committed, known, node, seeded
from tests.unit.reference.waiting import present, until


async def test_a_record_of_a_kind_that_is_not_known_does_not_keep_the_node_from_starting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """TransactionLog.readTxnRecordKey: an unknown key version is warned of and ignored, as left by an upgrade."""
    disk = known()
    log = present(FakeCluster(disk).log(TRANSACTION_STATE, 0))
    end = log.append_records([(b"\0\x63of another kind", b"\0\0value")], now_ms=START_MS).base_offset
    async with node(disk.copied(everything=True)) as restarted:
        assert restarted.state() == "CompleteCommit"
    assert caplog.messages == [f"skipped offset {end} of __transaction_state-0: unknown key version 99"]


async def test_a_record_that_is_not_understood_is_named_and_nothing_is_lost() -> None:
    """D12."""
    disk = known()
    log = present(FakeCluster(disk).log(TRANSACTION_STATE, 0))
    offset = log.append_records([(b"\0\0garbage", b"\0\0value")], now_ms=START_MS).base_offset
    before = disk.stores[TRANSACTION_STATE, 0].files[0].size_bytes
    with pytest.raises(UnreadableRecordError, match=r"Start the version that wrote it") as refused:
        async with node(disk):
            pass
    assert (refused.value.topic, refused.value.partition, refused.value.offset) == (TRANSACTION_STATE, 0, offset)
    assert refused.value.path == log.unreadable(offset, "").path
    assert disk.stores[TRANSACTION_STATE, 0].files[0].size_bytes == before


@pytest.mark.parametrize("phase", ["init", "add", "end"])
async def test_an_append_that_fails_leaves_the_id_as_it_was(phase: str) -> None:
    async with node(known()) as running:
        if phase == "end":
            assert await running.write((42, 5)) == 0
        before = running.service.state.partitions
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
        assert running.service.state.partitions == before
        running.disk.append_error = ""
        assert (await running.end((42, 5), commit=False)).error_code == 0
        assert await running.settled() == "CompleteAbort"


async def test_a_record_that_may_not_be_durable_is_not_answered_as_done_and_the_restart_decides() -> None:
    """After a failed fdatasync nobody knows what is on the disk: the log takes nothing more until the next start."""
    disk = known()
    async with node(disk) as running:
        before = running.service.state.partitions
        disk.sync_error = TRANSACTION_STATE
        for _ in range(2):
            assert (await running.init()).error_code == Code.NOT_COORDINATOR
            assert running.service.state.partitions == before
    for everything, epoch in ((True, 7), (False, 6)):
        async with node(disk.copied(everything=everything)) as restarted:
            made = await restarted.init()
            assert (made.error_code, made.producer_id, made.producer_epoch) == (0, 42, epoch)


async def test_a_marker_that_cannot_be_written_is_tried_again() -> None:
    async with node(known()) as running:
        assert [await running.write((42, 5), partition=index) for index in (0, 1)] == [0, 0]
        running.disk.append_error = "t-1"
        assert (await running.end((42, 5))).error_code == 0
        await until(running.markers_of)
        loop = asyncio.get_running_loop()
        await until(lambda: running.disk.failed_appends >= 1)
        start_s = loop.time()
        await until(lambda: running.disk.failed_appends >= 2)
        assert loop.time() - start_s >= 0.9 * RETRY_PAUSE_MS / 1000
        assert running.added() == {T1}
        running.disk.append_error = ""
        assert await running.settled() == "CompleteCommit"
        # A partition that had its marker gets no second one.
        assert [running.markers_of(index) for index in (0, 1)] == [[(42, 6, "commit")]] * 2


async def test_the_record_that_closes_a_transaction_is_tried_again_when_the_disk_has_room() -> None:
    async with node(known()) as running:
        assert await running.write((42, 5)) == 0
        running.disk.append_error = "t-0"
        assert (await running.end((42, 5))).error_code == 0
        await until(lambda: running.disk.failed_appends)
        running.disk.append_error, refused = TRANSACTION_STATE, running.disk.failed_appends
        await until(lambda: running.markers_of() and running.disk.failed_appends > refused)
        assert running.state() == "PrepareCommit"
        running.disk.append_error = ""
        assert await running.settled() == "CompleteCommit"
        assert running.markers_of() == [(42, 6, "commit")]


async def test_a_partition_that_is_gone_is_dropped() -> None:
    """Leader unknown in metadata (deleted topic) -> partition dropped; B18."""
    async with node(known()) as running:
        assert [await running.write((42, 5), partition=index) for index in (0, 1)] == [0, 0]
        running.disk.topics["t"] = replace(running.disk.topics["t"], partitions=1)
        assert (await running.end((42, 5))).error_code == 0
        assert await running.settled() == "CompleteCommit"
        assert running.markers_of() == [(42, 6, "commit")]


async def test_groups_hear_of_a_marker_in_their_partition_when_it_is_durable() -> None:
    async with node(known()) as running:
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


async def test_an_id_that_no_record_can_hold_is_refused_and_nothing_stays_pending() -> None:
    """Its length stands in two bytes of the log's key (TransactionLogKey). Kafka closes the connection, too."""
    longest = "\u00fc" * 16383 + "x"
    async with node() as running:
        assert (await running.init(longest)).error_code == 0
        for _ in range(2):
            with pytest.raises(RemoteProtocolError, match="more than 32767 bytes"):
                await running.init(longest + "x")
        assert running.state(longest + "x") == ""


# --- producer ids -----------------------------------------------------------------------------------------------------


async def test_the_next_block_is_there_when_an_id_is_needed() -> None:
    async with node() as running:
        assert (await running.init("first")).producer_id == 0
        running.service.state = replace(running.service.state, producer_ids=range(999, 1000))
        made = await asyncio.gather(*(running.init(name) for name in ("second", "third", "fourth")))
        assert [each.producer_id for each in made] == [999, 1000, 1001]


async def test_while_the_disk_refuses_a_block_only_new_ids_wait() -> None:
    async with node(known()) as running:
        full = OSError("no space left on device")
        with mock.patch.object(running.cluster, "allocate_producer_ids", side_effect=full):
            assert (await running.init("new")).error_code == Code.COORDINATOR_LOAD_IN_PROGRESS
            assert (await running.init()).error_code == 0
        assert (await running.init("new")).error_code == 0


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


async def test_a_timer_goes_on_behind_a_round_that_failed(caplog: pytest.LogCaptureFixture) -> None:
    """Else no transaction would time out any more."""
    owner = Background()
    rounds = 0

    async def work() -> None:
        nonlocal rounds
        rounds += 1
        if rounds == 1:
            raise OSError("too many open files")

    owner.every(1, work)
    await until(lambda: rounds >= 3)
    await owner.stop()
    assert [record.getMessage() for record in caplog.records] == ["background work failed; retrying in 1 ms"]


# --- crashes ----------------------------------------------------------------------------------------------------------


JOB_STEPS = 5


class Job:
    """A producer that writes one committed and one aborted transaction, and repeats what was not answered.

    It goes on with its pair after a crash of the node, as Kafka's clients do.
    """

    def __init__(self) -> None:
        self.pair = (-1, -1)
        self.done = 0

    async def run(self, running: Node) -> None:
        while self.done < JOB_STEPS:
            code = await self._step(running)
            assert code in {Code.NONE, Code.CONCURRENT_TRANSACTIONS}
            if code:
                await asyncio.sleep(0.001)
            else:
                self.done += 1

    async def _step(self, running: Node) -> int:
        """A pair, then each transaction's records and its end."""
        if self.done % 2:
            records = batch(b"first" if self.done == 1 else b"second", pair=self.pair, sequence=0)
            answers = await running.produce({("t", 0): records, ("t", 1): records})
            return next((int(each.error_code) for each in answers.values() if each.error_code), 0)
        made = await (running.end(self.pair, commit=self.done == 2) if self.done else running.init())
        if not made.error_code:
            assert not self.done or (made.producer_id, made.producer_epoch) == (self.pair[0], self.pair[1] + 1)
            self.pair = (made.producer_id, made.producer_epoch)
        return int(made.error_code)


#: More than there are waits for the disk in a whole job, so that the last ones run to its end.
SYNCS_MAX = 16


@pytest.mark.parametrize("everything", [True, False])
@pytest.mark.parametrize("stop_at", range(1, SYNCS_MAX + 1))
async def test_a_crash_at_any_wait_for_the_disk_changes_no_answer(stop_at: int, everything: bool) -> None:
    """Nothing that was answered is lost, nothing appears twice, and no transaction is left hanging."""
    job, disk = Job(), Disk(stop_at=stop_at)
    async with node(disk) as running:
        task = asyncio.ensure_future(job.run(running))
        await until(lambda: task.done() or disk.stopped.is_set())
        # What was answered was answered: a reply that is ready goes out before the crash.
        await asyncio.sleep(0)
        left, answered = disk.copied(everything=everything), (job.pair, job.done)
        task.cancel()
        disk.released.set()
        await asyncio.wait({task})
        # Until Python 3.12 wait_for returns a reply that is ready in place of the cancellation: it is forgotten.
        job.pair, job.done = answered
    async with node(left) as restarted:
        await job.run(restarted)
        assert await restarted.settled() == "CompleteAbort"
        for index in (0, 1):
            got = await restarted.read(index)
            assert committed(got) == [b"first"]
            assert got.last_stable_offset == got.high_watermark
            assert {marker[1:] for marker in restarted.markers_of(index)} == {
                (job.pair[1] - 1, "commit"),
                (job.pair[1], "abort"),
            }


async def test_the_crash_points_reach_to_the_end_of_the_job() -> None:
    disk = Disk()
    async with node(disk) as running:
        await Job().run(running)
        await running.settled()
    assert 10 < disk.syncs <= SYNCS_MAX


PAIR = (42, 5)


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
        assert (running.state(), running.added()) == ("Ongoing", {T0})
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
    disk = known()
    async with node(disk) as running:
        assert await running.write(PAIR) == 0
        left = disk.copied(everything=False)
        assert (running.state(), len(running.records())) == ("Ongoing", 2)
    async with node(left) as restarted:
        assert (restarted.state(), restarted.added()) == ("Ongoing", {T0})
        await _goes_on(restarted, b"v", b"v", commit=commit)
