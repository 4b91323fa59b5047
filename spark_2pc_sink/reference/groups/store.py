"""Store of groups: their state, and the partitions of ``__consumer_offsets`` that hold it.

An append is in force when it returns, in the log as in memory, and durable after `GroupStore.durable`: whoever tells a
client of it waits for that first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import RemoteProtocolError
from spark_2pc_sink.ids import NO_PRODUCER_ID
from spark_2pc_sink.reference.config.properties import BrokerProperties
from spark_2pc_sink.reference.coordinator.coordinator_state import partition_for
from spark_2pc_sink.reference.coordinator.leader_answers import append_error
from spark_2pc_sink.reference.groups import machine
from spark_2pc_sink.reference.groups.members import Group
from spark_2pc_sink.reference.groups.offsets import OffsetTable
from spark_2pc_sink.reference.groups.records import GroupKey, GroupValue, OffsetKey, OffsetValue, decode_key
from spark_2pc_sink.reference.internal_topics import GROUP_OFFSETS
from spark_2pc_sink.reference.log.partition_log import PartitionLog
from spark_2pc_sink.reference.log.producer_state import Writer
from spark_2pc_sink.reference.log.verification_guards import Guard
from spark_2pc_sink.reference.storage.errors import LogFailedError
from spark_2pc_sink.reference.transactions.marker_writer import Logs
from spark_2pc_sink.wire.batch_format import Record, end_marker

#: A record of ``__consumer_offsets``; None for a tombstone.
GroupRecord: TypeAlias = tuple[GroupKey | OffsetKey, GroupValue | OffsetValue | None]
#: Tombstones that go into one batch, so that it stays far below message.max.bytes.
TOMBSTONES_MAX: Final = 1_000


class GroupStore:
    """All groups with their offsets.

    Args:
        logs: where the partitions are found.
        partition_count: of ``__consumer_offsets``.
        now_ms: milliseconds since 1970.

    Attributes:
        groups: by id; `GroupService` puts changed ones in.
    """

    def __init__(self, logs: Logs, *, partition_count: int, now_ms: Callable[[], int]) -> None:
        self.groups: dict[str, Group] = {}
        self._logs = logs
        self._now_ms = now_ms
        self._tables = tuple(OffsetTable() for _ in range(partition_count))

    # --- reading -----------------------------------------------------------------------------------------------------

    def partition_of(self, group_id: str) -> int:
        """The partition of ``__consumer_offsets`` that keeps the group."""
        return partition_for(group_id, len(self._tables))

    def offsets(self, group_id: str) -> OffsetTable:
        """The offsets of the group's partition."""
        return self._tables[self.partition_of(group_id)]

    def log(self, group_id: str) -> PartitionLog | None:
        """The log that keeps the group; None where its topic is gone."""
        return self._logs.log(GROUP_OFFSETS, self.partition_of(group_id))

    # --- writing -----------------------------------------------------------------------------------------------------

    def append(
        self, group_id: str, records: Sequence[GroupRecord], *, writer: Writer | None = None, guard: Guard | None = None
    ) -> Code:
        """Append records of one group as one batch, and take them in; they hold for every request that follows.

        Args:
            group_id: decides on the partition.
            records: at least one.
            writer: the producer in whose transaction they are.
            guard: of `NeedsCoordinator`, with ``writer``.

        Returns:
            NONE, or what a client is told; then nothing has changed.
        """
        log = self.log(group_id)
        if log is None:
            return Code.COORDINATOR_NOT_AVAILABLE
        pairs = [(key.encode(), None if value is None else value.encode()) for key, value in records]
        appended = log.append_records(pairs, now_ms=self._now_ms(), producer=writer, guard=guard)
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
        """Append tombstones of one group, in as many batches as they need; the first failure ends it."""
        records: list[GroupRecord] = [(key, None) for key in keys]
        for first in range(0, len(records), TOMBSTONES_MAX):
            code = self.append(group_id, records[first : first + TOMBSTONES_MAX])
            if code is not Code.NONE:
                return code
        return Code.NONE

    async def durable(self, group_id: str) -> Code:
        """Wait until everything that was appended for the group is durable: NONE, or what clients are told."""
        log = self.log(group_id)
        if log is None:
            return Code.COORDINATOR_NOT_AVAILABLE
        if log.high_watermark >= log.end_offset:
            return Code.NONE
        try:
            await log.sync()
        except LogFailedError:
            return Code(append_error(Code.KAFKA_STORAGE_ERROR))
        return Code.NONE

    def on_marker(self, partition: int, producer_id: int, commit: bool) -> None:  # noqa: FBT001 -- GroupMarker
        """An end marker stands in a partition of ``__consumer_offsets``: its pending offsets take effect or go."""
        self._tables[partition].end_transaction(producer_id, commit=commit)

    def _take_offset(self, position: int, producer_id: int, key: OffsetKey, value: OffsetValue | None) -> None:
        self.offsets(key.group_id).replay(position, producer_id, key, value)
        if value is not None and key.group_id not in self.groups:
            # A client that assigns partitions itself and only commits: Kafka's "simple" group.
            self.groups[key.group_id] = Group(group_id=key.group_id, state_since_ms=self._now_ms())

    # --- loading -----------------------------------------------------------------------------------------------------

    def load(self, properties: BrokerProperties) -> None:
        """Read every partition; must come before anything else.

        Raises:
            UnreadableRecordError: a record is not Kafka's.
        """
        values: dict[str, GroupValue] = {}
        for index in range(len(self._tables)):
            log = self._logs.log(GROUP_OFFSETS, index)
            if log is not None:
                self._load_partition(index, log, values)
        for group_id, value in values.items():
            self.groups[group_id] = machine.loaded(group_id, value, properties, self._now_ms()).group

    def _load_partition(self, index: int, log: PartitionLog, values: dict[str, GroupValue]) -> None:
        for record in log.records():
            try:
                self._load_record(index, record, values)
            except RemoteProtocolError as error:
                raise log.unreadable(record.offset, error.detail) from error

    def _load_record(self, index: int, record: Record, values: dict[str, GroupValue]) -> None:
        if record.key is None:
            return
        if record.batch.control:
            marker = end_marker(record)
            if marker is not None:
                self.on_marker(index, record.batch.producer_id, marker.commit)
            return
        key = decode_key(record.key)
        if isinstance(key, OffsetKey):
            producer_id = record.batch.producer_id if record.batch.transactional else NO_PRODUCER_ID
            value = None if record.value is None else OffsetValue.decode(record.value)
            self._take_offset(record.offset, producer_id, key, value)
        elif isinstance(key, GroupKey):
            self.groups.pop(key.group_id, None)
            values.pop(key.group_id, None)
            if record.value is not None:
                values[key.group_id] = GroupValue.decode(record.value)
