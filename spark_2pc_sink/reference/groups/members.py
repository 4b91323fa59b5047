"""A group and its members as frozen values, with the queries of Apache Kafka's ``ClassicGroup``.

The values contain their own deadlines; `Group.next_deadline_ms` is when a group must be checked again. They are on a
steady clock, so that a change of the system's keeps live members, and ends dead ones in time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final, NamedTuple, TypeAlias

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import RemoteProtocolError
from spark_2pc_sink.reference.internal_topics import ConsumerProtocolSubscription, decode

#: What DescribeGroups answers for a group that does not exist.
DEAD: Final = "Dead"


class Now(NamedTuple):
    """The time of a step in milliseconds: deadlines are on a steady clock, states have the time of day (since 1970)."""

    steady_ms: int
    day_ms: int


class GroupState(Enum):
    """The value is Kafka's name, as ListGroups and DescribeGroups show it."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"


#: The states from which each state may be entered, in the words of Kafka's ``ClassicGroupState``.
PREDECESSORS: Final = {
    # All members have left the group.
    GroupState.EMPTY: {GroupState.PREPARING_REBALANCE},
    # Join group from a new member (of an empty group: it waits group.initial.rebalance.delay.ms for more, KIP-134) or
    # an existing member with updated metadata, leave group from existing member, member failure detected.
    GroupState.PREPARING_REBALANCE: {GroupState.EMPTY, GroupState.STABLE, GroupState.COMPLETING_REBALANCE},
    # Some members have joined by the timeout; the generation counts up.
    GroupState.COMPLETING_REBALANCE: {GroupState.PREPARING_REBALANCE},
    # Sync group with state assignment received from leader, once its record is durable.
    GroupState.STABLE: {GroupState.COMPLETING_REBALANCE},
}

#: The consumers' protocol type; the only one whose metadata the coordinator can decode.
CONSUMER_PROTOCOL: Final = "consumer"
#: Identifies a waiting request; chosen by the caller and never reused.
Ticket: TypeAlias = Hashable
#: Name and metadata of a member's assignment protocols, the preferred one first.
Protocols: TypeAlias = tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, kw_only=True)
class Member:
    """One member of a group; a static one has an ``instance_id``, its ``group.instance.id`` (KIP-345).

    While ``is_new``, its first join still waits, and a missed session removes it despite the waiting request.
    ``session_deadline_ms`` is None while a waiting request keeps it alive.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    join_ticket: Ticket | None = None
    sync_ticket: Ticket | None = None
    is_new: bool = False
    session_deadline_ms: int | None = None

    def metadata(self, protocol: str | None) -> bytes:
        return dict(self.protocols).get(protocol or "", b"")

    def alive(self, now: Now) -> Member:
        return replace(self, session_deadline_ms=now.steady_ms + self.session_timeout_ms)


@dataclass(frozen=True, kw_only=True)
class JoinRequest:
    """JoinGroup v0 to v9; v0 uses the session timeout for the rebalance too. The reply has the same ticket."""

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
    ticket: Ticket
    member_id: str
    generation: int
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: Mapping[str, bytes] = field(default_factory=dict)


class JoinedMember(NamedTuple):
    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, kw_only=True)
class JoinAnswer:
    """A JoinGroup response; only the leader gets the members.

    With ``skip_assignment`` the leader must not compute a new assignment (v9, KIP-814).
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


class JoinTimer(NamedTuple):
    """When the join phase ends although members are missing.

    ``initial_delay_ms`` is the current wait in the first rebalance of an empty group, None in every other;
    ``remaining_ms`` how much longer that may wait for further new members (KIP-134).
    """

    deadline_ms: int
    initial_delay_ms: int | None = None
    remaining_ms: int = 0


@dataclass(frozen=True, kw_only=True)
class Group:
    """A classic group.

    ``previous_state`` distinguishes the first rebalance of an empty group from later ones; ``state_since_ms`` is -1 if
    unknown. ``pending`` are member ids that were handed out but not used yet (KIP-394), with their expiry times;
    ``pending_sync`` those of this generation that have not synced, and are removed at ``sync_deadline_ms``. ``topics``
    are those subscribed; None if unknown.
    """

    group_id: str
    state: GroupState = GroupState.EMPTY
    previous_state: GroupState | None = None
    state_since_ms: int = -1
    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    members: Mapping[str, Member] = field(default_factory=dict)
    pending: Mapping[str, int] = field(default_factory=dict)
    pending_sync: frozenset[str] = frozenset()
    member_added: bool = False
    join_timer: JoinTimer | None = None
    sync_deadline_ms: int | None = None
    topics: frozenset[str] | None = None

    def moved(self, target: GroupState, now: Now) -> Group:
        if self.state not in PREDECESSORS[target]:
            raise AssertionError(f"{self.state.value} -> {target.value} is not in the table of transitions")
        return replace(self, state=target, previous_state=self.state, state_since_ms=now.day_ms)

    def with_member(self, member: Member) -> Group:
        """The group with a member added or replaced; it becomes the leader if there is none."""
        members = {**self.members, member.member_id: member}
        pending = {key: value for key, value in self.pending.items() if key != member.member_id}
        return replace(self, members=members, pending=pending, leader=self.leader or member.member_id)

    def without(self, member_id: str) -> Group:
        """The group without a member or a pending one; if it was the leader, another member becomes leader."""
        members = {key: value for key, value in self.members.items() if key != member_id}
        pending = {key: value for key, value in self.pending.items() if key != member_id}
        leader = next(iter(members), None) if self.leader == member_id else self.leader
        return replace(
            self, members=members, pending=pending, leader=leader, pending_sync=self.pending_sync - {member_id}
        )

    @property
    def all_joined(self) -> bool:
        return not self.pending and all(member.join_ticket is not None for member in self.members.values())

    @property
    def awaiting_join(self) -> int:
        return sum(member.join_ticket is not None for member in self.members.values())

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    @property
    def is_consumer_group(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL

    def static_member(self, instance_id: str) -> Member | None:
        return next((member for member in self.members.values() if member.instance_id == instance_id), None)

    def accepts(self, member_id: str, size_max: int) -> bool:
        """False if the group is full (KIP-389)."""
        if self.state is GroupState.EMPTY:
            return True
        known = self.members.get(member_id)
        if self.state is GroupState.PREPARING_REBALANCE:
            waits = known is not None and known.join_ticket is not None
            return waits or self.awaiting_join < size_max
        return known is not None or len(self.members) < size_max

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """True if every member supports one of the protocols; an empty group accepts any."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and bool(protocols)
        names = [{name for name, _ in member.protocols} for member in self.members.values()]
        return protocol_type == self.protocol_type and any(
            all(name in known for known in names) for name, _ in protocols
        )

    def select_protocol(self) -> str:
        """The protocol preferred by most members among those that all of them support."""
        names = [{name for name, _ in member.protocols} for member in self.members.values()]
        candidates = frozenset.intersection(*map(frozenset, names))
        wishes = ((name for name, _ in member.protocols if name in candidates) for member in self.members.values())
        votes = Counter(map(next, wishes))
        return votes.most_common(1)[0][0]

    def check_member(self, member_id: str, instance_id: str | None, generation: int | None = None) -> Code:
        """Whether it is a member, of the current generation if given; a newer holder of its instance id fences it."""
        if instance_id is not None:
            holder = self.static_member(instance_id)
            if holder is None:
                return Code.UNKNOWN_MEMBER_ID
            if holder.member_id != member_id:
                return Code.FENCED_INSTANCE_ID
        if member_id not in self.members:
            return Code.UNKNOWN_MEMBER_ID
        return Code.NONE if generation in {None, self.generation} else Code.ILLEGAL_GENERATION

    def check_commit(self, request: Any, *, transactional: bool) -> Code:
        """Whether a member may commit offsets (``ClassicGroup.validateOffsetCommit``)."""
        generation, member_id = request.generation_id_or_member_epoch, request.member_id
        if generation < 0 and self.state is GroupState.EMPTY:
            # Offsets from a client that assigns its partitions itself.
            return Code.NONE
        if generation >= 0 or member_id or request.group_instance_id is not None:
            code = self.check_member(member_id, request.group_instance_id, generation)
            if code is not Code.NONE:
                return code
        elif not transactional:
            return Code.UNKNOWN_MEMBER_ID
        if not transactional and self.state is GroupState.COMPLETING_REBALANCE:
            return Code.REBALANCE_IN_PROGRESS
        return Code.NONE

    def subscribes_to(self, topic: str) -> bool:
        """True if the topic's offsets are in use: a member consumes it, or that is unknown."""
        return self.is_consumer_group if self.topics is None else topic in self.topics

    def subscribed_topics(self) -> frozenset[str] | None:
        if not self.is_consumer_group:
            return None
        if not self.members:
            return frozenset()
        if self.protocol is None:
            return None
        kind, peer = ConsumerProtocolSubscription, "a member's subscription"
        metadata = [member.metadata(self.protocol) for member in self.members.values()]
        try:
            # As in Kafka read as version 0, the prefix of all others.
            found = [decode(kind, each, version=0, peer=peer, prefix_only=True) for each in metadata]
        except RemoteProtocolError:
            # Kafka too treats metadata that is not a consumer subscription as unknown.
            return None
        return frozenset(topic for each in found for topic in each.topics)

    def next_deadline_ms(self) -> int | None:
        """When `machine.expire` is next needed, or None."""
        deadlines = [self.sync_deadline_ms, *(member.session_deadline_ms for member in self.members.values())]
        deadlines += [*self.pending.values(), *([self.join_timer.deadline_ms] if self.join_timer else [])]
        return min((deadline_ms for deadline_ms in deadlines if deadline_ms is not None), default=None)
