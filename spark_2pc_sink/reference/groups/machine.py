"""The classic group protocol as functions: JoinGroup, SyncGroup, Heartbeat, LeaveGroup, and the passing of time.

Groups are values, passed in and returned; time and the ids of new members are arguments. The answers follow Apache
Kafka 4.4.0's ``GroupMetadataManager`` (KIP-62, KIP-134, KIP-345, KIP-389,
KIP-394, KIP-559, KIP-814). A `GroupStep` has the group's new value, answers, and records to store, in this
order::

    step = machine.join(group, request, ...)    # or sync, leave, expire
    ...                                         # apply the group of the step, before anything else is stepped
    ...                                         # send step.replies; they depend on nothing
    for store in step.stores:                   # append store.value, wait until it is durable, then
        step = machine.stored(group, store, code, now_ms)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from spark_2pc_sink.codes import Code
from spark_2pc_sink.reference.config.properties import BrokerProperties
from spark_2pc_sink.reference.groups.members import (
    PREDECESSORS,
    Group,
    GroupState,
    JoinAnswer,
    JoinedMember,
    JoinRequest,
    JoinTimer,
    Member,
    SyncAnswer,
    SyncRequest,
    Ticket,
)
from spark_2pc_sink.reference.groups.records import GroupValue

#: First JoinGroup version whose client retries with its assigned member id (KIP-394).
MEMBER_ID_REQUIRED_VERSION: Final = 4
#: How long a member's first join may wait; a constant in Kafka too.
NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 300_000
#: First JoinGroup version with SkipAssignment (KIP-814).
SKIP_ASSIGNMENT_VERSION: Final = 9


@dataclass(frozen=True)
class Reply:
    ticket: Ticket
    answer: JoinAnswer | SyncAnswer


@dataclass(frozen=True)
class AssignmentStored:
    """Once the record is durable every member gets its assignment, and the group is stable."""

    generation: int
    assignment: Mapping[str, bytes]


@dataclass(frozen=True)
class ReplacementStored:
    """Once the record is durable the returning static member gets the unchanged generation (KIP-345).

    If the record could not be stored, the member id ``replaced`` is restored. Clients that cannot skip the assignment
    are told the previous ``leader``, so that a returning leader does not compute a new assignment.
    """

    member_id: str
    ticket: Ticket
    replaced: str
    leader: str
    skips_assignment: bool


@dataclass(frozen=True)
class Store:
    value: GroupValue
    then: AssignmentStored | ReplacementStored | None = None


@dataclass(frozen=True)
class GroupStep:
    group: Group
    replies: tuple[Reply, ...] = ()
    stores: tuple[Store, ...] = ()

    def to(self, group: Group) -> GroupStep:
        return replace(self, group=group)

    def answered(self, ticket: Ticket | None, answer: JoinAnswer | SyncAnswer) -> GroupStep:
        """The step with an answer added; without a ticket there is no waiting request."""
        return self if ticket is None else replace(self, replies=(*self.replies, Reply(ticket, answer)))

    def storing(self, store: Store) -> GroupStep:
        return replace(self, stores=(*self.stores, store))


def group_value(group: Group, assignment: Mapping[str, bytes] | None = None) -> GroupValue:
    """The group's current record, with another assignment if one is given."""
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
    """The generation as sent to a member; only the leader sees the others."""
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


def put(step: GroupStep, member: Member) -> GroupStep:
    return step.to(step.group.with_member(member))


def session_started(member: Member, now_ms: int) -> Member:
    return replace(member, session_deadline_ms=now_ms + member.session_timeout_ms)


def waits_to_join(step: GroupStep, member: Member, ticket: Ticket) -> GroupStep:
    """The member waits for the end of the join phase; its older request is told to retry."""
    displaced = step.answered(
        member.join_ticket, JoinAnswer(code=Code.REBALANCE_IN_PROGRESS, member_id=member.member_id)
    )
    return put(displaced, replace(member, join_ticket=ticket))


def answer_syncs(step: GroupStep, answer: Callable[[Member], SyncAnswer], now_ms: int) -> GroupStep:
    """Answer all members that wait for their assignment, and restart their sessions."""
    members = dict(step.group.members)
    for member in step.group.members.values():
        if member.sync_ticket is not None:
            step = step.answered(member.sync_ticket, answer(member))
            members[member.member_id] = session_started(replace(member, sync_ticket=None), now_ms)
    return step.to(replace(step.group, members=members))


def with_assignment(group: Group, assignment: Mapping[str, bytes]) -> Group:
    members = {key: replace(member, assignment=assignment.get(key, b"")) for key, member in group.members.items()}
    return replace(group, members=members)


def remove(step: GroupStep, member_id: str) -> GroupStep:
    """Remove a member, or a pending one; its waiting requests are answered UNKNOWN_MEMBER_ID."""
    member = step.group.members.get(member_id)
    if member is not None:
        step = step.answered(member.join_ticket, JoinAnswer(code=Code.UNKNOWN_MEMBER_ID))
        step = step.answered(member.sync_ticket, SyncAnswer(code=Code.UNKNOWN_MEMBER_ID))
    return step.to(step.group.without(member_id))


def rebalance_or_complete(step: GroupStep, properties: BrokerProperties, now_ms: int) -> GroupStep:
    """Begin a rebalance if the state allows it, else check whether the current one can continue."""
    if step.group.state in PREDECESSORS[GroupState.PREPARING_REBALANCE]:
        return prepare(step, properties, now_ms)
    return complete_if_joined(step, now_ms)


def prepare(step: GroupStep, properties: BrokerProperties, now_ms: int) -> GroupStep:
    """Begin a rebalance: members that wait for an assignment are told to rejoin."""
    if step.group.state is GroupState.COMPLETING_REBALANCE:
        step = reset_assignment(step, Code.REBALANCE_IN_PROGRESS, now_ms)
    group = replace(step.group, pending_sync=frozenset(), sync_deadline_ms=None)
    if group.state is not GroupState.EMPTY:
        step = step.to(group.moved(GroupState.PREPARING_REBALANCE, now_ms))
        if group.all_joined:
            return complete(step, now_ms)
        return step.to(replace(step.group, join_timer=JoinTimer(now_ms + group.rebalance_timeout_ms)))
    delay_ms = properties.group_initial_rebalance_delay_ms
    remaining_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
    timer = JoinTimer(now_ms + delay_ms, delay_ms, remaining_ms)
    return step.to(replace(group.moved(GroupState.PREPARING_REBALANCE, now_ms), join_timer=timer))


def reset_assignment(step: GroupStep, code: Code, now_ms: int) -> GroupStep:
    return answer_syncs(step.to(with_assignment(step.group, {})), lambda _member: SyncAnswer(code=code), now_ms)


def complete_if_joined(step: GroupStep, now_ms: int) -> GroupStep:
    """End the join phase if all members have joined; a group's first rebalance always waits for its delay."""
    group = step.group
    if group.state is not GroupState.PREPARING_REBALANCE or group.previous_state is GroupState.EMPTY:
        return step
    return complete(step, now_ms) if group.all_joined else step


def initial_delay_over(step: GroupStep, properties: BrokerProperties, now_ms: int) -> GroupStep:
    """Wait again if new members arrived in the meantime and time remains, else end the join phase (KIP-134)."""
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


def complete(step: GroupStep, now_ms: int) -> GroupStep:
    """End the join phase: a new generation of the joined members, and of static members that did not join."""
    step = step.to(replace(step.group, join_timer=None))
    for member in step.group.members.values():
        if member.join_ticket is None and member.instance_id is None:
            step = remove(step, member.member_id)
    group = step.group
    if group.members and group.awaiting_join == 0:
        # Only static members are left, and none joined: wait for them, or for the end of their sessions.
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


def join(
    group: Group, request: JoinRequest, properties: BrokerProperties, now_ms: int, new_member_id: Callable[[str], str]
) -> GroupStep:
    """JoinGroup."""
    member_id, step = request.member_id, GroupStep(group)
    if not group.accepts(member_id, properties.group_max_size):
        return _refused(remove(step, member_id), request, Code.GROUP_MAX_SIZE_REACHED, "")
    if not group.supports(request.protocol_type, request.protocols):
        return _refused(step, request, Code.INCONSISTENT_GROUP_PROTOCOL, member_id)
    if member_id:
        return _join_known(step, request, properties, now_ms)
    prefix = request.client_id if request.instance_id is None else request.instance_id
    return _join_new(step, request, properties, now_ms, new_member_id(prefix))


def _join_known(step: GroupStep, request: JoinRequest, properties: BrokerProperties, now_ms: int) -> GroupStep:
    member_id = request.member_id
    if member_id in step.group.pending:
        if request.instance_id is not None:
            # Kafka: IllegalStateException; a static member never gets a pending id.
            return _refused(step, request, Code.UNKNOWN_SERVER_ERROR, "")
        return _add(step, request, properties, now_ms, member_id)
    code = step.group.check_member(member_id, request.instance_id)
    if code is not Code.NONE:
        return step.answered(request.ticket, JoinAnswer(code=code, member_id=member_id))
    return _join_again(step, request, properties, now_ms)


def _refused(step: GroupStep, request: JoinRequest, code: Code, member_id: str) -> GroupStep:
    return step.answered(request.ticket, JoinAnswer(code=code, member_id=member_id))


def _join_new(
    step: GroupStep, request: JoinRequest, properties: BrokerProperties, now_ms: int, member_id: str
) -> GroupStep:
    if request.instance_id is not None:
        holder = step.group.static_member(request.instance_id)
        if holder is not None:
            return _replace_static(step, request, properties, now_ms, (holder, member_id))
    elif request.version >= MEMBER_ID_REQUIRED_VERSION:
        pending = {**step.group.pending, member_id: now_ms + request.session_timeout_ms}
        return _refused(step.to(replace(step.group, pending=pending)), request, Code.MEMBER_ID_REQUIRED, member_id)
    return _add(step, request, properties, now_ms, member_id)


def _add(step: GroupStep, request: JoinRequest, properties: BrokerProperties, now_ms: int, member_id: str) -> GroupStep:
    group = step.group
    first = group.state is GroupState.PREPARING_REBALANCE and group.previous_state is GroupState.EMPTY
    group = replace(
        group,
        member_added=group.member_added or first,
        protocol_type=group.protocol_type if group.members else request.protocol_type,
    )
    member = Member(
        member_id=member_id,
        instance_id=request.instance_id,
        client_id=request.client_id,
        client_host=request.client_host,
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        protocols=request.protocols,
        join_ticket=request.ticket,
        is_new=True,
        session_deadline_ms=now_ms + NEW_MEMBER_JOIN_TIMEOUT_MS,
    )
    return rebalance_or_complete(put(step.to(group), member), properties, now_ms)


def _updated(step: GroupStep, request: JoinRequest, member: Member) -> GroupStep:
    """Update the member from the request, and let it wait to join."""
    changed = replace(
        member,
        protocols=request.protocols,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        session_timeout_ms=request.session_timeout_ms,
    )
    return waits_to_join(step, changed, request.ticket)


def _join_again(step: GroupStep, request: JoinRequest, properties: BrokerProperties, now_ms: int) -> GroupStep:
    group = step.group
    member = group.members[request.member_id]
    unchanged = member.protocols == request.protocols
    completing = group.state is GroupState.COMPLETING_REBALANCE and unchanged
    follows = group.state is GroupState.STABLE and unchanged and group.leader != member.member_id
    if completing or follows:
        # The answer to the first request was lost, or a follower asks again: the generation is unchanged.
        return step.answered(request.ticket, join_answer(group, member.member_id))
    return rebalance_or_complete(_updated(step, request, member), properties, now_ms)


def _replace_static(
    step: GroupStep, request: JoinRequest, properties: BrokerProperties, now_ms: int, ids: tuple[Member, str]
) -> GroupStep:
    """A static member returned without its member id: it replaces the one with its instance id."""
    replaced, member_id = ids
    before = step.group
    fenced = Code.FENCED_INSTANCE_ID
    step = step.answered(replaced.join_ticket, JoinAnswer(code=fenced, member_id=replaced.member_id))
    step = step.answered(replaced.sync_ticket, SyncAnswer(code=fenced))
    heir = replace(replaced, member_id=member_id, join_ticket=None, sync_ticket=None, is_new=False)
    step = step.to(_renamed(before, replaced.member_id, session_started(heir, now_ms)))
    step = _updated(step, request, step.group.members[member_id])
    if before.state is GroupState.COMPLETING_REBALANCE:
        return prepare(step, properties, now_ms)
    if before.state is not GroupState.STABLE:
        return complete_if_joined(step, now_ms)
    if step.group.select_protocol() != before.protocol:
        return rebalance_or_complete(step, properties, now_ms)
    then = ReplacementStored(
        member_id=member_id,
        ticket=request.ticket,
        replaced=replaced.member_id,
        leader=before.leader or "",
        skips_assignment=request.version >= SKIP_ASSIGNMENT_VERSION,
    )
    return step.storing(Store(group_value(step.group), then))


def _renamed(group: Group, old_id: str, heir: Member) -> Group:
    """The group with a member renamed, in the same position."""
    members = {
        heir.member_id if key == old_id else key: heir if key == old_id else member
        for key, member in group.members.items()
    }
    leader = heir.member_id if group.leader == old_id else group.leader
    pending_sync = frozenset(heir.member_id if key == old_id else key for key in group.pending_sync)
    return replace(group, members=members, leader=leader, pending_sync=pending_sync)


def sync(group: Group, request: SyncRequest) -> GroupStep:
    """SyncGroup; assignments are sent when the record with the leader's assignment is durable."""
    step = GroupStep(group)
    code = _check_sync(group, request)
    if code is not Code.NONE:
        return step.answered(request.ticket, SyncAnswer(code=code))
    member = group.members[request.member_id]
    step = step.to(replace(group, pending_sync=group.pending_sync - {member.member_id}))
    if group.state is GroupState.STABLE:
        return step.answered(request.ticket, _part(group, member))
    step = step.answered(member.sync_ticket, SyncAnswer(code=Code.REBALANCE_IN_PROGRESS))
    step = put(step, replace(member, sync_ticket=request.ticket))
    if group.leader != member.member_id:
        return step
    then = AssignmentStored(group.generation, dict(request.assignments))
    return step.storing(Store(group_value(step.group, request.assignments), then))


def _check_sync(group: Group, request: SyncRequest) -> Code:
    if group.state is GroupState.EMPTY:
        return Code.UNKNOWN_MEMBER_ID
    code = group.check_member(request.member_id, request.instance_id)
    if code is not Code.NONE:
        return code
    if request.generation != group.generation:
        return Code.ILLEGAL_GENERATION
    if _differs(request.protocol_type, group.protocol_type) or _differs(request.protocol, group.protocol):
        return Code.INCONSISTENT_GROUP_PROTOCOL
    preparing = group.state is GroupState.PREPARING_REBALANCE
    return Code.REBALANCE_IN_PROGRESS if preparing else Code.NONE


def _differs(claimed: str | None, actual: str | None) -> bool:
    return claimed is not None and actual is not None and claimed != actual


def _part(group: Group, member: Member) -> SyncAnswer:
    return SyncAnswer(protocol_type=group.protocol_type, protocol=group.protocol, assignment=member.assignment)


def heartbeat(
    group: Group, member_id: str, instance_id: str | None, generation: int, now_ms: int
) -> tuple[Group, Code]:
    code = group.check_member(member_id, instance_id)
    if code is not Code.NONE:
        return group, code
    if generation != group.generation:
        return group, Code.ILLEGAL_GENERATION
    preparing = group.state is GroupState.PREPARING_REBALANCE
    return seen(group, member_id, now_ms), Code.REBALANCE_IN_PROGRESS if preparing else Code.NONE


def seen(group: Group, member_id: str, now_ms: int) -> Group:
    return group.with_member(session_started(group.members[member_id], now_ms))


def leave(
    group: Group, identities: Iterable[tuple[str, str | None]], properties: BrokerProperties, now_ms: int
) -> tuple[GroupStep, tuple[Code, ...]]:
    """LeaveGroup by (member id, instance id): the step, and a code for each; a static member may omit its id."""
    step, codes = GroupStep(group), []
    for member_id, instance_id in identities:
        code, found = _leaving(step.group, member_id, instance_id)
        codes.append(code)
        if found is not None:
            step = remove(step, found)
    if Code.NONE in codes and step.group.state is not GroupState.EMPTY:
        step = rebalance_or_complete(step, properties, now_ms)
    return step, tuple(codes)


def _leaving(group: Group, member_id: str, instance_id: str | None) -> tuple[Code, str | None]:
    if not member_id:
        holder = None if instance_id is None else group.static_member(instance_id)
        return (Code.UNKNOWN_MEMBER_ID, None) if holder is None else (Code.NONE, holder.member_id)
    if member_id in group.pending:
        return Code.NONE, member_id
    code = group.check_member(member_id, instance_id)
    return code, member_id if code is Code.NONE else None


def expire(group: Group, properties: BrokerProperties, now_ms: int) -> GroupStep:
    """The effect of time: handle every deadline up to now."""
    step = GroupStep(group)
    for member_id in [key for key, deadline_ms in group.pending.items() if deadline_ms <= now_ms]:
        step = _complete_if_last(remove(step, member_id), now_ms)
    for member_id in list(group.members):
        step = _session_over(step, member_id, properties, now_ms)
    timer = step.group.join_timer
    if timer is not None and timer.deadline_ms <= now_ms:
        initial = timer.initial_delay_ms is not None
        step = initial_delay_over(step, properties, now_ms) if initial else complete(step, now_ms)
    sync_deadline_ms = step.group.sync_deadline_ms
    if sync_deadline_ms is not None and sync_deadline_ms <= now_ms:
        step = _sync_over(step, properties, now_ms)
    return step


def _session_over(step: GroupStep, member_id: str, properties: BrokerProperties, now_ms: int) -> GroupStep:
    member = step.group.members.get(member_id)
    if member is None or member.session_deadline_ms is None or member.session_deadline_ms > now_ms:
        return step
    if (member.join_ticket is not None or member.sync_ticket is not None) and not member.is_new:
        # It cannot send heartbeats while its request waits; the answer restarts its session.
        return put(step, replace(member, session_deadline_ms=None))
    step = remove(step, member_id)
    if step.group.state is GroupState.PREPARING_REBALANCE:
        return _complete_if_last(step, now_ms)
    return rebalance_or_complete(step, properties, now_ms)


def _complete_if_last(step: GroupStep, now_ms: int) -> GroupStep:
    """End the join phase if only removed members were missing; the initial delay no longer applies here."""
    waits = step.group.state is GroupState.PREPARING_REBALANCE and step.group.all_joined
    return complete(step, now_ms) if waits else step


def _sync_over(step: GroupStep, properties: BrokerProperties, now_ms: int) -> GroupStep:
    missing = step.group.pending_sync
    step = step.to(replace(step.group, sync_deadline_ms=None))
    for member_id in sorted(missing):
        step = remove(step, member_id)
    return prepare(step, properties, now_ms) if missing else step


def stored(group: Group, store: Store, code: Code, properties: BrokerProperties, now_ms: int) -> GroupStep:
    """A store's record is durable, or could not be stored."""
    step, then = GroupStep(group), store.then
    if isinstance(then, ReplacementStored):
        return _replacement_stored(step, then, code)
    if then is None:
        return step
    if group.state is not GroupState.COMPLETING_REBALANCE or group.generation != then.generation:
        # A rebalance began in the meantime, and has answered all waiting members.
        return step
    if code is not Code.NONE:
        return rebalance_or_complete(reset_assignment(step, code, now_ms), properties, now_ms)
    step = step.to(with_assignment(group, then.assignment))
    step = answer_syncs(step, lambda member: _part(group, member), now_ms)
    return step.to(step.group.moved(GroupState.STABLE, now_ms))


def _replacement_stored(step: GroupStep, then: ReplacementStored, code: Code) -> GroupStep:
    group = step.group
    member = group.members.get(then.member_id)
    if group.state is not GroupState.STABLE or member is None or member.join_ticket != then.ticket:
        # A rebalance began in the meantime: the member has joined it, and is answered at its end.
        return step
    if code is not Code.NONE:
        before = replace(member, member_id=then.replaced, join_ticket=None)
        refusal = replace(join_answer(group, ""), code=code, leader=then.leader)
        return step.answered(then.ticket, refusal).to(_renamed(group, then.member_id, before))
    answer = join_answer(group, then.member_id)
    leads = group.leader == then.member_id
    skips = replace(answer, skip_assignment=leads)
    plain = replace(answer, leader=then.leader, members=())
    step = step.answered(then.ticket, skips if then.skips_assignment else plain)
    return put(step, replace(member, join_ticket=None))


def loaded(group_id: str, value: GroupValue, properties: BrokerProperties, now_ms: int) -> GroupStep:
    """A group as in its last record; every member gets a whole session to send a heartbeat."""
    members = [session_started(member, now_ms) for member in value.members]
    ids = [member.member_id for member in members]
    group = Group(
        group_id=group_id,
        state=GroupState.STABLE if members else GroupState.EMPTY,
        state_since_ms=value.state_since_ms,
        generation=value.generation,
        protocol_type=value.protocol_type or None,
        protocol=value.protocol,
        leader=value.leader if value.leader in ids else next(iter(ids), None),
        members={member.member_id: member for member in members},
    )
    step = GroupStep(replace(group, topics=group.subscribed_topics()))
    return prepare(step, properties, now_ms) if len(members) > properties.group_max_size else step
