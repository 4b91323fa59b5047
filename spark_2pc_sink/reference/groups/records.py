"""The records of ``__consumer_offsets``: OffsetCommitKey and -Value, GroupMetadataKey and -Value as bytes.

Layouts and written versions are those of Apache Kafka 4.4.0: OffsetCommitKey v1, OffsetCommitValue v4 (v1 where the
client gave a retention time), GroupMetadataKey v2, GroupMetadataValue v3. Values of every older version are read too.
A tombstone is a key without a value.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from spark_2pc_sink.errors import RemoteProtocolError
from spark_2pc_sink.reference.coordinator.fields import Reader, encode_length, encode_string, encode_tags, encode_varint

_PEER: Final = "the log of group offsets"
_OFFSET_KEY_VERSIONS: Final = (0, 1)
_OFFSET_KEY_VERSION: Final = 1
_GROUP_KEY_VERSION: Final = 2
_GROUP_VALUE_VERSION: Final = 3
#: First version of OffsetCommitValue and of GroupMetadataValue with tagged fields.
_FLEXIBLE_VERSION: Final = 4
#: First version of OffsetCommitValue with a leader epoch.
_LEADER_EPOCH_VERSION: Final = 3
#: The only version of OffsetCommitValue with a time of expiry.
_EXPIRING_VERSION: Final = 1
_TAG_TOPIC_ID: Final = 0
_UUID_BYTES: Final = 16
#: Stands for an epoch or a time that is not known.
UNKNOWN: Final = -1


@dataclass(frozen=True)
class OffsetKey:
    """Names a committed offset."""

    group_id: str
    topic: str
    partition: int

    def encode(self) -> bytes:
        """OffsetCommitKey v1."""
        strings = (encode_string(text, compact=False) for text in (self.group_id, self.topic))
        return struct.pack(">h", _OFFSET_KEY_VERSION) + b"".join(strings) + struct.pack(">i", self.partition)


@dataclass(frozen=True)
class GroupKey:
    """Names a group."""

    group_id: str

    def encode(self) -> bytes:
        """GroupMetadataKey v2."""
        return struct.pack(">h", _GROUP_KEY_VERSION) + encode_string(self.group_id, compact=False)


def decode_key(data: bytes) -> OffsetKey | GroupKey | None:
    """The key of a record; None for kinds of record that the classic protocol does not have.

    Raises:
        RemoteProtocolError: the bytes do not fit the schema.
    """
    reader = Reader(data, peer=_PEER)
    version = reader.integer(2)
    if version in _OFFSET_KEY_VERSIONS:
        key = OffsetKey(reader.string(compact=False), reader.string(compact=False), reader.integer(4))
        reader.finish()
        return key
    if version == _GROUP_KEY_VERSION:
        group = GroupKey(reader.string(compact=False))
        reader.finish()
        return group
    return None


@dataclass(frozen=True, kw_only=True)
class OffsetValue:
    """A committed offset.

    Args:
        commit_ms: when it was committed.
        expire_ms: when the client wants it forgotten (OffsetCommit v2 to v4), or -1.
        topic_id: of the topic, where the client named it so (OffsetCommit v10), or None.
    """

    offset: int
    leader_epoch: int = UNKNOWN
    metadata: str = ""
    commit_ms: int
    expire_ms: int = UNKNOWN
    topic_id: UUID | None = None

    def encode(self) -> bytes:
        """OffsetCommitValue, in the version that Kafka would choose."""
        if self.expire_ms != UNKNOWN:
            metadata = encode_string(self.metadata, compact=False)
            return (
                struct.pack(">hq", _EXPIRING_VERSION, self.offset)
                + metadata
                + struct.pack(">qq", self.commit_ms, self.expire_ms)
            )
        tags = [] if self.topic_id is None else [(_TAG_TOPIC_ID, self.topic_id.bytes)]
        return b"".join(
            (
                struct.pack(">hqi", _FLEXIBLE_VERSION, self.offset, self.leader_epoch),
                encode_string(self.metadata, compact=True),
                struct.pack(">q", self.commit_ms),
                encode_tags(tags),
            )
        )

    @classmethod
    def decode(cls, data: bytes) -> OffsetValue:
        """The value in ``data``; unknown tags of a later Kafka are skipped.

        Raises:
            RemoteProtocolError: an unknown version, or bytes that do not fit the schema.
        """
        reader = Reader(data, peer=_PEER)
        version = _known_version(reader, "OffsetCommitValue")
        compact = version >= _FLEXIBLE_VERSION
        offset = reader.integer(8)
        leader_epoch = reader.integer(4) if version >= _LEADER_EPOCH_VERSION else UNKNOWN
        metadata, commit_ms = reader.string(compact=compact), reader.integer(8)
        expire_ms = reader.integer(8) if version == _EXPIRING_VERSION else UNKNOWN
        topic_id = reader.tags().get(_TAG_TOPIC_ID) if compact else None
        reader.finish()
        return cls(
            offset=offset,
            leader_epoch=leader_epoch,
            metadata=metadata,
            commit_ms=commit_ms,
            expire_ms=expire_ms,
            topic_id=UUID(bytes=topic_id) if topic_id is not None and len(topic_id) == _UUID_BYTES else None,
        )


@dataclass(frozen=True, kw_only=True)
class MemberValue:
    """A member of a stored generation."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, kw_only=True)
class GroupValue:
    """A generation of a group.

    Args:
        protocol_type: '' where there was none.
        state_since_ms: time of the last change of state, or -1.
    """

    protocol_type: str = ""
    generation: int = 0
    protocol: str | None = None
    leader: str | None = None
    state_since_ms: int = UNKNOWN
    members: tuple[MemberValue, ...] = ()

    def encode(self) -> bytes:
        """GroupMetadataValue v3."""
        parts = [
            struct.pack(">h", _GROUP_VALUE_VERSION),
            encode_string(self.protocol_type, compact=False),
            struct.pack(">i", self.generation),
            _nullable(self.protocol),
            _nullable(self.leader),
            struct.pack(">q", self.state_since_ms),
            encode_length(len(self.members), compact=False),
        ]
        for member in self.members:
            parts += [
                encode_string(member.member_id, compact=False),
                _nullable(member.instance_id),
                encode_string(member.client_id, compact=False),
                encode_string(member.client_host, compact=False),
                struct.pack(">ii", member.rebalance_timeout_ms, member.session_timeout_ms),
                encode_length(len(member.subscription), compact=False) + member.subscription,
                encode_length(len(member.assignment), compact=False) + member.assignment,
            ]
        return b"".join(parts)

    @classmethod
    def decode(cls, data: bytes) -> GroupValue:
        """The value in ``data``; unknown tags of a later Kafka are skipped.

        Raises:
            RemoteProtocolError: an unknown version, or bytes that do not fit the schema.
        """
        reader = Reader(data, peer=_PEER)
        version = _known_version(reader, "GroupMetadataValue")
        compact = version >= _FLEXIBLE_VERSION
        protocol_type, generation = reader.string(compact=compact), reader.integer(4)
        protocol, leader = _take_nullable(reader, compact=compact), _take_nullable(reader, compact=compact)
        state_since_ms = reader.integer(8) if version > 1 else UNKNOWN
        count = reader.length(compact=compact) or 0
        members = tuple(_take_member(reader, version) for _ in range(count))
        if compact:
            reader.tags()
        reader.finish()
        return cls(
            protocol_type=protocol_type,
            generation=generation,
            protocol=protocol,
            leader=leader,
            state_since_ms=state_since_ms,
            members=members,
        )


def _take_member(reader: Reader, version: int) -> MemberValue:
    compact = version >= _FLEXIBLE_VERSION
    member_id = reader.string(compact=compact)
    instance_id = _take_nullable(reader, compact=compact) if version >= _GROUP_VALUE_VERSION else None
    client_id, client_host = reader.string(compact=compact), reader.string(compact=compact)
    rebalance_timeout_ms = reader.integer(4) if version > 0 else UNKNOWN
    session_timeout_ms = reader.integer(4)
    subscription, assignment = _take_bytes(reader, compact=compact), _take_bytes(reader, compact=compact)
    if compact:
        reader.tags()
    return MemberValue(
        member_id=member_id,
        instance_id=instance_id,
        client_id=client_id,
        client_host=client_host,
        rebalance_timeout_ms=session_timeout_ms if rebalance_timeout_ms == UNKNOWN else rebalance_timeout_ms,
        session_timeout_ms=session_timeout_ms,
        subscription=subscription,
        assignment=assignment,
    )


def _known_version(reader: Reader, what: str) -> int:
    version = reader.integer(2)
    if not 0 <= version <= _FLEXIBLE_VERSION:
        raise RemoteProtocolError(peer=_PEER, detail=f"{what} v{version}")
    return version


def _nullable(text: str | None) -> bytes:
    return struct.pack(">h", -1) if text is None else encode_string(text, compact=False)


def _take_nullable(reader: Reader, *, compact: bool) -> str | None:
    length = reader.varint() - 1 if compact else reader.integer(2)
    if length < 0:
        return None
    raw = reader.take(length)
    # Through the string reader, which refuses what is not UTF-8.
    return Reader(encode_varint(length + 1) + raw, peer=_PEER).string(compact=True)


def _take_bytes(reader: Reader, *, compact: bool) -> bytes:
    return reader.take(reader.length(compact=compact) or 0)
