"""Requests, answers and steps of the group machine, and the moves of a rebalance.

A `Step` holds the group as it is from now on, answers, and what must be stored. The order is the contract::

    step = machine.join(group, request, ...)    # or sync, leave, expire
    ...                                         # the group of the step is in force, before anything else is stepped
    ...                                         # send step.replies; they depend on nothing
    for store in step.stores:                   # append store.value, wait until it is durable, then
        step = machine.stored(group, store, code, now_ms)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from spark_2pc_sink.codes import Code
from spark_2pc_sink.reference.config.properties import BrokerProperties
from spark_2pc_sink.reference.groups.members import (
    PREDECESSORS,
    Group,
    GroupState,
    JoinTimer,
    Member,
    Protocols,
    Ticket,
)
from spark_2pc_sink.reference.groups.records import GroupValue


@dataclass(frozen=True, kw_only=True)
class JoinRequest:
    """JoinGroup v0 to v9.

    Args:
        ticket: names the request in the `Reply`.
        rebalance_timeout_ms: v0 has the session timeout here.
    """

    ticket: Ticket
    version: int = 9
    member_id: str = ""
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    session_timeout_ms: int = 10_000
    rebalance_timeout_ms: int = 60_000
    protocol_type: str = "consumer"
    protocols: Protocols = ()


@dataclass(frozen=True, kw_only=True)
class SyncRequest:
    """SyncGroup v0 to v5."""

    ticket: Ticket
    member_id: str
    generation: int
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class JoinedMember:
    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, kw_only=True)
class JoinAnswer:
    """A JoinGroup response.

    Args:
        skip_assignment: the leader must not assign anew (v9, KIP-814).
        members: only for the leader.
    """

    code: Code = Code.NONE
    member_id: str = ""
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SyncAnswer:
    code: Code = Code.NONE
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True)
class Reply:
    ticket: Ticket
    answer: JoinAnswer | SyncAnswer


@dataclass(frozen=True)
class AssignmentStored:
    """Once the record is durable every member gets its part, and the group is stable."""

    generation: int
    assignment: Mapping[str, bytes]


@dataclass(frozen=True)
class ReplacementStored:
    """Once the record is durable the static member that came back gets the generation as it is (KIP-345).

    Args:
        replaced: its member id until then, put back when the record could not be stored.
        leader: of the group before; clients that cannot skip the assignment are told of this one, so that a leader
            that came back does not assign anew.
    """

    member_id: str
    ticket: Ticket
    replaced: str
    leader: str
    skips_assignment: bool


@dataclass(frozen=True)
class Store:
    """Append the group's record."""

    value: GroupValue
    then: AssignmentStored | ReplacementStored | None = None


@dataclass(frozen=True)
class Step:
    group: Group
    replies: tuple[Reply, ...] = ()
    stores: tuple[Store, ...] = ()

    def to(self, group: Group) -> Step:
        return replace(self, group=group)

    def answered(self, ticket: Ticket | None, answer: JoinAnswer | SyncAnswer) -> Step:
        """The step with an answer; without a ticket nobody waits for it."""
        return self if ticket is None else replace(self, replies=(*self.replies, Reply(ticket, answer)))

    def storing(self, store: Store) -> Step:
        return replace(self, stores=(*self.stores, store))


def group_value(group: Group, assignment: Mapping[str, bytes] | None = None) -> GroupValue:
    """The record of the group as it is, with another assignment where one is given."""
    stored = group if assignment is None else with_assignment(group, assignment)
    return GroupValue(
        protocol_type=group.protocol_type or "",
        generation=group.generation,
        protocol=group.protocol,
        leader=group.leader,
        state_since_ms=group.state_since_ms,
        members=tuple(stored.members.values()),
    )


def join_answer(group: Group, member_id: str) -> JoinAnswer:
    """The generation as a member learns of it; only the leader sees the others."""
    leads = group.leader == member_id
    members = group.members.values() if leads else ()
    return JoinAnswer(
        member_id=member_id,
        generation=group.generation,
        protocol_type=group.protocol_type,
        protocol=group.protocol,
        leader=group.leader or "",
        members=tuple(
            JoinedMember(member.member_id, member.instance_id, member.metadata(group.protocol)) for member in members
        ),
    )


def put(step: Step, member: Member) -> Step:
    return step.to(step.group.with_member(member))


def session_started(member: Member, now_ms: int) -> Member:
    return replace(member, session_deadline_ms=now_ms + member.session_timeout_ms)


def waits_to_join(step: Step, member: Member, ticket: Ticket) -> Step:
    """The member waits for the end of the join phase; an older request of its own is told to try again."""
    displaced = step.answered(
        member.join_ticket, JoinAnswer(code=Code.REBALANCE_IN_PROGRESS, member_id=member.member_id)
    )
    return put(displaced, replace(member, join_ticket=ticket))


def answer_syncs(step: Step, answer: Callable[[Member], SyncAnswer], now_ms: int) -> Step:
    """Answer all members that wait for their assignment; their sessions start anew."""
    members = dict(step.group.members)
    for member in step.group.members.values():
        if member.sync_ticket is not None:
            step = step.answered(member.sync_ticket, answer(member))
            members[member.member_id] = session_started(replace(member, sync_ticket=None), now_ms)
    return step.to(replace(step.group, members=members))


def with_assignment(group: Group, assignment: Mapping[str, bytes]) -> Group:
    members = {key: replace(member, assignment=assignment.get(key, b"")) for key, member in group.members.items()}
    return replace(group, members=members)


def remove(step: Step, member_id: str) -> Step:
    """Take a member, or a pending one, out of the group; requests of it that wait are answered UNKNOWN_MEMBER_ID."""
    member = step.group.members.get(member_id)
    if member is not None:
        step = step.answered(member.join_ticket, JoinAnswer(code=Code.UNKNOWN_MEMBER_ID))
        step = step.answered(member.sync_ticket, SyncAnswer(code=Code.UNKNOWN_MEMBER_ID))
    return step.to(step.group.without(member_id))


def rebalance_or_complete(step: Step, properties: BrokerProperties, now_ms: int) -> Step:
    """Begin a rebalance where the state allows it, else see whether the one under way can go on."""
    if step.group.state in PREDECESSORS[GroupState.PREPARING_REBALANCE]:
        return prepare(step, properties, now_ms)
    return complete_if_joined(step, now_ms)


def prepare(step: Step, properties: BrokerProperties, now_ms: int) -> Step:
    """Begin a rebalance: whoever waits for an assignment is told to join again."""
    if step.group.state is GroupState.COMPLETING_REBALANCE:
        step = reset_assignment(step, Code.REBALANCE_IN_PROGRESS, now_ms)
    group = replace(step.group, pending_sync=frozenset(), sync_deadline_ms=None)
    if group.state is not GroupState.EMPTY:
        return _complete_or_wait(step.to(group.moved(GroupState.PREPARING_REBALANCE, now_ms)), now_ms)
    delay_ms = properties.group_initial_rebalance_delay_ms
    remaining_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
    timer = JoinTimer(now_ms + delay_ms, delay_ms, remaining_ms)
    return step.to(replace(group.moved(GroupState.PREPARING_REBALANCE, now_ms), join_timer=timer))


def reset_assignment(step: Step, code: Code, now_ms: int) -> Step:
    return answer_syncs(step.to(with_assignment(step.group, {})), lambda _member: SyncAnswer(code=code), now_ms)


def _complete_or_wait(step: Step, now_ms: int) -> Step:
    group = step.group
    if group.all_joined:
        return complete(step, now_ms)
    return step.to(replace(group, join_timer=JoinTimer(now_ms + group.rebalance_timeout_ms)))


def complete_if_joined(step: Step, now_ms: int) -> Step:
    """End the join phase when nobody is missing; the first rebalance of a group always waits for its delay."""
    group = step.group
    if group.state is not GroupState.PREPARING_REBALANCE or group.previous_state is GroupState.EMPTY:
        return step
    return complete(step, now_ms) if group.all_joined else step


def initial_delay_over(step: Step, properties: BrokerProperties, now_ms: int) -> Step:
    """Wait once more where new members came meanwhile and time remains, else end the join phase (KIP-134)."""
    group = step.group
    timer = group.join_timer
    if timer is None or timer.initial_delay_ms is None:
        raise AssertionError("only the first rebalance has an initial delay")
    if not (group.member_added and timer.remaining_ms):
        return complete(step, now_ms)
    delay_ms = min(properties.group_initial_rebalance_delay_ms, timer.remaining_ms)
    remaining_ms = max(timer.remaining_ms - timer.initial_delay_ms, 0)
    following = JoinTimer(now_ms + delay_ms, delay_ms, remaining_ms)
    return step.to(replace(group, member_added=False, join_timer=following))


def complete(step: Step, now_ms: int) -> Step:
    """End the join phase: a new generation of those that joined, static members that did not included."""
    step = step.to(replace(step.group, join_timer=None))
    for member in step.group.members.values():
        if member.join_ticket is None and member.instance_id is None:
            step = remove(step, member.member_id)
    group = step.group
    if group.members and group.awaiting_join == 0:
        # Only static members are left, and none came: wait for them, or for the end of their sessions.
        return step.to(replace(group, join_timer=JoinTimer(now_ms + group.rebalance_timeout_ms)))
    step = step.to(_next_generation(group, now_ms))
    if not step.group.members:
        return step.storing(Store(group_value(step.group)))
    for member in step.group.members.values():
        step = step.answered(member.join_ticket, join_answer(step.group, member.member_id))
    joined = {
        key: session_started(replace(member, join_ticket=None, is_new=False), now_ms)
        for key, member in step.group.members.items()
    }
    return step.to(replace(step.group, members=joined))


def _next_generation(group: Group, now_ms: int) -> Group:
    members = group.members
    leader = group.leader
    if leader is not None and members[leader].join_ticket is None:
        leader = next(key for key, member in members.items() if member.join_ticket is not None)
    following = replace(
        group,
        generation=group.generation + 1,
        leader=leader,
        protocol=group.select_protocol() if members else None,
        pending_sync=frozenset(members),
        sync_deadline_ms=now_ms + group.rebalance_timeout_ms if members else None,
    )
    target = GroupState.COMPLETING_REBALANCE if members else GroupState.EMPTY
    return replace(following.moved(target, now_ms), topics=following.subscribed_topics())
