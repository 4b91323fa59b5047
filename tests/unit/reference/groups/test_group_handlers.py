"""The group APIs, asked by encoded messages. Codes and fields are those that Apache Kafka 4.4.0 answered."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.reference.coordinator.access import on_kinds
from tests.unit.reference.groups import messages
from tests.unit.reference.groups.group_rig import running_groups


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
        commit = messages.commit("g", 1, member_id, {0: 5})
        assert (await rig.ask("OffsetCommit", 9, **commit))["topics"][0]["partitions"][0]["error_code"] == 0
        first = await rig.ask("DeleteGroups", 3, groups_names=["g", "none", "g", ""])
        assert [each["error_code"] for each in first["results"]] == [68, 69, 69]
        await rig.ask("LeaveGroup", 5, **messages.leave("g", (member_id, None)))
        second = await rig.ask("DeleteGroups", 0, groups_names=["g"])
        assert [each["error_code"] for each in second["results"]] == [0]
        assert (await rig.ask("OffsetFetch", 7, **messages.fetch_one("g", None)))["topics"] == []
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
