"""The records of ``__consumer_offsets``: OffsetCommitKey and -Value, GroupMetadataKey and -Value as bytes.

Layouts and written versions are those of Apache Kafka 4.4.0: OffsetCommitKey v1, OffsetCommitValue v4 (v1 if the
client gave a retention time), GroupMetadataKey v2, GroupMetadataValue v3. Values of every older version are read too.
A tombstone is a key without a value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from spark_2pc_sink.reference import internal_topics as schemas
from spark_2pc_sink.reference.groups.members import Member

_PEER: Final = "the log of group offsets"
#: Key types: OffsetCommitKey, which was 0 originally and had the same fields, and GroupMetadataKey.
_OFFSET_KEYS: Final = (0, 1)
_GROUP_KEY: Final = 2
_OFFSET_VERSION: Final = 4
#: The only version of OffsetCommitValue with an expiry time.
_EXPIRING_VERSION: Final = 1
_GROUP_VERSION: Final = 3
#: An unknown epoch or time.
UNKNOWN: Final = -1


@dataclass(frozen=True)
class OffsetKey:
    group_id: str
    topic: str
    partition: int

    def encode(self) -> bytes:
        return schemas.encode_key(
            schemas.OffsetCommitKey(group=self.group_id, topic=self.topic, partition=self.partition)
        )


@dataclass(frozen=True)
class GroupKey:
    group_id: str

    def encode(self) -> bytes:
        return schemas.encode_key(schemas.GroupMetadataKey(group=self.group_id))


def decode_key(data: bytes) -> OffsetKey | GroupKey | None:
    """Decode a key; None for record types that the classic protocol does not use."""
    kind = schemas.prefix_of(data, peer=_PEER)
    if kind in _OFFSET_KEYS:
        key = schemas.decode(schemas.OffsetCommitKey, data, version=0, peer=_PEER)
        return OffsetKey(key.group, key.topic, key.partition)
    if kind == _GROUP_KEY:
        return GroupKey(schemas.decode(schemas.GroupMetadataKey, data, version=0, peer=_PEER).group)
    return None


@dataclass(frozen=True, kw_only=True)
class OffsetValue:
    """A committed offset; ``expire_ms`` is -1 unless the client asked for it (OffsetCommit v2 to v4).

    ``topic_id`` is None unless the client identified the topic by id (OffsetCommit v10).
    """

    offset: int
    leader_epoch: int = UNKNOWN
    metadata: str = ""
    commit_ms: int
    expire_ms: int = UNKNOWN
    topic_id: UUID | None = None

    def encode(self) -> bytes:
        value = schemas.OffsetCommitValue(
            offset=self.offset,
            leader_epoch=self.leader_epoch,
            metadata=self.metadata,
            commit_timestamp=self.commit_ms,
            expire_timestamp=self.expire_ms,
            topic_id=self.topic_id,
        )
        return schemas.encode_value(value, _OFFSET_VERSION if self.expire_ms == UNKNOWN else _EXPIRING_VERSION)

    @classmethod
    def decode(cls, data: bytes) -> OffsetValue:
        found = schemas.decode_value(schemas.OffsetCommitValue, data, peer=_PEER)
        return cls(
            offset=found.offset,
            leader_epoch=found.leader_epoch,
            metadata=found.metadata,
            commit_ms=found.commit_timestamp,
            expire_ms=found.expire_timestamp,
            topic_id=found.topic_id,
        )


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
        return schemas.encode_value(
            schemas.GroupMetadataValue(
                protocol_type=self.protocol_type,
                generation=self.generation,
                protocol=self.protocol,
                leader=self.leader,
                current_state_timestamp=self.state_since_ms,
                members=[
                    schemas.GroupMetadataValue.MemberMetadata(
                        member_id=member.member_id,
                        group_instance_id=member.instance_id,
                        client_id=member.client_id,
                        client_host=member.client_host,
                        rebalance_timeout=member.rebalance_timeout_ms,
                        session_timeout=member.session_timeout_ms,
                        subscription=member.metadata(self.protocol),
                        assignment=member.assignment,
                    )
                    for member in self.members
                ],
            ),
            _GROUP_VERSION,
        )

    @classmethod
    def decode(cls, data: bytes) -> GroupValue:
        found = schemas.decode_value(schemas.GroupMetadataValue, data, peer=_PEER)
        return cls(
            protocol_type=found.protocol_type,
            generation=found.generation,
            protocol=found.protocol,
            leader=found.leader,
            state_since_ms=found.current_state_timestamp,
            members=tuple(_member(each, found.protocol or "") for each in found.members),
        )


def _member(found: Any, protocol: str) -> Member:
    # Version 0 had one timeout for both.
    unknown = found.rebalance_timeout == UNKNOWN
    return Member(
        member_id=found.member_id,
        instance_id=found.group_instance_id,
        client_id=found.client_id,
        client_host=found.client_host,
        rebalance_timeout_ms=found.session_timeout if unknown else found.rebalance_timeout,
        session_timeout_ms=found.session_timeout,
        protocols=((protocol, found.subscription),),
        assignment=found.assignment,
    )
