"""Static membership (KIP-345): group.instance.id instead of a rebalance for every restart."""

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


def test_a_static_member_joins_in_one_step() -> None:
    script = GroupScript()
    one, _ = stable_pair(script)
    assert one == "a-1"


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


def test_an_old_leader_that_comes_back_is_told_of_the_leader_before() -> None:
    script = GroupScript()
    one, _ = stable_pair(script)
    ticket = script.ask_join(instance_id="a", version=8)
    script.durable()
    answer = script.joined(ticket)
    assert (answer.leader, answer.members, answer.skip_assignment) == (one, (), False)
    assert script.group.leader == answer.member_id


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


def test_requests_of_the_replaced_member_that_wait_are_fenced() -> None:
    script = GroupScript()
    tickets = [script.ask_join(instance_id=name) for name in ("a", "b")]
    second = script.ask_join(instance_id="b")
    assert script.joined(tickets[1]).code is Code.FENCED_INSTANCE_ID
    script.pass_ms(0)
    member_id = script.joined(second).member_id
    syncing = script.ask_sync(member_id, instance_id="b")
    script.ask_join(instance_id="b")
    assert script.synced(syncing).code is Code.FENCED_INSTANCE_ID
    assert script.group.state is GroupState.PREPARING_REBALANCE


def test_another_choice_of_protocol_begins_a_rebalance() -> None:
    script = GroupScript()
    stable_pair(script)
    script.ask_join(instance_id="b", protocols=(("roundrobin", b""),))
    assert script.group.state is GroupState.PREPARING_REBALANCE


def test_a_record_that_could_not_be_stored_puts_the_replaced_member_back() -> None:
    script = GroupScript()
    one, two = stable_pair(script)
    ticket = script.ask_join(instance_id="b")
    script.durable(Code.NOT_COORDINATOR)
    assert (script.joined(ticket).code, script.joined(ticket).member_id) == (Code.NOT_COORDINATOR, "")
    assert list(script.group.members) == [one, two]


def test_a_rebalance_meanwhile_takes_the_member_that_came_back_along() -> None:
    script = GroupScript()
    one, _ = stable_pair(script)
    back = script.ask_join(instance_id="b")
    again = script.ask_join(one, instance_id="a")
    script.durable()
    assert script.joined(back).generation == script.joined(again).generation == 2


def test_a_static_member_stays_over_a_rebalance_that_it_missed() -> None:
    script = GroupScript()
    one, two = stable_pair(script)
    ticket = script.ask_join(one, instance_id="a", rebalance_timeout_ms=5_000, session_timeout_ms=30_000)
    for _ in range(10):
        script.pass_ms(6_000)
        script.heartbeat(two, instance_id="b")
    assert set(script.group.members) == {one, two}
    assert script.joined(ticket).generation == 2


def test_leaving_by_instance_id() -> None:
    script = GroupScript()
    one, _ = stable_pair(script)
    assert script.leave(("", "b")) == (Code.NONE,)
    assert list(script.group.members) == [one]


def test_a_pending_member_is_never_static() -> None:
    """Kafka 4.4.0 answers UNKNOWN_SERVER_ERROR: it gives no pending id to a static member."""
    script = GroupScript()
    pending = script.joined(script.ask_join()).member_id
    assert script.joined(script.ask_join(pending, instance_id="a")).code is Code.UNKNOWN_SERVER_ERROR
    assert script.group.pending


def test_a_rebalance_that_nobody_joins_waits_for_static_members() -> None:
    """Static members stay until their sessions end; without one that joined there is no generation to begin."""
    script = GroupScript()
    stable_pair(script)
    dynamic, _ = script.new_member(rebalance_timeout_ms=5_000)
    script.leave((dynamic, None))
    assert script.group.state is GroupState.PREPARING_REBALANCE
    for _ in range(20):
        script.pass_ms(5_000)
        for member in list(script.group.members.values()):
            assert script.heartbeat(member.member_id, instance_id=member.instance_id) is Code.REBALANCE_IN_PROGRESS
    assert (script.group.state, script.group.generation) == (GroupState.PREPARING_REBALANCE, 1)
    back = script.ask_join(instance_id="a")
    script.pass_ms(60_000)
    assert script.joined(back).generation == 2
