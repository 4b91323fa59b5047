"""The offset APIs, asked by encoded messages. Codes and fields are those that Apache Kafka 4.4.0 answered."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from spark_2pc_sink.codes import Code
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.reference.coordinator.events import Resource
from spark_2pc_sink.reference.coordinator.states import Pair
from spark_2pc_sink.reference.internal_topics import GROUP_OFFSETS
from tests.unit.reference.coordinator.access import on_kinds
from tests.unit.reference.groups import messages
from tests.unit.reference.groups.group_rig import TOPIC, GroupRig, codes_of, running_groups

NONE = {"committed_offset": -1, "committed_leader_epoch": -1, "metadata": "", "error_code": 0}
PAIR = Pair(44, 0)
UNKNOWN_ID = UUID(int=12345)


async def committed(rig: GroupRig, group: str = "g", *, stable: bool = False) -> dict[int, int]:
    """What an OffsetFetch of everything shows: offset by partition, or the negative code."""
    answer = await rig.ask("OffsetFetch", 9, **messages.fetch((group, None), stable=stable))
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
        (9, messages.fetch(("g", {"orders": [0, 1]})), {0: 5, 1: -1}),
        (7, messages.fetch_one("g", None), {0: 5}),
        (7, messages.fetch_one("g", {"orders": [2, 0]}, stable=True), {2: -1, 0: 5}),
        (1, messages.fetch_one("g", {"orders": [0]}), {0: 5}),
        (9, messages.fetch(("none", {"nope": [0]})), {0: -1}),
        (10, messages.fetch(("g", {TOPIC.id: [0, 1]})), {0: 5, 1: -1}),
    ],
)
async def test_fetch(version: int, fields: dict[str, Any], expected: dict[int, int]) -> None:
    async with running_groups() as rig:
        commit = messages.commit("g", -1, "", {0: 5}, metadata="m")
        assert codes_of(await rig.ask("OffsetCommit", 9, **commit)) == [0]
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
        fields = messages.commit_in_transaction("g", (44, 0), {0: 5})
        assert codes_of(await rig.ask("TxnOffsetCommit", 5, **fields)) == [0]
        rig.verification.kept = PAIR
        for version in (3, 4, 5):
            assert codes_of(await rig.ask("TxnOffsetCommit", version, **fields)) == [47]
        assert len(rig.verification.asked) == 1


async def test_offsets_of_a_transaction() -> None:
    async with running_groups() as rig:
        fields = messages.commit_in_transaction("g", (44, 0), {0: 5})
        assert codes_of(await rig.ask("TxnOffsetCommit", 5, **fields)) == [0]
        partition = TopicPartition(GROUP_OFFSETS, rig.service.store.partition_of("g"))
        assert rig.verification.asked == [(5, "tid", PAIR, partition)]
        unstable = await rig.ask("OffsetFetch", 7, **messages.fetch_one("g", {"orders": [0]}, stable=True))
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
        (2, messages.commit_in_transaction("g", (44, 0), {0: 5}), 14, [14]),
        (1, messages.commit_in_transaction("g", (44, 0), {0: 5}), 14, [15]),
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
        task = asyncio.ensure_future(
            rig.ask("TxnOffsetCommit", 3, **messages.commit_in_transaction("g", (44, 0), {0: 5}))
        )
        await asked.wait()
        await rig.marker("g", PAIR, commit=False)
        answer.set()
        assert codes_of(await task) == [48]
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
        fields = messages.commit_in_transaction("g", (44, 0), {1: 5})
        assert codes_of(await rig.ask("TxnOffsetCommit", 5, **fields)) == [transaction]
        answer = await rig.ask("OffsetFetch", 7, **messages.fetch_one("g", {"orders": [0]}))
        assert (answer["error_code"], codes_of(answer)) == fetch
        oldest = await rig.ask("OffsetFetch", 1, **messages.fetch_one("g", {"orders": [0]}))
        assert codes_of(oldest) == ([fetch[0]] if fetch[0] else fetch[1])
        if fetch == (0, [29]):
            assert (await rig.ask("OffsetFetch", 7, **messages.fetch_one("g", None)))["topics"] == []
