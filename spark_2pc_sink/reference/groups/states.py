"""States of a classic consumer group and the table of every legal transition between them.

Follows ``ClassicGroupState`` of Apache Kafka. A generation lives from one completed join phase to the next: members
join while the group prepares, the leader assigns while it completes, and the group is stable once every member can
have its part. A group whose last member has left is Empty and keeps its offsets. Kafka's Dead is no state here: a
group that is deleted is gone, and DescribeGroups says Dead of every group that does not exist.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

#: What DescribeGroups answers for a group that does not exist.
DEAD: Final = "Dead"


class GroupState(Enum):
    """The value is Kafka's name, as ListGroups and DescribeGroups show it."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"


@dataclass(frozen=True)
class Transition:
    """One row of the table: a legal change of state, what causes it, and why."""

    source: GroupState
    target: GroupState
    trigger: str
    sentence: str


TRANSITIONS: Final = (
    Transition(
        GroupState.EMPTY,
        GroupState.PREPARING_REBALANCE,
        "JoinGroup of the first member",
        "Kafka, ClassicGroupState.EMPTY: 'join group from a new member => PREPARING_REBALANCE'; it waits "
        "group.initial.rebalance.delay.ms for more members (KIP-134).",
    ),
    Transition(
        GroupState.STABLE,
        GroupState.PREPARING_REBALANCE,
        "JoinGroup, LeaveGroup, a missed session",
        "Kafka, ClassicGroupState.STABLE: 'failure of a member detected via heartbeat; leave group from existing "
        "member; leader join-group received; follower join-group with new metadata => PREPARING_REBALANCE'.",
    ),
    Transition(
        GroupState.COMPLETING_REBALANCE,
        GroupState.PREPARING_REBALANCE,
        "JoinGroup, LeaveGroup, a missed session",
        "Kafka, ClassicGroupState.COMPLETING_REBALANCE: 'join group from new member or existing member with updated "
        "metadata; leave group from existing member; member failure detected => PREPARING_REBALANCE'.",
    ),
    Transition(
        GroupState.PREPARING_REBALANCE,
        GroupState.COMPLETING_REBALANCE,
        "every member has joined, or the rebalance timeout is over",
        "Kafka, ClassicGroupState.PREPARING_REBALANCE: 'some members have joined by the timeout => "
        "COMPLETING_REBALANCE'; the generation counts up.",
    ),
    Transition(
        GroupState.PREPARING_REBALANCE,
        GroupState.EMPTY,
        "every member has left",
        "Kafka, ClassicGroupState.PREPARING_REBALANCE: 'all members have left the group => EMPTY'.",
    ),
    Transition(
        GroupState.COMPLETING_REBALANCE,
        GroupState.STABLE,
        "SyncGroup of the leader, once its record is durable",
        "Kafka, ClassicGroupState.COMPLETING_REBALANCE: 'sync group with state assignment received from leader => "
        "STABLE'.",
    ),
)

#: From which states each state may be entered.
PREDECESSORS: Final = {
    target: frozenset(row.source for row in TRANSITIONS if row.target is target) for target in GroupState
}
