"""The classic group protocol: JoinGroup, SyncGroup, Heartbeat, LeaveGroup, and the passing of time.

Groups are values; time and the ids of new members are arguments. The answers follow Apache Kafka 4.4.0's
``GroupMetadataManager`` (KIP-62, KIP-134, KIP-345, KIP-389, KIP-394, KIP-559, KIP-814). A `GroupStep` is applied in
this order::

    step = machine.join(group, request, ...)    # or sync, leave, expire
    ...                                         # take step.group, before anything else is stepped
    ...                                         # send step.replies; they depend on nothing
    for store in step.stores:                   # append store.value, wait until it is durable, then
        step = machine.stored(group, store, code, properties, now)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

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
    Now,
    SyncAnswer,
    SyncRequest,
    Ticket,
)

#: First JoinGroup version whose client retries with its assigned member id (KIP-394).
MEMBER_ID_REQUIRED_VERSION: Final = 4
#: How long a member's first join may wait; a constant in Kafka too.
NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 300_000
#: First JoinGroup version with SkipAssignment (KIP-814).
SKIP_ASSIGNMENT_VERSION: Final = 9


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
    """A generation to append to the log. Once its record is durable every member gets its assignment."""

    value: Group
    then: ReplacementStored | None = None


def with_assignment(group: Group, assignment: Mapping[str, bytes]) -> Group:
    members = {key: replace(member, assignment=assignment.get(key, b"")) for key, member in group.members.items()}
    return replace(group, members=members)


def join_answer(group: Group, member_id: str) -> JoinAnswer:
    """The generation as sent to a member; only the leader sees the others."""
    members = group.members.values() if group.leader == member_id else ()
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


def _sync_answer(group: Group, member: Member) -> SyncAnswer:
    return SyncAnswer(protocol_type=group.protocol_type, protocol=group.protocol, assignment=member.assignment)


@dataclass
class GroupStep:
    group: Group
    properties: BrokerProperties
    now: Now
    replies: list[tuple[Ticket, JoinAnswer | SyncAnswer]] = field(default_factory=list)
    stores: list[Store] = field(default_factory=list)

    def change(self, **changes: Any) -> None:
        self.group = replace(self.group, **changes)

    def answer(self, ticket: Ticket | None, answer: JoinAnswer | SyncAnswer) -> None:
        """Without a ticket there is no waiting request."""
        if ticket is not None:
            self.replies.append((ticket, answer))

    def put(self, member: Member) -> None:
        self.group = self.group.with_member(member)

    def remove(self, member_id: str) -> None:
        """Remove a member, or a pending one; its waiting requests are answered UNKNOWN_MEMBER_ID."""
        member = self.group.members.get(member_id)
        if member is not None:
            self.answer(member.join_ticket, JoinAnswer(code=Code.UNKNOWN_MEMBER_ID))
            self.answer(member.sync_ticket, SyncAnswer(code=Code.UNKNOWN_MEMBER_ID))
        self.group = self.group.without(member_id)

    def answer_syncs(self, answer: Callable[[Member], SyncAnswer]) -> None:
        """Answer all members that wait for their assignment, and restart their sessions."""
        members = dict(self.group.members)
        for member in self.group.members.values():
            if member.sync_ticket is not None:
                self.answer(member.sync_ticket, answer(member))
                members[member.member_id] = replace(member, sync_ticket=None).alive(self.now)
        self.change(members=members)

    def reset_assignment(self, code: Code) -> None:
        self.group = with_assignment(self.group, {})
        self.answer_syncs(lambda _member: SyncAnswer(code=code))

    def rebalance_or_complete(self) -> None:
        """Begin a rebalance, or continue the current one if all have joined; a first one always waits for its delay."""
        if self.group.state in PREDECESSORS[GroupState.PREPARING_REBALANCE]:
            self.prepare()
        elif self.group.previous_state is not GroupState.EMPTY:
            self.complete_if_last()

    def prepare(self) -> None:
        """Begin a rebalance: members that wait for an assignment are told to rejoin."""
        if self.group.state is GroupState.COMPLETING_REBALANCE:
            self.reset_assignment(Code.REBALANCE_IN_PROGRESS)
        before, timeout_ms = self.group.state, self.group.rebalance_timeout_ms
        self.change(pending_sync=frozenset(), sync_deadline_ms=None)
        self.group = self.group.moved(GroupState.PREPARING_REBALANCE, self.now)
        if before is GroupState.EMPTY:
            delay_ms = self.properties.group_initial_rebalance_delay_ms
            timer = JoinTimer(self.now.steady_ms + delay_ms, delay_ms, max(timeout_ms - delay_ms, 0))
            self.change(join_timer=timer)
        elif self.group.all_joined:
            self.complete()
        else:
            self.change(join_timer=JoinTimer(self.now.steady_ms + timeout_ms))

    def complete_if_last(self) -> None:
        """End the join phase if only removed members were missing; the initial delay no longer applies here."""
        if self.group.state is GroupState.PREPARING_REBALANCE and self.group.all_joined:
            self.complete()

    def complete(self) -> None:
        """End the join phase: a new generation of the joined members, and of static members that did not join."""
        self.change(join_timer=None)
        for member in self.group.members.values():
            if member.join_ticket is None and member.instance_id is None:
                self.remove(member.member_id)
        group = self.group
        if group.members and group.awaiting_join == 0:
            # Only static members are left, and none joined: wait for them, or for the end of their sessions.
            self.change(join_timer=JoinTimer(self.now.steady_ms + group.rebalance_timeout_ms))
            return
        self.group = _next_generation(group, self.now)
        joined = {}
        for key, member in group.members.items():
            self.answer(member.join_ticket, join_answer(self.group, key))
            joined[key] = replace(member, join_ticket=None, is_new=False).alive(self.now)
        self.change(members=joined)
        if not joined:
            self.stores.append(Store(self.group))

    def wait_to_join(self, request: JoinRequest, member: Member) -> None:
        """Update the member from the request, and let it wait to join; its older request is told to retry."""
        self.answer(member.join_ticket, JoinAnswer(code=Code.REBALANCE_IN_PROGRESS, member_id=member.member_id))
        self.put(
            replace(
                member,
                protocols=request.protocols,
                rebalance_timeout_ms=request.rebalance_timeout_ms,
                session_timeout_ms=request.session_timeout_ms,
                join_ticket=request.ticket,
            )
        )


def _next_generation(group: Group, now: Now) -> Group:
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
        sync_deadline_ms=now.steady_ms + group.rebalance_timeout_ms if members else None,
    )
    target = GroupState.COMPLETING_REBALANCE if members else GroupState.EMPTY
    return replace(following.moved(target, now), topics=following.subscribed_topics())


def join(
    group: Group, request: JoinRequest, properties: BrokerProperties, now: Now, new_member_id: Callable[[str], str]
) -> GroupStep:
    step, member_id, code = GroupStep(group, properties, now), request.member_id, Code.NONE
    if not group.accepts(member_id, properties.group_max_size):
        step.remove(member_id)
        code, member_id = Code.GROUP_MAX_SIZE_REACHED, ""
    elif not group.supports(request.protocol_type, request.protocols):
        code = Code.INCONSISTENT_GROUP_PROTOCOL
    elif not member_id:
        member_id = new_member_id(request.client_id if request.instance_id is None else request.instance_id)
        code = _join_new(step, request, member_id)
    elif member_id not in group.pending:
        code = group.check_member(member_id, request.instance_id)
        if code is Code.NONE:
            _join_again(step, request)
    elif request.instance_id is not None:
        # Kafka: IllegalStateException; a static member never gets a pending id.
        code, member_id = Code.UNKNOWN_SERVER_ERROR, ""
    else:
        _add(step, request, member_id)
    if code is not Code.NONE:
        step.answer(request.ticket, JoinAnswer(code=code, member_id=member_id))
    return step


def _join_new(step: GroupStep, request: JoinRequest, member_id: str) -> Code:
    if request.instance_id is not None:
        holder = step.group.static_member(request.instance_id)
        if holder is not None:
            _replace_static(step, request, holder, member_id)
            return Code.NONE
    elif request.version >= MEMBER_ID_REQUIRED_VERSION:
        step.change(pending={**step.group.pending, member_id: step.now.steady_ms + request.session_timeout_ms})
        return Code.MEMBER_ID_REQUIRED
    _add(step, request, member_id)
    return Code.NONE


def _add(step: GroupStep, request: JoinRequest, member_id: str) -> None:
    group = step.group
    first = group.state is GroupState.PREPARING_REBALANCE and group.previous_state is GroupState.EMPTY
    step.change(
        member_added=group.member_added or first,
        protocol_type=group.protocol_type if group.members else request.protocol_type,
    )
    step.put(
        Member(
            member_id=member_id,
            instance_id=request.instance_id,
            client_id=request.client_id,
            client_host=request.client_host,
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            protocols=request.protocols,
            join_ticket=request.ticket,
            is_new=True,
            session_deadline_ms=step.now.steady_ms + NEW_MEMBER_JOIN_TIMEOUT_MS,
        )
    )
    step.rebalance_or_complete()


def _join_again(step: GroupStep, request: JoinRequest) -> None:
    group = step.group
    member = group.members[request.member_id]
    unchanged = member.protocols == request.protocols
    completing = group.state is GroupState.COMPLETING_REBALANCE and unchanged
    follows = group.state is GroupState.STABLE and unchanged and group.leader != member.member_id
    if completing or follows:
        # The answer to the first request was lost, or a follower joins again: the generation is unchanged.
        step.answer(request.ticket, join_answer(group, member.member_id))
    else:
        step.wait_to_join(request, member)
        step.rebalance_or_complete()


def _replace_static(step: GroupStep, request: JoinRequest, replaced: Member, member_id: str) -> None:
    """A static member returned without its member id: it replaces the one with its instance id."""
    before = step.group
    fenced = Code.FENCED_INSTANCE_ID
    step.answer(replaced.join_ticket, JoinAnswer(code=fenced, member_id=replaced.member_id))
    step.answer(replaced.sync_ticket, SyncAnswer(code=fenced))
    heir = replace(replaced, member_id=member_id, join_ticket=None, sync_ticket=None, is_new=False)
    step.group = _renamed(before, replaced.member_id, heir.alive(step.now))
    step.wait_to_join(request, step.group.members[member_id])
    if before.state is not GroupState.STABLE or step.group.select_protocol() != before.protocol:
        step.rebalance_or_complete()
    else:
        then = ReplacementStored(
            member_id=member_id,
            ticket=request.ticket,
            replaced=replaced.member_id,
            leader=before.leader or "",
            skips_assignment=request.version >= SKIP_ASSIGNMENT_VERSION,
        )
        step.stores.append(Store(step.group, then))


def _renamed(group: Group, old_id: str, heir: Member) -> Group:
    """The group with a member renamed, in the same position."""
    members = (heir if key == old_id else member for key, member in group.members.items())
    leader = heir.member_id if group.leader == old_id else group.leader
    pending_sync = frozenset(heir.member_id if key == old_id else key for key in group.pending_sync)
    return replace(group, members={each.member_id: each for each in members}, leader=leader, pending_sync=pending_sync)


def sync(group: Group, request: SyncRequest, properties: BrokerProperties, now: Now) -> GroupStep:
    """SyncGroup; assignments are sent when the record with the leader's assignment is durable."""
    step = GroupStep(group, properties, now)
    code = _check_sync(group, request)
    if code is not Code.NONE:
        step.answer(request.ticket, SyncAnswer(code=code))
        return step
    member = group.members[request.member_id]
    step.change(pending_sync=group.pending_sync - {member.member_id})
    if group.state is GroupState.STABLE:
        step.answer(request.ticket, _sync_answer(group, member))
        return step
    step.answer(member.sync_ticket, SyncAnswer(code=Code.REBALANCE_IN_PROGRESS))
    step.put(replace(member, sync_ticket=request.ticket))
    if group.leader == member.member_id:
        step.stores.append(Store(with_assignment(step.group, request.assignments)))
    return step


def _check_sync(group: Group, request: SyncRequest) -> Code:
    if group.state is GroupState.EMPTY:
        return Code.UNKNOWN_MEMBER_ID
    code = group.check_member(request.member_id, request.instance_id, request.generation)
    if code is not Code.NONE:
        return code
    claims = ((request.protocol_type, group.protocol_type), (request.protocol, group.protocol))
    if any(None not in {claimed, actual} and claimed != actual for claimed, actual in claims):
        return Code.INCONSISTENT_GROUP_PROTOCOL
    return Code.REBALANCE_IN_PROGRESS if group.state is GroupState.PREPARING_REBALANCE else Code.NONE


def heartbeat(group: Group, member_id: str, instance_id: str | None, generation: int, now: Now) -> tuple[Group, Code]:
    code = group.check_member(member_id, instance_id, generation)
    if code is not Code.NONE:
        return group, code
    preparing = group.state is GroupState.PREPARING_REBALANCE
    return seen(group, member_id, now), Code.REBALANCE_IN_PROGRESS if preparing else Code.NONE


def seen(group: Group, member_id: str, now: Now) -> Group:
    return group.with_member(group.members[member_id].alive(now))


def leave(
    group: Group, identities: Iterable[tuple[str, str | None]], properties: BrokerProperties, now: Now
) -> tuple[GroupStep, tuple[Code, ...]]:
    """LeaveGroup by (member id, instance id): the step, and a code for each; a static member may omit its id."""
    step, codes = GroupStep(group, properties, now), []
    for member_id, instance_id in identities:
        holder = None if member_id or instance_id is None else step.group.static_member(instance_id)
        leaving = member_id if holder is None else holder.member_id
        code = Code.NONE if leaving in step.group.pending else step.group.check_member(leaving, instance_id)
        codes.append(code)
        if code is Code.NONE:
            step.remove(leaving)
    if Code.NONE in codes and step.group.state is not GroupState.EMPTY:
        step.rebalance_or_complete()
    return step, tuple(codes)


def expire(group: Group, properties: BrokerProperties, now: Now) -> GroupStep:
    step = GroupStep(group, properties, now)
    for member_id in [key for key, deadline_ms in group.pending.items() if deadline_ms <= now.steady_ms]:
        step.remove(member_id)
        step.complete_if_last()
    for member_id in group.members:
        _expire_session(step, member_id)
    timer = step.group.join_timer
    if timer is not None and timer.deadline_ms <= now.steady_ms:
        if timer.initial_delay_ms is not None and step.group.member_added and timer.remaining_ms:
            # New members arrived during the initial delay, and time remains: wait again (KIP-134).
            delay_ms = min(properties.group_initial_rebalance_delay_ms, timer.remaining_ms)
            remaining_ms = max(timer.remaining_ms - timer.initial_delay_ms, 0)
            step.change(member_added=False, join_timer=JoinTimer(now.steady_ms + delay_ms, delay_ms, remaining_ms))
        else:
            step.complete()
    sync_deadline_ms, missing = step.group.sync_deadline_ms, step.group.pending_sync
    if sync_deadline_ms is not None and sync_deadline_ms <= now.steady_ms:
        step.change(sync_deadline_ms=None)
        for member_id in sorted(missing):
            step.remove(member_id)
        if missing:
            step.prepare()
    return step


def _expire_session(step: GroupStep, member_id: str) -> None:
    member = step.group.members.get(member_id)
    if member is None or member.session_deadline_ms is None or member.session_deadline_ms > step.now.steady_ms:
        return
    if (member.join_ticket is not None or member.sync_ticket is not None) and not member.is_new:
        # It cannot send heartbeats while its request waits; the answer restarts its session.
        step.put(replace(member, session_deadline_ms=None))
        return
    step.remove(member_id)
    if step.group.state is GroupState.PREPARING_REBALANCE:
        step.complete_if_last()
    else:
        step.rebalance_or_complete()


def stored(group: Group, store: Store, code: Code, properties: BrokerProperties, now: Now) -> GroupStep:
    step, assigned = GroupStep(group, properties, now), store.value.members
    if store.then is not None:
        _replacement_stored(step, store.then, code)
    # Otherwise a rebalance began in the meantime, and has answered all waiting members.
    elif assigned and group.state is GroupState.COMPLETING_REBALANCE and group.generation == store.value.generation:
        if code is not Code.NONE:
            step.reset_assignment(code)
            step.rebalance_or_complete()
        else:
            step.group = with_assignment(group, {key: member.assignment for key, member in assigned.items()})
            step.answer_syncs(lambda member: _sync_answer(group, member))
            step.group = step.group.moved(GroupState.STABLE, now)
    return step


def _replacement_stored(step: GroupStep, then: ReplacementStored, code: Code) -> None:
    group = step.group
    member = group.members.get(then.member_id)
    if group.state is not GroupState.STABLE or member is None or member.join_ticket != then.ticket:
        # A rebalance began in the meantime: the member has joined it, and is answered at its end.
        return
    if code is not Code.NONE:
        before = replace(member, member_id=then.replaced, join_ticket=None)
        step.answer(then.ticket, replace(join_answer(group, ""), code=code, leader=then.leader))
        step.group = _renamed(group, then.member_id, before)
        return
    answer = join_answer(group, then.member_id)
    if then.skips_assignment:
        answer = replace(answer, skip_assignment=group.leader == then.member_id)
    else:
        answer = replace(answer, leader=then.leader, members=())
    step.answer(then.ticket, answer)
    step.put(replace(member, join_ticket=None))


def loaded(group: Group, properties: BrokerProperties, now: Now) -> GroupStep:
    """A group as in its last record; every member gets a whole session to send a heartbeat."""
    step = GroupStep(group, properties, now)
    members = {key: member.alive(now) for key, member in group.members.items()}
    step.change(members=members, leader=group.leader if group.leader in members else next(iter(members), None))
    step.change(topics=step.group.subscribed_topics())
    if len(members) > properties.group_max_size:
        step.prepare()
    return step
