"""The shell of groups: what is durable before an answer, what a restart finds, deadlines, and the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from spark_2pc_sink.reference.config.properties import BrokerProperties
from spark_2pc_sink.reference.groups.members import Group, GroupState, JoinRequest, Member
from spark_2pc_sink.reference.groups.records import OffsetKey, OffsetValue
from spark_2pc_sink.reference.groups.store import OffsetTable
from spark_2pc_sink.reference.log.partition_log import PartitionLog
from spark_2pc_sink.reference.storage.errors import LogFailedError, UnreadableRecordError
from tests.unit.reference.groups import messages
from tests.unit.reference.groups.group_rig import FakeCluster, GroupRig, codes_of, running_groups

DAY_MS = 86_400_000
HOUR_MS = 3_600_000


class Disk:
    """Stands between the groups' logs and their disk: writes wait until it is let go, or fail."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.free = asyncio.Event()
        self.asked = asyncio.Event()
        self.failure: LogFailedError | None = None
        for log in cluster.partitions.values():
            log.sync = self._slow(log)  # type: ignore[method-assign]

    def _slow(self, log: PartitionLog) -> Callable[[], Coroutine[Any, Any, None]]:
        sync = log.sync

        async def slow() -> None:
            self.asked.set()
            await self.free.wait()
            if self.failure is not None:
                raise self.failure
            await sync()

        return slow


async def waiting(*tasks: asyncio.Task[Any]) -> bool:
    """True when none of the requests is answered although everything else has had its turn."""
    for _ in range(20):
        await asyncio.sleep(0)
    return not any(task.done() for task in tasks)


async def test_an_assignment_is_durable_before_anybody_gets_it() -> None:
    async with running_groups() as rig:
        joined = await rig.ask("JoinGroup", 3, **messages.join())
        disk = Disk(rig.cluster)
        syncing = asyncio.ensure_future(
            rig.ask("SyncGroup", 3, **messages.sync("g", 1, joined["member_id"], {"c-1": b"A"}))
        )
        await disk.asked.wait()
        assert await waiting(syncing)
        assert rig.service.store.groups["g"].state is GroupState.COMPLETING_REBALANCE
        disk.free.set()
        (answer,) = await rig.answered(syncing)
        assert (answer["error_code"], answer["assignment"]) == (0, "A")


async def test_an_offset_is_durable_before_the_answer_and_before_anybody_sees_it() -> None:
    async with running_groups() as rig:
        disk = Disk(rig.cluster)
        committing = asyncio.ensure_future(rig.ask("OffsetCommit", 9, **messages.commit("g", -1, "", {0: 5})))
        await disk.asked.wait()
        fetching = asyncio.ensure_future(rig.ask("OffsetFetch", 7, **messages.fetch_one("g", None)))
        assert await waiting(committing, fetching)
        disk.free.set()
        commit, fetch = await rig.answered(committing, fetching)
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


async def test_without_the_topic_of_offsets_there_is_no_coordinator() -> None:
    async with running_groups() as rig:
        rig.cluster.partitions.clear()
        assert await rig.commit("g", -1, "", {0: 5}) == [15]
        fields = messages.commit_in_transaction("g", (44, 0), {0: 5})
        assert codes_of(await rig.ask("TxnOffsetCommit", 5, **fields)) == [15]
        assert (await rig.ask("OffsetFetch", 7, **messages.fetch_one("g", None)))["error_code"] == 15


async def test_a_restart_finds_the_group_and_its_member_goes_on() -> None:
    async with running_groups() as rig:
        member_id = await rig.stable()
        again = rig.restarted()
        again.service.start()
        assert again.service.heartbeat("g", member_id, None, 1) == 0
        part = await again.ask("SyncGroup", 5, **messages.sync("g", 1, member_id))
        assert (part["error_code"], part["assignment"], part["protocol_name"]) == (0, "A", "range")
        await again.service.stop()


async def test_a_restart_gives_members_a_whole_session_and_then_removes_them() -> None:
    async with running_groups() as rig:
        await rig.stable()
        again = rig.restarted()
        again.now_ms += 9_999
        again.service.expire("g")
        assert again.service.store.groups["g"].members
        again.now_ms += 1
        again.service.expire("g")
        group = again.service.store.groups["g"]
        assert (group.state, group.generation, dict(group.members)) == (GroupState.EMPTY, 2, {})
        assert again.restarted().service.store.groups["g"].generation == 2


async def test_a_new_group_is_written_down_at_once() -> None:
    """Kafka writes the empty group when the first member is given its id."""
    async with running_groups() as rig:
        await rig.ask("JoinGroup", 9, **messages.join())
        assert rig.restarted().service.store.groups["g"].generation == 0


async def test_deadlines_are_met_by_themselves() -> None:
    """The member that does not come is missed by the timer alone; this test moves no clock."""
    async with running_groups(
        settings=BrokerProperties(group_initial_rebalance_delay_ms=1, group_min_session_timeout_ms=1)
    ) as rig:
        loop = asyncio.get_running_loop()
        rig.service._now_ms = rig.service._steady_ms = lambda: int(loop.time() * 1000)
        one = (await rig.ask("JoinGroup", 3, **messages.join(session_timeout_ms=50)))["member_id"]
        two = (await rig.ask("JoinGroup", 9, **messages.join(session_timeout_ms=50)))["member_id"]
        joined = await rig.ask("JoinGroup", 9, **messages.join("g", two))
        assert (joined["leader"], [each["member_id"] for each in joined["members"]]) == (two, [two])
        assert rig.service.heartbeat("g", one, None, 1) == 25


@pytest.mark.parametrize("set_ms", [-HOUR_MS, HOUR_MS])
async def test_sessions_do_not_follow_a_clock_that_is_set(set_ms: int) -> None:
    """As in Kafka: set back, a member that has died would be waited for an hour; set ahead, all would be dead."""
    async with running_groups() as rig:
        await rig.stable()
        rig.now_ms += 5_000
        rig.set_ms = set_ms
        rig.now_ms += 4_999
        rig.service.expire("g")
        assert rig.service.store.groups["g"].members
        rig.now_ms += 1
        rig.service.expire("g")
        group = rig.service.store.groups["g"]
        assert (group.members, group.state_since_ms) == ({}, rig.now_ms + set_ms)


@pytest.mark.parametrize("set_ms", [-HOUR_MS, HOUR_MS])
async def test_a_rebalance_does_not_follow_a_clock_that_is_set(set_ms: int) -> None:
    """The members wait for one that does not come, and for an id that was given out, as long as they would have."""
    async with running_groups() as rig:
        await rig.stable()
        pending = (await rig.ask("JoinGroup", 9, **messages.join()))["member_id"]
        joining = asyncio.ensure_future(rig.ask("JoinGroup", 9, **messages.join("g", pending)))
        await asyncio.sleep(0)
        before = rig.service.store.groups["g"]
        rig.set_ms = set_ms
        rig.service.heartbeat("g", "c-1", None, 1)
        after = rig.service.store.groups["g"]
        assert before.join_timer is not None
        assert after.join_timer is not None
        assert after.join_timer.deadline_ms - before.join_timer.deadline_ms == set_ms
        joining.cancel()


async def test_a_timer_that_is_due_later_gives_way_to_an_earlier_deadline() -> None:
    async with running_groups() as rig:
        await rig.stable()
        first = rig.service._timers["g"].when()
        rig.service.heartbeat("g", "c-1", None, 1)
        assert rig.service._timers["g"].when() == first
        await rig.ask("JoinGroup", 9, **messages.join(session_timeout_ms=1_000))
        assert rig.service._timers["g"].when() < first
        assert (await rig.ask("LeaveGroup", 0, group_id="g", member_id="c-2"))["error_code"] == 0
        await rig.ask("LeaveGroup", 0, group_id="g", member_id="c-1")
        assert rig.service._timers == {}


async def test_a_client_that_has_gone_is_not_answered() -> None:
    async with running_groups() as rig:
        await rig.stable()
        pending = (await rig.ask("JoinGroup", 9, **messages.join()))["member_id"]
        joining = asyncio.ensure_future(rig.ask("JoinGroup", 9, **messages.join("g", pending)))
        assert await waiting(joining)
        joining.cancel()
        with suppress(asyncio.CancelledError):
            await joining
        again = await rig.ask("JoinGroup", 9, **messages.join("g", "c-1"))
        assert (again["error_code"], len(again["members"])) == (0, 2)


async def test_the_end_answers_whoever_waits() -> None:
    async with running_groups() as rig:
        one = await rig.stable()
        two = (await rig.ask("JoinGroup", 9, **messages.join()))["member_id"]
        joining = asyncio.ensure_future(rig.ask("JoinGroup", 9, **messages.join("g", two)))
        assert await waiting(joining)
        await rig.service.stop()
        (answer,) = await rig.answered(joining)
        assert (answer["error_code"], answer["member_id"]) == (16, two)
        assert one in rig.restarted().service.store.groups["g"].members


async def test_offsets_are_forgotten_after_the_retention_time() -> None:
    async with running_groups() as rig:
        await rig.commit("simple", -1, "", {0: 5})
        await rig.stable()
        await rig.commit("g", 1, "c-1", {0: 5})
        await rig.commit_in_transaction("open", (44, 0), {0: 5})
        rig.now_ms += 7 * DAY_MS - 1
        await rig.service.remove_expired()
        assert set(rig.service.store.groups) == {"simple", "g", "open"}
        rig.now_ms += 1
        await rig.service.remove_expired()
        assert set(rig.service.store.groups) == set(rig.restarted().service.store.groups) == {"g", "open"}
        rig.service.expire("g")
        rig.now_ms += 7 * DAY_MS
        await rig.service.remove_expired()
        assert set(rig.service.store.groups) == {"open"}


async def test_offsets_of_a_topic_that_is_deleted_are_too() -> None:
    async with running_groups() as rig:
        for group in ("g", "h"):
            await rig.commit(group, -1, "", {0: 5, 1: 6})
        rig.service.forget_topic("payments")
        assert len(rig.service.store.offsets("g").of_group("g")) == 2
        rig.service.forget_topic("orders")
        for found in (rig, rig.restarted()):
            assert not any(found.service.store.offsets(group).of_group(group) for group in ("g", "h"))


async def test_many_tombstones_go_into_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_2pc_sink.reference.groups.store.TOMBSTONES_MAX", 2)

    async with running_groups() as rig:
        await rig.commit("g", -1, "", {0: 5, 1: 6, 2: 7})
        assert (await rig.ask("DeleteGroups", 2, groups_names=["g"]))["results"][0]["error_code"] == 0
        assert rig.restarted().service.store.groups == {}


async def test_texts_that_no_record_could_hold_are_refused() -> None:
    async with running_groups() as rig:
        long, wanted = "g" * 40_000, JoinRequest(ticket=None, protocols=(("range", b""),))
        assert (await rig.service.join(long, wanted)).code == 24
        for refused in (
            replace(wanted, instance_id=long),
            replace(wanted, protocol_type=long),
            replace(wanted, protocols=((long, b""),)),
        ):
            assert (await rig.service.join("g", refused)).code == -1
        assert rig.service.store.groups == {}


def test_a_record_that_is_not_understood_is_named() -> None:
    cluster = FakeCluster()
    log = cluster.partitions[1]
    log.append_records([(b"\0\1", b"garbage")], now_ms=0)
    with pytest.raises(UnreadableRecordError, match="offset 0 of __consumer_offsets-1") as refused:
        GroupRig(cluster=cluster)
    assert "restore the data directory" in str(refused.value)


KEY = OffsetKey("g", "orders", 0)


def at(offset: int, commit_ms: int = 0, expire_ms: int = -1) -> OffsetValue:
    return OffsetValue(offset=offset, commit_ms=commit_ms, expire_ms=expire_ms)


def test_transactions_do_not_see_each_other() -> None:
    table = OffsetTable()
    table.replay(0, 7, KEY, at(5))
    table.replay(1, 8, KEY, at(6))
    table.end_transaction(8, commit=True)
    assert (table.get(KEY), table.is_pending(KEY)) == (at(6), True)
    table.end_transaction(7, commit=True)
    assert (table.get(KEY), table.is_pending(KEY)) == (at(6), False)
    table.end_transaction(9, commit=True)


def test_a_tombstone_takes_pending_offsets_away_too() -> None:
    table = OffsetTable()
    table.replay(0, -1, KEY, at(1))
    table.replay(1, 7, KEY, at(5))
    table.replay(2, -1, KEY, None)
    assert (table.get(KEY), table.is_pending(KEY), table.keys_of(KEY.group_id)) == (None, False, [])
    table.end_transaction(7, commit=True)
    assert table.get(KEY) is None


SIMPLE = Group(group_id="g")
EMPTY = Group(group_id="g", protocol_type="consumer", state_since_ms=DAY_MS, topics=frozenset())
MEMBER = Member(
    member_id="m",
    instance_id=None,
    client_id="c",
    client_host="h",
    session_timeout_ms=1,
    rebalance_timeout_ms=1,
    protocols=(("range", b""),),
)


def subscribed(*topics: str) -> Group:
    return Group(
        group_id="g", state=GroupState.STABLE, protocol_type="consumer", members={"m": MEMBER}, topics=frozenset(topics)
    )


@pytest.mark.parametrize(
    ("group", "value", "now_ms", "expired"),
    [
        (SIMPLE, at(1, 1_000), 1_000 + 7 * DAY_MS - 1, False),
        (SIMPLE, at(1, 1_000), 1_000 + 7 * DAY_MS, True),
        (EMPTY, at(1, 0), 8 * DAY_MS - 1, False),
        (EMPTY, at(1, 0), 8 * DAY_MS, True),
        (subscribed("orders"), at(1, 0), 100 * DAY_MS, False),
        (subscribed("payments"), at(1, 0), 7 * DAY_MS, True),
        (subscribed("payments"), at(1, 1), 7 * DAY_MS, False),
        (Group(group_id="g", state=GroupState.STABLE, protocol_type="connect"), at(1), 100 * DAY_MS, False),
        (SIMPLE, at(1, 0, expire_ms=500), 499, False),
        (SIMPLE, at(1, 0, expire_ms=500), 500, True),
    ],
)
def test_retention(group: Group, value: OffsetValue, now_ms: int, expired: bool) -> None:
    """KIP-211: from the last commit for clients without a group, from the end of the last member for groups."""
    table = OffsetTable()
    table.replay(0, -1, KEY, value)
    assert table.expired(group, now_ms, 7 * DAY_MS) == ([KEY] if expired else [])
    table.replay(1, 7, KEY, value)
    assert table.expired(group, now_ms, 7 * DAY_MS) == []
