"""Groups and offsets: their APIs as Kafka 4.4.0 answered, what is durable when, and the bytes of records."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import UUID

import pytest

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import RemoteProtocolError
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.reference.coordinator.events import Resource
from spark_2pc_sink.reference.coordinator.states import Pair
from spark_2pc_sink.reference.groups.members import Group, GroupState, Member
from spark_2pc_sink.reference.groups.store import (
    GroupKey,
    OffsetKey,
    OffsetValue,
    decode_group,
    decode_key,
    decode_offset,
    encode_value,
)
from spark_2pc_sink.reference.internal_topics import GROUP_OFFSETS
from spark_2pc_sink.reference.log.partition_log import PartitionLog, UnreadableRecordError
from spark_2pc_sink.reference.metadata.catalog import Catalog
from spark_2pc_sink.reference.storage.segmented_log import LogFailedError, Synced
from tests.unit.reference.coordinator.access import on_kinds
from tests.unit.reference.groups import messages
from tests.unit.reference.groups.group_rig import TOPIC, GroupRig, catalog_in_memory, codes_of, logs_of, running_groups

NONE = {"committed_offset": -1, "committed_leader_epoch": -1, "metadata": "", "error_code": 0}
PAIR = Pair(44, 0)
UNKNOWN_ID = UUID(int=12345)


async def committed(rig: GroupRig, group: str = "g", *, stable: bool = False) -> dict[int, int]:
    """What an OffsetFetch of everything shows: offset by partition, or the negative code."""
    answer = await rig.ask("OffsetFetch", 9, **messages.fetch(group, None, stable=stable))
    (one,) = answer["groups"]
    assert one["error_code"] == 0
    return {
        each["partition_index"]: -each["error_code"] or each["committed_offset"]
        for topic in one["topics"]
        for each in topic["partitions"]
    }


@pytest.mark.parametrize(
    ("version", "fields", "codes"),
    [
        (9, messages.commit("g", 1, "c-1", {0: 5}), [0]),
        (9, messages.commit("g", 1, "c-1", {0: 5, 7: 5}), [3, 0]),
        (9, messages.commit("g", 1, "c-1", {0: 5}, metadata="x" * 4097), [12]),
        (9, messages.commit("g", 1, "x", {0: 5}), [25]),
        (9, messages.commit("g", 1, "c-1", {0: 5}, instance_id="i"), [25]),
        (9, messages.commit("g", 2, "c-1", {0: 5}), [22]),
        (9, messages.commit("g", -1, "", {0: 5}), [25]),
        (9, messages.commit("none", 0, "x", {0: 5}), [69]),
        (8, messages.commit("none", 0, "x", {0: 5}), [22]),
        (9, messages.commit("", -1, "", {0: 5}), [0]),
        (10, messages.commit("none", -1, "", {0: 5, 9: 9}, topic=TOPIC.id), [3, 0]),
        (10, messages.commit("none", -1, "", {0: 5}, topic=UNKNOWN_ID), [100]),
    ],
)
async def test_commit(version: int, fields: dict[str, Any], codes: list[int]) -> None:
    async with running_groups() as rig:
        await rig.stable()
        assert codes_of(await rig.ask("OffsetCommit", version, **fields)) == codes
        kept = {0: 5} if 0 in codes else {}
        assert await committed(rig, fields["group_id"]) == kept
        assert await committed(rig.restarted(), fields["group_id"]) == kept


@pytest.mark.parametrize(
    ("version", "fields", "expected"),
    [
        (9, messages.fetch("g", {"orders": [0, 1]}), {0: 5, 1: -1}),
        (7, messages.fetch_one(None), {0: 5}),
        (7, messages.fetch_one({"orders": [2, 0]}, stable=True), {2: -1, 0: 5}),
        (1, messages.fetch_one({"orders": [0]}), {0: 5}),
        (9, messages.fetch("none", {"nope": [0]}), {0: -1}),
        (10, messages.fetch("g", {TOPIC.id: [0, 1]}), {0: 5, 1: -1}),
    ],
)
async def test_fetch(version: int, fields: dict[str, Any], expected: dict[int, int]) -> None:
    async with running_groups() as rig:
        assert await rig.commit("g", -1, "", {0: 5}, metadata="m") == [0]
        answer = await rig.ask("OffsetFetch", version, **fields)
        holder = answer["groups"][0] if version >= 8 else answer
        assert holder.get("error_code", 0) == 0
        found = {each["partition_index"]: each for topic in holder["topics"] for each in topic["partitions"]}
        assert {index: each["committed_offset"] for index, each in found.items()} == expected
        for each in found.values():
            assert each["metadata"] == ("m" if each["committed_offset"] == 5 else "")
            assert each["error_code"] == 0


async def test_a_kept_transaction_takes_no_more_offsets() -> None:
    """Its group's partition is in the transaction already, so nobody is asked: the leader looks itself."""
    async with running_groups() as rig:
        assert await rig.commit_in_transaction("g", (44, 0), {0: 5}) == [0]
        rig.verification.kept = PAIR
        for version in (3, 4, 5):
            assert await rig.commit_in_transaction("g", (44, 0), {0: 5}, version=version) == [47]
        assert len(rig.verification.asked) == 1


async def test_offsets_of_a_transaction() -> None:
    async with running_groups() as rig:
        assert await rig.commit_in_transaction("g", (44, 0), {0: 5}) == [0]
        partition = TopicPartition(GROUP_OFFSETS, rig.service.store.partition_of("g"))
        assert rig.verification.asked == [(5, "tid", PAIR, partition)]
        unstable = await rig.ask("OffsetFetch", 7, **messages.fetch_one({"orders": [0]}, stable=True))
        assert unstable["topics"][0]["partitions"] == [{"partition_index": 0, **NONE, "error_code": 88}]
        assert await committed(rig) == {}
        assert await rig.commit_in_transaction("g", (44, 0), {1: 6}) == [0]
        assert len(rig.verification.asked) == 1
        assert (await rig.restarted().ask("DescribeGroups", 0, groups=["g"]))["groups"][0]["group_state"] == "Empty"
        await rig.marker("g", PAIR, commit=True)
        assert await committed(rig, stable=True) == {0: 5, 1: 6}
        assert await committed(rig.restarted(), stable=True) == {0: 5, 1: 6}


@pytest.mark.parametrize(
    ("version", "fields", "answered", "codes"),
    [
        (5, messages.commit_in_transaction("", (44, 0), {0: 5, 7: 7}), 0, [3, 24]),
        (5, messages.commit_in_transaction("g", (44, 0), {0: 5}), 90, [47]),
        (3, messages.commit_in_transaction("g", (44, 0), {0: 5}), 120, [48]),
        (5, messages.commit_in_transaction("g", (44, 0), {0: 5}, generation=1, member_id="x"), 0, [25]),
        (5, messages.commit_in_transaction("g", (44, 0), {0: 5}, generation=1, member_id="c-1"), 0, [0]),
        # Clients before KIP-447 name no generation, and no member.
        (2, messages.commit_in_transaction("g", (44, 0), {0: 5}), 0, [0]),
    ],
)
async def test_commit_in_a_transaction(version: int, fields: dict[str, Any], answered: int, codes: list[int]) -> None:
    async with running_groups() as rig:
        await rig.stable()
        rig.verification.code = Code(answered)
        assert codes_of(await rig.ask("TxnOffsetCommit", version, **fields)) == codes


async def test_a_marker_while_the_coordinator_is_asked_takes_the_guard_away() -> None:
    """The add was for a transaction that is over by the time of the append: 48, and nothing is written."""
    async with running_groups() as rig:
        await rig.commit_in_transaction("g", (44, 0), {0: 1}, version=3)
        await rig.marker("g", PAIR, commit=True)
        asked, answer = asyncio.Event(), asyncio.Event()

        async def slow(*_arguments: object) -> int:
            asked.set()
            await answer.wait()
            return 0

        rig.verification.for_offsets = slow  # type: ignore[method-assign, assignment]
        task = asyncio.ensure_future(rig.commit_in_transaction("g", (44, 0), {0: 5}, version=3))
        await asked.wait()
        await rig.marker("g", PAIR, commit=False)
        answer.set()
        assert await task == [48]
        assert await committed(rig, stable=True) == {0: 1}


@pytest.mark.parametrize(
    ("resources", "commit", "transaction", "fetch"),
    [
        ((), 30, 53, (30, [])),
        ((Resource.GROUP,), 29, 53, (0, [29])),
        ((Resource.GROUP, Resource.TRANSACTIONAL_ID), 29, 29, (0, [29])),
        ((Resource.GROUP, Resource.TRANSACTIONAL_ID, Resource.TOPIC), 0, 0, (0, [0])),
    ],
)
async def test_acls(
    resources: tuple[Resource, ...], commit: int, transaction: int, fetch: tuple[int, list[int]]
) -> None:
    async with running_groups() as rig:
        await rig.commit("g", -1, "", {0: 1})
        rig.context = replace(rig.context, access=on_kinds(*resources))
        assert await rig.commit("g", -1, "", {0: 5}) == [commit]
        assert await rig.commit_in_transaction("g", (44, 0), {1: 5}) == [transaction]
        answer = await rig.ask("OffsetFetch", 7, **messages.fetch_one({"orders": [0]}))
        assert (answer["error_code"], codes_of(answer)) == fetch
        oldest = await rig.ask("OffsetFetch", 1, **messages.fetch_one({"orders": [0]}))
        assert codes_of(oldest) == ([fetch[0]] if fetch[0] else fetch[1])
        if fetch == (0, [29]):
            assert (await rig.ask("OffsetFetch", 7, **messages.fetch_one(None)))["topics"] == []


@pytest.mark.parametrize("version", [0, 1, 4, 9])
async def test_join_in_old_and_new_versions(version: int) -> None:
    async with running_groups() as rig:
        joined = await rig.ask("JoinGroup", version, **messages.join())
        if joined["error_code"] == 79:
            joined = await rig.ask("JoinGroup", version, **messages.join("g", joined["member_id"]))
        assert (joined["error_code"], joined["generation_id"], joined["leader"]) == (0, 1, "c-1")
        assert joined["members"][0]["metadata"]
        member = rig.service.store.groups["g"].members["c-1"]
        assert member.rebalance_timeout_ms == (20_000 if version else 10_000)


@pytest.mark.parametrize(
    ("api", "version", "fields", "code"),
    [
        ("SyncGroup", 5, messages.sync("", 1, "x"), 24),
        ("SyncGroup", 5, messages.sync("none", 1, "x"), 25),
        ("SyncGroup", 5, messages.sync("g", 0, "c-1"), 22),
        ("SyncGroup", 5, messages.sync("g", 1, "c-1", protocol_type=None), 23),
        ("SyncGroup", 3, messages.sync("g", 1, "c-1", group_instance_id="i"), 25),
        ("SyncGroup", 0, messages.sync("g", 1, "c-1"), 0),
        ("SyncGroup", 5, messages.sync("g", 1, "c-1"), 0),
        ("Heartbeat", 4, messages.heartbeat("", 1, "c-1"), 24),
        ("Heartbeat", 4, messages.heartbeat("g", 1, "x"), 25),
        ("Heartbeat", 4, messages.heartbeat("g", 1, "c-1", "i"), 25),
        ("Heartbeat", 4, messages.heartbeat("g", 2, "c-1"), 22),
        ("Heartbeat", 0, messages.heartbeat("g", 1, "c-1"), 0),
        ("JoinGroup", 9, messages.join(""), 24),
        ("JoinGroup", 9, messages.join("g", "x"), 25),
        ("JoinGroup", 9, messages.join(session_timeout_ms=5), 26),
        ("JoinGroup", 9, messages.join(session_timeout_ms=99_999_999), 26),
        ("JoinGroup", 9, messages.join(protocol_type=""), 23),
        ("JoinGroup", 9, messages.join(protocols=[]), 23),
        ("JoinGroup", 9, messages.join(), 79),
        ("JoinGroup", 9, messages.join("g", "", "other"), 23),
        ("LeaveGroup", 2, {"group_id": "", "member_id": "x"}, 24),
        ("LeaveGroup", 2, {"group_id": "g", "member_id": "x"}, 25),
        ("LeaveGroup", 0, {"group_id": "g", "member_id": "c-1"}, 0),
        ("LeaveGroup", 5, messages.leave("", ("x", None)), 24),
    ],
)
async def test_codes_of_a_stable_group(api: str, version: int, fields: dict[str, Any], code: int) -> None:
    async with running_groups() as rig:
        assert await rig.stable() == "c-1"
        assert (await rig.ask(api, version, **fields))["error_code"] == code


async def test_leaving_says_of_each_member_how_it_went() -> None:
    async with running_groups() as rig:
        member_id = await rig.stable()
        answer = await rig.ask("LeaveGroup", 5, **messages.leave("g", ("x", None), (member_id, "i"), (member_id, None)))
        assert answer["error_code"] == 0
        assert [each["error_code"] for each in answer["members"]] == [25, 25, 0]
        unknown = await rig.ask("LeaveGroup", 3, **messages.leave("none", ("x", None), ("", "i")))
        assert (unknown["error_code"], [each["error_code"] for each in unknown["members"]]) == (0, [25, 25])
        assert unknown["members"][1]["group_instance_id"] == "i"


async def test_deleting() -> None:
    async with running_groups() as rig:
        member_id = await rig.stable()
        assert await rig.commit("g", 1, member_id, {0: 5}) == [0]
        first = await rig.ask("DeleteGroups", 3, groups_names=["g", "none", "g", ""])
        assert [each["error_code"] for each in first["results"]] == [68, 69, 69]
        await rig.ask("LeaveGroup", 5, **messages.leave("g", (member_id, None)))
        second = await rig.ask("DeleteGroups", 0, groups_names=["g"])
        assert [each["error_code"] for each in second["results"]] == [0]
        assert (await rig.ask("OffsetFetch", 7, **messages.fetch_one(None)))["topics"] == []
        assert "g" not in rig.restarted().service.store.groups


@pytest.mark.parametrize(
    ("api", "version", "fields"),
    [
        ("JoinGroup", 9, messages.join()),
        ("SyncGroup", 5, messages.sync("g", 1, "c-1")),
        ("LeaveGroup", 5, messages.leave("g", ("c-1", None))),
    ],
)
async def test_without_an_acl_on_the_group(api: str, version: int, fields: dict[str, Any]) -> None:
    async with running_groups() as rig:
        await rig.stable()
        before = rig.service.store.groups["g"]
        rig.context = replace(rig.context, access=on_kinds())
        assert (await rig.ask(api, version, **fields))["error_code"] == 30
        assert rig.service.store.groups["g"] == before
        assert (await rig.ask("DescribeGroups", 6, groups=["g"]))["groups"][0]["error_code"] == 30
        assert (await rig.ask("DeleteGroups", 2, groups_names=["g"]))["results"][0]["error_code"] == 30
        assert (await rig.ask("ListGroups", 5))["groups"] == []


DAY_MS = 86_400_000


class Disk:
    """Stands between the groups' logs and their disk: writes wait until it is let go, or fail."""

    def __init__(self, catalog: Catalog) -> None:
        self.free = asyncio.Event()
        self.asked = asyncio.Event()
        self.failure: LogFailedError | None = None
        for log in logs_of(catalog):
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
        disk = Disk(rig.catalog)
        committing = asyncio.ensure_future(rig.commit("g", -1, "", {0: 5}))
        await disk.asked.wait()
        fetching = asyncio.ensure_future(rig.ask("OffsetFetch", 7, **messages.fetch_one(None)))
        assert await waiting(committing, fetching)
        disk.free.set()
        commit, fetch = await asyncio.wait_for(asyncio.gather(committing, fetching), timeout=5)
        assert commit == [0]
        assert fetch["topics"][0]["partitions"][0]["committed_offset"] == 5


async def test_a_disk_that_fails_is_told_to_the_client() -> None:
    """Kafka answers NOT_COORDINATOR where the log cannot be written; the group rebalances."""
    async with running_groups() as rig:
        joined = await rig.ask("JoinGroup", 3, **messages.join())
        disk = Disk(rig.catalog)
        disk.failure = LogFailedError(path="log", detail="gone")
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


async def test_offsets_of_a_topic_that_is_deleted_are_forgotten() -> None:
    async with running_groups() as rig:
        for group in ("g", "h"):
            await rig.commit(group, -1, "", {0: 5, 1: 6})
        rig.service.forget_topic("payments")
        assert len(rig.service.store.offsets("g").of_group("g")) == 2
        rig.service.forget_topic("orders")
        for found in (rig, rig.restarted()):
            assert not any(found.service.store.offsets(group).of_group(group) for group in ("g", "h"))


def test_a_record_that_is_not_understood_is_named() -> None:
    catalog = catalog_in_memory()
    log = logs_of(catalog)[1]
    log.append_records([(b"\0\1", b"garbage")], now_ms=0)
    with pytest.raises(UnreadableRecordError, match="offset 0 of __consumer_offsets-1") as refused:
        GroupRig(catalog)
    assert "restore the data directory" in str(refused.value)


STATIC_ID = "a-4e49ff3b-3af1-442a-b343-58281ccbe30c"
#: What a broker of Apache Kafka 4.4.0 had in its log, read by a consumer: key, value, and what they say.
KAFKA_RECORDS = [
    (
        "000200026531",
        "0003000000000000ffffffff000001a1ff43f05700000000",
        GroupKey("e1"),
        Group(group_id="e1", state_since_ms=0x1A1FF43F057),
    ),
    (
        "00010002733100066f726465727300000000",
        "00040000000000000005ffffffff01000001a1ff43f1d00100104524f22a4a354c80a032b364edda2ab9",
        OffsetKey("s1", "orders", 0),
        OffsetValue(offset=5, commit_ms=0x1A1FF43F1D0, topic_id=UUID("4524f22a-4a35-4c80-a032-b364edda2ab9")),
    ),
    (
        "0002000d73743134303631343430363134",
        "00030008636f6e73756d657200000001000572616e676500"
        "26612d34653439666633622d336166312d343432612d623334332d353832383163636265333063"
        "000001a1ff44d2df0000000100"
        "26612d34653439666633622d336166312d343432612d623334332d353832383163636265333063"
        "000161000163000a2f3132372e302e302e31"
        "00004e2000002710"
        "00000012" + messages.SUBSCRIPTION.hex() + "0000000141",
        GroupKey("st14061440614"),
        Group(
            group_id="st14061440614",
            state=GroupState.STABLE,
            protocol_type="consumer",
            generation=1,
            protocol="range",
            leader=STATIC_ID,
            state_since_ms=0x1A1FF44D2DF,
            members={
                STATIC_ID: Member(
                    member_id=STATIC_ID,
                    instance_id="a",
                    client_id="c",
                    client_host="/127.0.0.1",
                    rebalance_timeout_ms=20_000,
                    session_timeout_ms=10_000,
                    protocols=(("range", messages.SUBSCRIPTION),),
                    assignment=b"A",
                )
            },
        ),
    ),
]


@pytest.mark.parametrize(("key", "value", "named", "said"), KAFKA_RECORDS, ids=["empty", "id", "static"])
def test_records_of_kafka_are_read_and_written_the_same(
    key: str, value: str, named: GroupKey | OffsetKey, said: Group | OffsetValue
) -> None:
    assert decode_key(bytes.fromhex(key)) == named
    data = bytes.fromhex(value)
    assert (decode_offset(data) if isinstance(said, OffsetValue) else decode_group(named.group_id, data)) == said
    assert (named.encode().hex(), encode_value(said).hex()) == (key, value)


def test_records_of_the_newer_protocol_are_none_of_ours() -> None:
    """ConsumerGroupMetadataKey is version 3 (KIP-848)."""
    assert decode_key(struct.pack(">h", 3) + b"\0\x01g") is None


@pytest.mark.parametrize("decode", [decode_offset, partial(decode_group, "g")], ids=["offset", "group"])
@pytest.mark.parametrize("data", [b"", b"\0", b"\0\x09", b"\xff\xff", b"\0\x03\0", b"\0\x04\0\0"])
def test_garbage_is_refused(decode: Callable[[bytes], object], data: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="the log of group offsets"):
        decode(data)
