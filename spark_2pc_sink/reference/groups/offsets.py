"""Committed offsets of one partition of ``__consumer_offsets``, and those that wait for the end of a transaction.

Everything gets in by `OffsetTable.replay`, when a record is appended and when the log is read at the start: one
interpretation for both. It follows ``OffsetMetadataManager`` of Apache Kafka: an offset of a transaction is pending
until the end marker; a commit puts it in place unless an offset was committed behind it in the log meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from spark_2pc_sink.ids import NO_PRODUCER_ID
from spark_2pc_sink.reference.groups.members import Group
from spark_2pc_sink.reference.groups.records import UNKNOWN, OffsetKey, OffsetValue
from spark_2pc_sink.reference.groups.states import GroupState


@dataclass(frozen=True)
class CommittedOffset:
    """An offset and where in the log it stands."""

    value: OffsetValue
    record_offset: int


class OffsetTable:
    """The offsets of the groups that one partition keeps."""

    def __init__(self) -> None:
        self._committed: dict[str, dict[OffsetKey, CommittedOffset]] = {}
        self._pending: dict[int, dict[OffsetKey, CommittedOffset]] = {}

    def replay(self, record_offset: int, producer_id: int, key: OffsetKey, value: OffsetValue | None) -> None:
        """Take a record of the log in.

        Args:
            record_offset: its place in the log.
            producer_id: -1 unless it is part of a transaction.
            key: of the offset.
            value: None for a tombstone, which takes pending offsets away too.
        """
        if value is None:
            self._forget(key)
        elif producer_id == NO_PRODUCER_ID:
            self._committed.setdefault(key.group_id, {})[key] = CommittedOffset(value, record_offset)
        else:
            self._pending.setdefault(producer_id, {})[key] = CommittedOffset(value, record_offset)

    def _forget(self, key: OffsetKey) -> None:
        offsets = self._committed.get(key.group_id, {})
        offsets.pop(key, None)
        if not offsets:
            self._committed.pop(key.group_id, None)
        for producer_id in [owner for owner, waiting in self._pending.items() if key in waiting]:
            del self._pending[producer_id][key]
            if not self._pending[producer_id]:
                del self._pending[producer_id]

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        """The end marker of a producer's transaction is in the log."""
        for key, ended in self._pending.pop(producer_id, {}).items():
            offsets = self._committed.get(key.group_id, {})
            if commit and (key not in offsets or ended.record_offset > offsets[key].record_offset):
                self._committed.setdefault(key.group_id, {})[key] = ended

    def get(self, key: OffsetKey) -> OffsetValue | None:
        """The committed offset, or None."""
        found = self._committed.get(key.group_id, {}).get(key)
        return None if found is None else found.value

    def of_group(self, group_id: str) -> Mapping[OffsetKey, OffsetValue]:
        """Every committed offset of the group."""
        return {key: committed.value for key, committed in self._committed.get(group_id, {}).items()}

    def is_pending(self, key: OffsetKey) -> bool:
        """True while some open transaction holds an offset for the key."""
        return any(key in waiting for waiting in self._pending.values())

    def has_open_transactions(self, group_id: str) -> bool:
        """True while some open transaction holds an offset of the group."""
        return any(key.group_id == group_id for key in self._pending_keys())

    def keys_of(self, group_id: str) -> list[OffsetKey]:
        """Every key of the group that a tombstone is needed for, when the group is deleted."""
        pending = (key for key in self._pending_keys() if key.group_id == group_id)
        return list(dict.fromkeys((*self._committed.get(group_id, {}), *pending)))

    def keys_of_topic(self, topic: str) -> list[OffsetKey]:
        """Every key of a topic, of whatever group, when the topic is deleted."""
        committed = (key for offsets in self._committed.values() for key in offsets)
        return list(dict.fromkeys(key for key in (*committed, *self._pending_keys()) if key.topic == topic))

    def expired(self, group: Group, now_ms: int, retention_ms: int) -> list[OffsetKey]:
        """Offsets of the group that nobody needs any more, see `_unused_since_ms`."""
        return [
            key
            for key, committed in self._committed.get(group.group_id, {}).items()
            if _is_expired(group, key, committed.value, now_ms, retention_ms) and not self.is_pending(key)
        ]

    def _pending_keys(self) -> Iterator[OffsetKey]:
        return (key for waiting in self._pending.values() for key in waiting)


def _is_expired(group: Group, key: OffsetKey, value: OffsetValue, now_ms: int, retention_ms: int) -> bool:
    since_ms = _unused_since_ms(group, value)
    if since_ms is None or group.subscribes_to(key.topic):
        return False
    if value.expire_ms != UNKNOWN:
        return now_ms >= value.expire_ms
    return now_ms - since_ms >= retention_ms


def _unused_since_ms(group: Group, value: OffsetValue) -> int | None:
    """From when retention counts (KIP-211): the group is empty, or a stable one subscribes to other topics now."""
    if group.protocol_type is None:
        return value.commit_ms
    if group.state is GroupState.EMPTY:
        return value.commit_ms if group.state_since_ms == UNKNOWN else group.state_since_ms
    if group.is_consumer_group and group.topics is not None and group.state is GroupState.STABLE:
        return value.commit_ms
    return None
