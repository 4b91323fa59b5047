"""Static members that come back (KIP-345); how members share and take over is what clients and the properties show."""

from __future__ import annotations

from spark_2pc_sink.codes import Code
from spark_2pc_sink.reference.groups.members import GroupState
from tests.unit.reference.groups.group_script import GroupScript


def stable_pair(script: GroupScript) -> tuple[str, str]:
    """A stable group of the static members a and b, in which a leads; both are known by their member ids."""
    tickets = [script.ask_join(instance_id=name) for name in ("a", "b")]
    script.pass_ms(0)
    one, two = (script.joined(ticket).member_id for ticket in tickets)
    script.ask_sync(two, instance_id="b")
    script.assign(one, instance_id="a")
    assert script.group.state is GroupState.STABLE
    return one, two


def test_a_follower_that_comes_back_gets_its_part_without_a_rebalance() -> None:
    script = GroupScript()
    one, two = stable_pair(script)
    ticket = script.ask_join(instance_id="b", version=8)
    assert ticket not in script.answers
    script.durable()
    answer = script.joined(ticket)
    assert (answer.generation, answer.leader, answer.members) == (1, one, ())
    assert answer.member_id not in {one, two}
    assert script.group.state is GroupState.STABLE
    assert script.synced(script.ask_sync(answer.member_id, instance_id="b")).assignment == two.encode()
    assert {member.member_id for member in script.stored[-1].value.members} == {one, answer.member_id}


def test_a_leader_that_comes_back_is_told_to_skip_the_assignment() -> None:
    """KIP-814: 'the leader must skip running the assignment', from JoinGroup v9 on."""
    script = GroupScript()
    stable_pair(script)
    ticket = script.ask_join(instance_id="a", version=9)
    script.durable()
    answer = script.joined(ticket)
    assert (answer.skip_assignment, answer.leader, len(answer.members)) == (True, answer.member_id, 2)


def test_the_replaced_member_is_fenced() -> None:
    script = GroupScript()
    _, two = stable_pair(script)
    script.ask_join(instance_id="b")
    script.durable()
    assert script.heartbeat(two, instance_id="b") is Code.FENCED_INSTANCE_ID
    assert script.synced(script.ask_sync(two, instance_id="b")).code is Code.FENCED_INSTANCE_ID
    assert script.joined(script.ask_join(two, instance_id="b")).code is Code.FENCED_INSTANCE_ID
    assert script.leave((two, "b")) == (Code.FENCED_INSTANCE_ID,)
    assert script.heartbeat(two) is Code.UNKNOWN_MEMBER_ID
