"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup, case by case."""

from __future__ import annotations

import pytest

from spark_2pc_sink.codes import Code
from spark_2pc_sink.reference.config.properties import BrokerProperties
from spark_2pc_sink.reference.groups import machine
from spark_2pc_sink.reference.groups.machine import group_value
from spark_2pc_sink.reference.groups.members import GroupState
from spark_2pc_sink.reference.groups.records import GroupValue
from tests.unit.reference.groups.group_script import CONSUMER, GroupScript
from tests.unit.reference.groups.messages import SUBSCRIPTION


def test_a_new_member_gets_an_id_first_and_joins_with_it() -> None:
    """KIP-394: 'the join group request with empty member id is rejected with MEMBER_ID_REQUIRED'."""
    script = GroupScript()
    first = script.joined(script.ask_join())
    assert (first.code, first.member_id) == (Code.MEMBER_ID_REQUIRED, "c-1")
    assert script.group.state is GroupState.EMPTY
    second = script.ask_join("c-1")
    script.pass_ms(0)
    answer = script.joined(second)
    assert (answer.code, answer.generation, answer.leader, answer.protocol) == (Code.NONE, 1, "c-1", "range")
    assert [member.member_id for member in answer.members] == ["c-1"]


def test_a_pending_member_that_does_not_come_lapses() -> None:
    script = GroupScript()
    script.ask_join()
    script.pass_ms(9_999)
    assert script.group.pending
    script.pass_ms(1)
    assert not script.group.pending


def test_the_assignment_goes_out_when_its_record_is_durable() -> None:
    script = GroupScript()
    member_id, _ = script.new_member()
    script.pass_ms(0)
    ticket = script.ask_sync(member_id, assignments={member_id: b"all"})
    assert ticket not in script.answers
    assert script.heartbeat(member_id) is Code.NONE
    assert script.group.pending_sync == frozenset()
    script.durable()
    assert (script.synced(ticket).code, script.synced(ticket).assignment) == (Code.NONE, b"all")
    assert script.group.state is GroupState.STABLE
    (store,) = script.stored
    assert (store.value.generation, store.value.protocol, store.value.members[0].assignment) == (1, "range", b"all")


def test_an_assignment_that_could_not_be_stored_begins_a_rebalance() -> None:
    script = GroupScript()
    member_id, _ = script.new_member()
    script.pass_ms(0)
    ticket = script.ask_sync(member_id, assignments={member_id: b"all"})
    script.durable(Code.NOT_COORDINATOR)
    assert (script.synced(ticket).code, script.synced(ticket).assignment) == (Code.NOT_COORDINATOR, b"")
    assert script.group.state is GroupState.PREPARING_REBALANCE


def test_two_members_rebalance_eagerly() -> None:
    """A second member joins; the first learns of it by its heartbeat, joins again, and the two share."""
    script = GroupScript()
    (one,) = script.stable()
    two, joining = script.new_member()
    assert script.heartbeat(one) is Code.REBALANCE_IN_PROGRESS
    assert joining not in script.answers
    again = script.ask_join(one)
    assert script.joined(joining).generation == script.joined(again).generation == 2
    assert script.joined(joining).members == ()
    assert {member.member_id for member in script.joined(again).members} == {one, two}
    following = script.ask_sync(two)
    assert following not in script.answers
    leading = script.assign(one)
    assert script.synced(following).assignment == two.encode()
    assert script.synced(leading).assignment == one.encode()
    assert script.heartbeat(one) is script.heartbeat(two) is Code.NONE


def test_a_follower_that_joins_again_unchanged_gets_the_generation_as_it_is() -> None:
    script = GroupScript()
    one, two = script.stable(2)
    answer = script.joined(script.ask_join(two))
    assert (answer.code, answer.generation, answer.leader, answer.members) == (Code.NONE, 1, one, ())
    assert script.group.state is GroupState.STABLE


def test_the_leader_that_joins_again_begins_a_rebalance() -> None:
    script = GroupScript()
    one, two = script.stable(2)
    ticket = script.ask_join(one)
    assert ticket not in script.answers
    assert script.heartbeat(two) is Code.REBALANCE_IN_PROGRESS


def test_a_lost_join_answer_is_given_again_while_the_group_completes() -> None:
    script = GroupScript()
    member_id, first = script.new_member()
    script.pass_ms(0)
    again = script.joined(script.ask_join(member_id))
    assert again == script.joined(first)


def test_a_rebalance_calls_waiting_syncs_back() -> None:
    script = GroupScript()
    (one, _), (two, _) = script.new_member(), script.new_member()
    script.pass_ms(0)
    waiting = script.ask_sync(two)
    assert script.group.leader == one
    script.ask_join(one, protocols=(("range", b"other"),))
    assert script.synced(waiting).code is Code.REBALANCE_IN_PROGRESS


def test_an_assignment_of_a_generation_that_is_over_is_ignored() -> None:
    script = GroupScript()
    (one,) = script.stable()
    script.ask_join(one)
    ticket = script.ask_sync(one, assignments={one: b"old"})
    script.ask_join(one, protocols=(("range", b"other"),))
    script.durable()
    assert script.synced(ticket).code is Code.REBALANCE_IN_PROGRESS
    assert script.group.state is GroupState.COMPLETING_REBALANCE
    assert script.group.members[one].assignment == b""


def test_sync_while_the_group_prepares() -> None:
    script = GroupScript()
    one, _ = script.stable(2)
    script.ask_join(one)
    assert script.synced(script.ask_sync(one)).code is Code.REBALANCE_IN_PROGRESS


def test_the_protocol_is_one_that_all_can_do_and_most_prefer() -> None:
    script = GroupScript()
    wishes = ((("a", b""), ("b", b"")), (("b", b""), ("a", b"")), (("b", b""), ("x", b""), ("a", b"")))
    tickets = [script.new_member(protocols=wish)[1] for wish in wishes]
    script.pass_ms(0)
    assert {script.joined(ticket).protocol for ticket in tickets} == {"b"}


def test_a_full_group_takes_nobody() -> None:
    """KIP-389: 'the JoinGroup request is rejected with GROUP_MAX_SIZE_REACHED'."""
    script = GroupScript(BrokerProperties(group_initial_rebalance_delay_ms=0, group_max_size=1))
    (one,) = script.stable()
    answer = script.joined(script.ask_join())
    assert (answer.code, answer.member_id) == (Code.GROUP_MAX_SIZE_REACHED, "")
    assert list(script.group.members) == [one]


def test_a_member_without_heartbeats_is_removed() -> None:
    script = GroupScript()
    one, two = script.stable(2)
    script.pass_ms(6_000)
    assert script.heartbeat(two) is Code.NONE
    script.pass_ms(4_000)
    assert list(script.group.members) == [two]
    assert script.group.leader == two
    assert script.heartbeat(two) is Code.REBALANCE_IN_PROGRESS
    assert script.heartbeat(one) is Code.UNKNOWN_MEMBER_ID


def test_the_last_member_that_is_removed_leaves_an_empty_generation_behind() -> None:
    script = GroupScript()
    script.stable()
    script.pass_ms(10_000)
    assert (script.group.state, script.group.generation, script.group.protocol) == (GroupState.EMPTY, 2, None)
    (store,) = script.unstored
    assert (store.value.generation, store.value.members, store.value.protocol_type) == (2, (), "consumer")


def test_a_member_that_waits_to_join_needs_no_heartbeats() -> None:
    script = GroupScript()
    one, two = script.stable(2)
    ticket = script.ask_join(one, rebalance_timeout_ms=60_000)
    for _ in range(5):
        script.pass_ms(8_000)
        assert script.heartbeat(two) is Code.REBALANCE_IN_PROGRESS
    assert one in script.group.members
    assert ticket not in script.answers


def test_the_rebalance_timeout_removes_members_that_did_not_join() -> None:
    script = GroupScript()
    one, two = script.stable(2)
    ticket = script.ask_join(two, protocols=(("range", b"new"),))
    for _ in range(10):
        script.pass_ms(6_000)
        script.heartbeat(one)
    assert script.joined(ticket).leader == two
    assert list(script.group.members) == [two]


def test_a_pending_member_that_lapses_holds_nobody_up_any_more() -> None:
    script = GroupScript()
    (one,) = script.stable()
    script.ask_join()
    ticket = script.ask_join(one)
    script.pass_ms(9_999)
    assert ticket not in script.answers
    script.pass_ms(1)
    assert script.joined(ticket).generation == 2


def test_a_member_whose_session_ends_holds_nobody_up_any_more() -> None:
    script = GroupScript()
    one, _ = script.stable(2)
    ticket = script.ask_join(one)
    script.pass_ms(9_999)
    assert ticket not in script.answers
    script.pass_ms(1)
    assert (script.joined(ticket).generation, list(script.group.members)) == (2, [one])


def test_members_that_joined_and_do_not_sync_are_removed() -> None:
    """Kafka: expirePendingSync, after the rebalance timeout."""
    script = GroupScript()
    (one, _), (two, _) = script.new_member(), script.new_member()
    script.pass_ms(0)
    script.assign(one)
    for _ in range(10):
        script.pass_ms(6_000)
        script.heartbeat(one)
        script.heartbeat(two)
    assert list(script.group.members) == [one]
    assert script.group.state is GroupState.PREPARING_REBALANCE


def test_the_first_rebalance_waits_for_more_members() -> None:
    """KIP-134: the delay is repeated while new members come, up to the rebalance timeout."""
    script = GroupScript(BrokerProperties(group_initial_rebalance_delay_ms=3_000))
    _, first = script.new_member(rebalance_timeout_ms=7_000)
    script.pass_ms(2_000)
    _, second = script.new_member(rebalance_timeout_ms=7_000)
    script.pass_ms(1_000)
    assert script.answers.keys().isdisjoint({first, second})
    script.pass_ms(2_999)
    assert script.answers.keys().isdisjoint({first, second})
    script.pass_ms(1)
    assert len(script.joined(first).members) == 2
    assert script.joined(second).generation == 1


def test_leave() -> None:
    script = GroupScript()
    one, two = script.stable(2)
    pending = script.joined(script.ask_join()).member_id
    codes = script.leave((one, None), ("stranger", None), ("", "nobody"), ("", None), (pending, None))
    unknown = Code.UNKNOWN_MEMBER_ID
    assert codes == (Code.NONE, unknown, unknown, unknown, Code.NONE)
    assert (list(script.group.members), script.group.leader) == ([two], two)
    assert script.group.state is GroupState.PREPARING_REBALANCE


def test_a_member_that_leaves_is_told_on_the_requests_that_wait() -> None:
    script = GroupScript()
    (one, _), (two, _) = script.new_member(), script.new_member()
    script.pass_ms(0)
    syncing = script.ask_sync(two)
    assert script.leave((two, None)) == (Code.NONE,)
    assert script.synced(syncing).code is Code.UNKNOWN_MEMBER_ID
    assert one in script.group.members


def test_a_loaded_group_goes_on_where_it_was() -> None:
    script = GroupScript()
    one, two = script.stable(2)
    value = GroupValue.decode(group_value(script.group).encode())
    loaded = machine.loaded("g", value, script.settings, 50_000).group
    assert (loaded.state, loaded.generation, loaded.leader, loaded.protocol) == (GroupState.STABLE, 1, one, "range")
    assert {key: member.assignment for key, member in loaded.members.items()} == {one: one.encode(), two: two.encode()}
    assert loaded.next_deadline_ms() == 60_000
    script.group, script.now_ms = loaded, 50_000
    assert script.heartbeat(two) is Code.NONE
    assert script.joined(script.ask_join(two, protocols=CONSUMER[:1])).generation == 1


@pytest.mark.parametrize(
    ("protocol_type", "metadata", "topics"),
    [("consumer", SUBSCRIPTION, frozenset({"orders"})), ("consumer", b"\0", None), ("connect", SUBSCRIPTION, None)],
)
def test_what_a_group_subscribes_to(protocol_type: str, metadata: bytes, topics: frozenset[str] | None) -> None:
    script = GroupScript()
    script.new_member(protocol_type=protocol_type, protocols=(("range", metadata),))
    script.pass_ms(0)
    assert script.group.topics == topics
    assert script.group.subscribes_to("orders") is (protocol_type == "consumer")
    assert script.group.subscribes_to("payments") is (protocol_type == "consumer" and topics is None)


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
