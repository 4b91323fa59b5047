"""Store of groups: their state, and their offsets, in the partitions of ``__consumer_offsets``.

The records are OffsetCommitKey and -Value, GroupMetadataKey and -Value; layouts and written versions are those of
Apache Kafka 4.4.0: OffsetCommitKey v1, OffsetCommitValue v4, GroupMetadataKey v2, GroupMetadataValue v3. A tombstone is
a key without a value.

An append takes effect when it returns, in the log and in memory, and is durable after `GroupStore.durable`: wait for
that before answering a client. All offsets enter through `OffsetTable.replay`, for appended records and for the log
read at the start. It follows ``OffsetMetadataManager`` of Apache Kafka: a transaction's offset is pending until the end
marker; a commit applies it unless a later offset was committed in the log in the meantime.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import UUID

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import RemoteProtocolError
from spark_2pc_sink.ids import NO_PRODUCER_ID
from spark_2pc_sink.reference import internal_topics as schemas
from spark_2pc_sink.reference.config.properties import BrokerProperties
from spark_2pc_sink.reference.coordinator.plans import append_error
from spark_2pc_sink.reference.coordinator.states import Pair, partition_for
from spark_2pc_sink.reference.groups import machine
from spark_2pc_sink.reference.groups.members import Group, GroupState, Member, Now
from spark_2pc_sink.reference.internal_topics import GROUP_OFFSETS
from spark_2pc_sink.reference.log.partition_log import PartitionLog
from spark_2pc_sink.reference.log.producer_state import VerificationGuard
from spark_2pc_sink.reference.metadata.catalog import Catalog
from spark_2pc_sink.wire.batch_format import Record, end_marker

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
_GROUP: Final = ("generation", "protocol", "leader", "state_since_ms")
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
        return schemas.encode(schemas.OffsetCommitKey(group=self.group_id, topic=self.topic, partition=self.partition))


@dataclass(frozen=True)
class GroupKey:
    group_id: str

    def encode(self) -> bytes:
        return schemas.encode(schemas.GroupMetadataKey(group=self.group_id))


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


def encode_value(value: OffsetValue | Group) -> bytes:
    """A group has its generation, and the members' names, timeouts, assignments and metadata for the protocol."""
    if isinstance(value, OffsetValue):
        return schemas.encode(schemas.OffsetCommitValue(**_theirs(value, _OFFSET)), _OFFSET_VERSION)
    kind = schemas.GroupMetadataValue.MemberMetadata
    members = [
        kind(subscription=each.metadata(value.protocol), assignment=each.assignment, **_theirs(each, _MEMBER))
        for each in value.members.values()
    ]
    fields = {"protocol_type": value.protocol_type or "", "members": members}
    return schemas.encode(schemas.GroupMetadataValue(**fields, **_theirs(value, _GROUP)), _GROUP_VERSION)


def decode_offset(data: bytes) -> OffsetValue:
    return OffsetValue(**_ours(schemas.decode_value(schemas.OffsetCommitValue, data, peer=_PEER), _OFFSET))


def decode_group(group_id: str, data: bytes) -> Group:
    """A group as in its record; the members have no metadata except that for the generation's protocol."""
    found = schemas.decode_value(schemas.GroupMetadataValue, data, peer=_PEER)
    members = {
        each.member_id: Member(
            protocols=((found.protocol or "", each.subscription),), assignment=each.assignment, **_ours(each, _MEMBER)
        )
        for each in found.members
    }
    state = GroupState.STABLE if members else GroupState.EMPTY
    protocol_type = found.protocol_type or None
    return Group(group_id=group_id, state=state, protocol_type=protocol_type, members=members, **_ours(found, _GROUP))


class CommittedOffset(NamedTuple):
    value: OffsetValue
    record_offset: int


class OffsetTable:
    def __init__(self) -> None:
        self._committed: dict[str, dict[OffsetKey, CommittedOffset]] = {}
        self._pending: dict[int, dict[OffsetKey, CommittedOffset]] = {}

    def replay(self, record_offset: int, producer_id: int, key: OffsetKey, value: OffsetValue | None) -> None:
        """Apply a log record; a tombstone (None) also removes pending offsets."""
        if value is None:
            for pending in self._pending.values():
                pending.pop(key, None)
            offsets = self._committed.get(key.group_id, {})
            offsets.pop(key, None)
            if not offsets:
                self._committed.pop(key.group_id, None)
        elif producer_id == NO_PRODUCER_ID:
            self._committed.setdefault(key.group_id, {})[key] = CommittedOffset(value, record_offset)
        else:
            self._pending.setdefault(producer_id, {})[key] = CommittedOffset(value, record_offset)

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        for key, ended in self._pending.pop(producer_id, {}).items():
            offsets = self._committed.get(key.group_id, {})
            if commit and (key not in offsets or ended.record_offset > offsets[key].record_offset):
                self._committed.setdefault(key.group_id, {})[key] = ended

    def get(self, key: OffsetKey) -> OffsetValue | None:
        found = self._committed.get(key.group_id, {}).get(key)
        return None if found is None else found.value

    def of_group(self, group_id: str) -> Mapping[OffsetKey, OffsetValue]:
        return {key: committed.value for key, committed in self._committed.get(group_id, {}).items()}

    def is_pending(self, key: OffsetKey) -> bool:
        return any(key in waiting for waiting in self._pending.values())

    def keys_of(self, group_id: str) -> list[OffsetKey]:
        pending = (key for waiting in self._pending.values() for key in waiting if key.group_id == group_id)
        return list(dict.fromkeys((*self._committed.get(group_id, {}), *pending)))


#: A record of ``__consumer_offsets``; None for a tombstone.
GroupRecord: TypeAlias = tuple[GroupKey | OffsetKey, Group | OffsetValue | None]
#: Tombstones per batch, far below message.max.bytes.
TOMBSTONES_MAX: Final = 1_000


class GroupStore:
    def __init__(self, catalog: Catalog, *, partition_count: int, now_ms: Callable[[], int]) -> None:
        self.groups: dict[str, Group] = {}
        self._catalog = catalog
        self._now_ms = now_ms
        self._tables = tuple(OffsetTable() for _ in range(partition_count))

    def partition_of(self, group_id: str) -> int:
        return partition_for(group_id, len(self._tables))

    def offsets(self, group_id: str) -> OffsetTable:
        return self._tables[self.partition_of(group_id)]

    def log(self, group_id: str) -> PartitionLog:
        return self._log(self.partition_of(group_id))

    def _log(self, index: int) -> PartitionLog:
        log = self._catalog.log(GROUP_OFFSETS, index)
        assert log is not None, "its topic cannot be deleted"
        return log

    def append(
        self,
        group_id: str,
        records: Sequence[GroupRecord],
        *,
        writer: Pair | None = None,
        guard: VerificationGuard | None = None,
    ) -> Code:
        """Append records of one group as one batch, and apply them; after another code than NONE nothing changed."""
        pairs = [(key.encode(), None if value is None else encode_value(value)) for key, value in records]
        appended = self.log(group_id).append_records(pairs, now_ms=self._now_ms(), producer=writer, guard=guard)
        if appended.code is not Code.NONE:
            return Code(append_error(appended.code))
        producer_id = NO_PRODUCER_ID if writer is None else writer.producer_id
        for position, (key, value) in enumerate(records, appended.base_offset):
            if isinstance(key, OffsetKey):
                self._take_offset(position, producer_id, key, value if isinstance(value, OffsetValue) else None)
            elif value is None:
                self.groups.pop(key.group_id, None)
        return Code.NONE

    def append_tombstones(self, group_id: str, keys: Iterable[OffsetKey | GroupKey]) -> Code:
        """Append a group's tombstones, in as many batches as needed; stops at the first failure."""
        records: list[GroupRecord] = [(key, None) for key in keys]
        for first in range(0, len(records), TOMBSTONES_MAX):
            code = self.append(group_id, records[first : first + TOMBSTONES_MAX])
            if code is not Code.NONE:
                return code
        return Code.NONE

    async def durable(self, group_id: str) -> Code:
        """Wait until everything appended for the group is durable: NONE, or the clients' error code."""
        failed = await self.log(group_id).flush()
        return Code.NONE if failed is None else Code(append_error(Code.KAFKA_STORAGE_ERROR))

    def on_marker(self, partition: int, producer_id: int, commit: bool) -> None:  # noqa: FBT001 -- GroupMarker
        """Handle an end marker in ``__consumer_offsets``: pending offsets take effect or are dropped."""
        self._tables[partition].end_transaction(producer_id, commit=commit)

    def _take_offset(self, position: int, producer_id: int, key: OffsetKey, value: OffsetValue | None) -> None:
        self.offsets(key.group_id).replay(position, producer_id, key, value)
        if value is not None and key.group_id not in self.groups:
            # A client that assigns partitions itself and only commits: Kafka's "simple" group.
            self.groups[key.group_id] = Group(group_id=key.group_id, state_since_ms=self._now_ms())

    def load(self, properties: BrokerProperties, now: Now) -> None:
        stored: dict[str, Group] = {}
        for index in range(len(self._tables)):
            log = self._log(index)
            for record in log.records():
                try:
                    self._load_record(index, record, stored)
                except RemoteProtocolError as error:
                    raise log.unreadable(record.offset, error.detail) from error
        for group_id, group in stored.items():
            self.groups[group_id] = machine.loaded(group, properties, now).group

    def _load_record(self, index: int, record: Record, stored: dict[str, Group]) -> None:
        if record.key is None:
            return
        if record.batch.control:
            if (marker := end_marker(record)) is not None:
                self.on_marker(index, record.batch.producer_id, marker.commit)
        elif isinstance(key := decode_key(record.key), OffsetKey):
            producer_id = record.batch.producer_id if record.batch.transactional else NO_PRODUCER_ID
            value = None if record.value is None else decode_offset(record.value)
            self._take_offset(record.offset, producer_id, key, value)
        elif isinstance(key, GroupKey):
            self.groups.pop(key.group_id, None)
            stored.pop(key.group_id, None)
            if record.value is not None:
                stored[key.group_id] = decode_group(key.group_id, record.value)
