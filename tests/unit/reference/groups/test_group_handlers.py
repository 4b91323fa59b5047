"""The group APIs, asked by encoded messages. Codes and fields are those that Apache Kafka 4.4.0 answered."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.reference.coordinator.access import on_kinds
from tests.unit.reference.groups import messages
from tests.unit.reference.groups.group_rig import running_groups

REFUSED_JOIN: dict[str, Any] = {
    "generation_id": -1,
    "protocol_type": None,
    "protocol_name": None,
    "leader": "",
    "skip_assignment": False,
    "members": [],
}


@pytest.mark.parametrize(
    ("version", "fields", "code", "member_id"),
    [
        (9, {"group": ""}, 24, ""),
        (9, {"session_timeout_ms": 5}, 26, ""),
        (9, {"session_timeout_ms": 99_999_999}, 26, ""),
        (9, {"member_id": "x"}, 25, "x"),
        (9, {"protocol_type": ""}, 23, ""),
        (9, {"protocols": []}, 23, ""),
        (9, {}, 79, "c-1"),
        (7, {}, 79, "c-1"),
    ],
)
async def test_a_join_is_refused(version: int, fields: dict[str, Any], code: int, member_id: str) -> None:
    async with running_groups() as rig:
        answer = await rig.ask("JoinGroup", version, **messages.join(**fields))
        assert (answer["error_code"], answer["member_id"]) == (code, member_id)
        assert {key: answer.get(key, REFUSED_JOIN[key]) for key in REFUSED_JOIN} == REFUSED_JOIN


@pytest.mark.parametrize("version", range(10))
async def test_every_version_of_join(version: int) -> None:
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
        ("SyncGroup", 5, messages.sync("g", 1, "x"), 25),
        ("SyncGroup", 5, messages.sync("g", 0, "c-1"), 22),
        ("SyncGroup", 5, messages.sync("g", 1, "c-1", protocol_type=None), 23),
        ("SyncGroup", 5, messages.sync("g", 1, "c-1", protocol_name=None), 23),
        ("SyncGroup", 5, messages.sync("g", 1, "c-1", protocol_name="other"), 23),
        ("SyncGroup", 3, messages.sync("g", 1, "c-1", group_instance_id="i"), 25),
        ("SyncGroup", 0, messages.sync("g", 1, "c-1"), 0),
        ("SyncGroup", 5, messages.sync("g", 1, "c-1"), 0),
        ("Heartbeat", 4, messages.heartbeat("", 1, "c-1"), 24),
        ("Heartbeat", 4, messages.heartbeat("none", 1, "c-1"), 25),
        ("Heartbeat", 4, messages.heartbeat("g", 1, "x"), 25),
        ("Heartbeat", 4, messages.heartbeat("g", 1, "c-1", "i"), 25),
        ("Heartbeat", 4, messages.heartbeat("g", 2, "c-1"), 22),
        ("Heartbeat", 0, messages.heartbeat("g", 1, "c-1"), 0),
        ("JoinGroup", 9, messages.join("g", "x"), 25),
        ("JoinGroup", 9, messages.join("g", "", "other"), 23),
        ("LeaveGroup", 2, {"group_id": "", "member_id": "x"}, 24),
        ("LeaveGroup", 2, {"group_id": "none", "member_id": "x"}, 25),
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


async def test_describing() -> None:
    async with running_groups() as rig:
        member_id = await rig.stable()
        answer = await rig.ask("DescribeGroups", 6, groups=["g", "none"], include_authorized_operations=True)
        group, none = answer["groups"]
        assert (group["error_code"], group["group_state"], group["protocol_type"]) == (0, "Stable", "consumer")
        assert set(group["authorized_operations"]) == {3, 6, 8, 10, 11}
        assert group["protocol_data"] == "range"
        (member,) = group["members"]
        assert (member["member_id"], member["client_id"], member["client_host"]) == (member_id, "c", "/127.0.0.1")
        assert member["member_assignment"] == "A"
        assert (none["error_code"], none["error_message"], none["group_state"]) == (69, "Group none not found.", "Dead")
        old = await rig.ask("DescribeGroups", 5, groups=["none"], include_authorized_operations=False)
        assert (old["groups"][0]["error_code"], old["groups"][0]["group_state"]) == (0, "Dead")
        await rig.ask("LeaveGroup", 5, **messages.leave("g", (member_id, None)))
        (empty,) = (await rig.ask("DescribeGroups", 0, groups=["g"]))["groups"]
        assert (empty["group_state"], empty["protocol_type"], empty["protocol_data"]) == ("Empty", "consumer", "")


@pytest.mark.parametrize(
    ("states", "types", "found"),
    [
        ([], [], True),
        (["stable"], [], True),
        ([" STABLE "], ["CLASSIC"], True),
        (["Empty"], [], False),
        (["foo"], [], False),
        ([], ["consumer"], False),
        ([], ["foo"], False),
    ],
)
async def test_listing(states: list[str], types: list[str], found: bool) -> None:
    async with running_groups() as rig:
        await rig.stable()
        listed = await rig.ask("ListGroups", 5, states_filter=states, types_filter=types)
        assert [group["group_id"] for group in listed["groups"]] == ["g"] * found


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
        ("Heartbeat", 4, messages.heartbeat("g", 1, "c-1")),
        ("LeaveGroup", 5, messages.leave("g", ("c-1", None))),
        ("OffsetDelete", 0, messages.delete_offsets("g", "orders", 0)),
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
