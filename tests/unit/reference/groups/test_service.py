"""The shell of groups: what is durable before an answer, what a restart finds, deadlines, and the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from spark_2pc_sink.reference.groups.members import GroupState
from spark_2pc_sink.reference.log.partition_log import PartitionLog
from spark_2pc_sink.reference.storage.errors import LogFailedError, UnreadableRecordError
from spark_2pc_sink.reference.storage.group_sync import Synced
from tests.unit.reference.groups import messages
from tests.unit.reference.groups.group_rig import FakeCluster, GroupRig, codes_of, running_groups

DAY_MS = 86_400_000


class Disk:
    """Stands between the groups' logs and their disk: writes wait until it is let go, or fail."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.free = asyncio.Event()
        self.asked = asyncio.Event()
        self.failure: LogFailedError | None = None
        for log in cluster.partitions.values():
            log.flush = self._slow(log)  # type: ignore[method-assign]

    def _slow(self, log: PartitionLog) -> Callable[[], Synced]:
        flush = log.flush

        async def slow() -> LogFailedError | None:
            if log.high_watermark < log.end_offset:
                self.asked.set()
                await self.free.wait()
            return self.failure or await flush()

        return lambda: asyncio.ensure_future(slow())


async def waiting(*tasks: asyncio.Task[Any]) -> bool:
    """True when none of the requests is answered although everything else has had its turn."""
    for _ in range(20):
        await asyncio.sleep(0)
    return not any(task.done() for task in tasks)


async def test_an_offset_is_durable_before_the_answer_and_before_anybody_sees_it() -> None:
    async with running_groups() as rig:
        disk = Disk(rig.cluster)
        committing = asyncio.ensure_future(rig.ask("OffsetCommit", 9, **messages.commit("g", -1, "", {0: 5})))
        await disk.asked.wait()
        fetching = asyncio.ensure_future(rig.ask("OffsetFetch", 7, **messages.fetch_one("g", None)))
        assert await waiting(committing, fetching)
        disk.free.set()
        commit, fetch = await asyncio.wait_for(asyncio.gather(committing, fetching), timeout=5)
        assert codes_of(commit) == [0]
        assert fetch["topics"][0]["partitions"][0]["committed_offset"] == 5


async def test_a_disk_that_fails_is_told_to_the_client() -> None:
    """Kafka answers NOT_COORDINATOR where the log cannot be written; the group rebalances."""
    async with running_groups() as rig:
        joined = await rig.ask("JoinGroup", 3, **messages.join())
        disk = Disk(rig.cluster)
        disk.failure = LogFailedError(path="log", operation="fdatasync", detail="gone")
        disk.free.set()
        synced = await rig.ask("SyncGroup", 3, **messages.sync("g", 1, joined["member_id"], {"c-1": b"A"}))
        assert (synced["error_code"], rig.service.store.groups["g"].state) == (16, GroupState.PREPARING_REBALANCE)
        assert await rig.commit("other", -1, "", {0: 5}) == [16]


async def test_a_change_of_the_system_s_clock_ends_no_session() -> None:
    async with running_groups() as rig:
        member_id = await rig.stable()
        rig.clock_shift_ms = DAY_MS
        rig.service.expire("g")
        assert set(rig.service.store.groups["g"].members) == {member_id}
        rig.now_ms += DAY_MS
        rig.service.expire("g")
        assert not rig.service.store.groups["g"].members


async def test_offsets_are_forgotten_after_the_retention_time() -> None:
    async with running_groups() as rig:
        await rig.commit("simple", -1, "", {0: 5})
        await rig.commit_in_transaction("open", (44, 0), {0: 5})
        rig.now_ms += 7 * DAY_MS
        await rig.service.remove_expired()
        assert set(rig.service.store.groups) == set(rig.restarted().service.store.groups) == {"open"}


async def test_offsets_of_a_topic_that_is_deleted_are_too() -> None:
    async with running_groups() as rig:
        for group in ("g", "h"):
            await rig.commit(group, -1, "", {0: 5, 1: 6})
        rig.service.forget_topic("payments")
        assert len(rig.service.store.offsets("g").of_group("g")) == 2
        rig.service.forget_topic("orders")
        for found in (rig, rig.restarted()):
            assert not any(found.service.store.offsets(group).of_group(group) for group in ("g", "h"))


def test_a_record_that_is_not_understood_is_named() -> None:
    cluster = FakeCluster()
    log = cluster.partitions[1]
    log.append_records([(b"\0\1", b"garbage")], now_ms=0)
    with pytest.raises(UnreadableRecordError, match="offset 0 of __consumer_offsets-1") as refused:
        GroupRig(cluster=cluster)
    assert "restore the data directory" in str(refused.value)
