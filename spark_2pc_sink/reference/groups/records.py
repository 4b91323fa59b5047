"""The records of ``__consumer_offsets``: OffsetCommitKey and -Value, GroupMetadataKey and -Value as bytes.

Layouts and written versions are those of Apache Kafka 4.4.0: OffsetCommitKey v1, OffsetCommitValue v4,
GroupMetadataKey v2, GroupMetadataValue v3. A tombstone is a key without a value.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from spark_2pc_sink.reference import internal_topics as schemas
from spark_2pc_sink.reference.groups.members import Member

_PEER: Final = "the log of group offsets"
#: The types of keys that the classic protocol uses.
_OFFSET_KEY: Final = 1
_GROUP_KEY: Final = 2
_OFFSET_VERSION: Final = 4
_GROUP_VERSION: Final = 3
#: An unknown epoch or time.
UNKNOWN: Final = -1
#: Fields of values and members whose names differ in Kafka's schemas.
_THEIRS: Final = {
    "commit_ms": "commit_timestamp",
    "state_since_ms": "current_state_timestamp",
    "instance_id": "group_instance_id",
    "rebalance_timeout_ms": "rebalance_timeout",
    "session_timeout_ms": "session_timeout",
}
_OFFSET: Final = ("offset", "leader_epoch", "metadata", "commit_ms", "topic_id")
_GROUP: Final = ("protocol_type", "generation", "protocol", "leader", "state_since_ms")
_MEMBER: Final = ("member_id", "instance_id", "client_id", "client_host", "rebalance_timeout_ms", "session_timeout_ms")


def _theirs(value: Any, names: Iterable[str]) -> dict[str, Any]:
    return {_THEIRS.get(name, name): getattr(value, name) for name in names}


def _ours(found: Any, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(found, _THEIRS.get(name, name)) for name in names}


@dataclass(frozen=True)
class OffsetKey:
    group_id: str
    topic: str
    partition: int

    def encode(self) -> bytes:
        key = schemas.OffsetCommitKey(group=self.group_id, topic=self.topic, partition=self.partition)
        return schemas.encode_key(key)


@dataclass(frozen=True)
class GroupKey:
    group_id: str

    def encode(self) -> bytes:
        return schemas.encode_key(schemas.GroupMetadataKey(group=self.group_id))


def decode_key(data: bytes) -> OffsetKey | GroupKey | None:
    """Decode a key; None for record types that the classic protocol does not use."""
    kind = schemas.prefix_of(data, peer=_PEER)
    if kind == _OFFSET_KEY:
        key = schemas.decode(schemas.OffsetCommitKey, data, version=0, peer=_PEER)
        return OffsetKey(key.group, key.topic, key.partition)
    if kind == _GROUP_KEY:
        return GroupKey(schemas.decode(schemas.GroupMetadataKey, data, version=0, peer=_PEER).group)
    return None


@dataclass(frozen=True, kw_only=True)
class OffsetValue:
    """A committed offset; ``topic_id`` is None unless the client identified the topic by id (OffsetCommit v10)."""

    offset: int
    leader_epoch: int = UNKNOWN
    metadata: str = ""
    commit_ms: int
    topic_id: UUID | None = None

    def encode(self) -> bytes:
        value = schemas.OffsetCommitValue(**_theirs(self, _OFFSET))
        return schemas.encode_value(value, _OFFSET_VERSION)

    @classmethod
    def decode(cls, data: bytes) -> OffsetValue:
        return cls(**_ours(schemas.decode_value(schemas.OffsetCommitValue, data, peer=_PEER), _OFFSET))


@dataclass(frozen=True, kw_only=True)
class GroupValue:
    """A generation of a group; the protocol type is '' if there was none.

    It stores the members' names, timeouts, assignments and metadata for ``protocol``; members read back have no other
    data.
    """

    protocol_type: str = ""
    generation: int = 0
    protocol: str | None = None
    leader: str | None = None
    state_since_ms: int = UNKNOWN
    members: tuple[Member, ...] = ()

    def encode(self) -> bytes:
        kind = schemas.GroupMetadataValue.MemberMetadata
        members = [
            kind(subscription=each.metadata(self.protocol), assignment=each.assignment, **_theirs(each, _MEMBER))
            for each in self.members
        ]
        value = schemas.GroupMetadataValue(members=members, **_theirs(self, _GROUP))
        return schemas.encode_value(value, _GROUP_VERSION)

    @classmethod
    def decode(cls, data: bytes) -> GroupValue:
        found = schemas.decode_value(schemas.GroupMetadataValue, data, peer=_PEER)
        members = tuple(
            Member(
                protocols=((found.protocol or "", each.subscription),),
                assignment=each.assignment,
                **_ours(each, _MEMBER),
            )
            for each in found.members
        )
        return cls(members=members, **_ours(found, _GROUP))
