"""Requests, answers and steps of the group machine.

A `Step` holds the group as it is from now on, answers, and what must be stored. The order is the contract::

    step = machine.join(group, request, ...)    # or sync, leave, expire
    ...                                         # the group of the step is in force, before anything else is stepped
    ...                                         # send step.replies; they depend on nothing
    for store in step.stores:                   # append store.value, wait until it is durable, then
        step = machine.stored(group, store, code, now_ms)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from spark_2pc_sink.codes import Code
from spark_2pc_sink.reference.groups.members import Group, Protocols, Ticket
from spark_2pc_sink.reference.groups.records import GroupValue


@dataclass(frozen=True, kw_only=True)
class JoinRequest:
    """JoinGroup v0 to v9.

    Args:
        ticket: names the request in the `Reply`.
        member_id: '' where the client has none yet.
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
    """SyncGroup v0 to v5.

    Args:
        assignments: by member id; only the leader's count.
        protocol_type, protocol: what the client takes the group's to be (v5, KIP-559), or None.
    """

    ticket: Ticket
    member_id: str
    generation: int
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class JoinedMember:
    """What the leader learns of a member."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, kw_only=True)
class JoinAnswer:
    """A JoinGroup response.

    Args:
        protocol: None unless the join phase has ended.
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
    """A SyncGroup response."""

    code: Code = Code.NONE
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True)
class Reply:
    """The answer to the request with the ticket."""

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
    """Append the group's record.

    Args:
        then: what depends on it, or None.
    """

    value: GroupValue
    then: AssignmentStored | ReplacementStored | None = None


@dataclass(frozen=True)
class Step:
    """What one request or deadline led to."""

    group: Group
    replies: tuple[Reply, ...] = ()
    stores: tuple[Store, ...] = ()

    def to(self, group: Group) -> Step:
        """The step with another group."""
        return replace(self, group=group)

    def answered(self, ticket: Ticket | None, answer: JoinAnswer | SyncAnswer) -> Step:
        """The step with an answer; without a ticket nobody waits for it."""
        return self if ticket is None else replace(self, replies=(*self.replies, Reply(ticket, answer)))

    def storing(self, store: Store) -> Step:
        """The step with a record to append."""
        return replace(self, stores=(*self.stores, store))
