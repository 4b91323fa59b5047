"""A node without sockets: coordinator and handlers over logs in memory, which outlive it, perhaps with a past."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from kafka.protocol.consumer import FetchRequest
from kafka.protocol.producer import EndTxnRequest, InitProducerIdRequest, ProduceRequest
from kafka.record.memory_records import MemoryRecords

from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.reference.config.properties import BrokerProperties
from spark_2pc_sink.reference.coordinator.events import FULL_ACCESS, Access
from spark_2pc_sink.reference.coordinator.plans import LogRecord
from spark_2pc_sink.reference.coordinator.states import Settings, StateId, TransactionMetadata, partition_for
from spark_2pc_sink.reference.handlers.partitions import PartitionHandlers
from spark_2pc_sink.reference.handlers.produce import ProduceHandlers
from spark_2pc_sink.reference.handlers.transactions import TransactionHandlers
from spark_2pc_sink.reference.internal_topics import GROUP_OFFSETS, TRANSACTION_STATE
from spark_2pc_sink.reference.log.partition_log import LogSettings, PartitionLog
from spark_2pc_sink.reference.metadata.catalog_state import Topic
from spark_2pc_sink.reference.protocol import HandlerFunction, RequestContext
from spark_2pc_sink.reference.storage.files import MemoryFile, MemoryStore
from spark_2pc_sink.reference.storage.segmented_log import INLINE_SECONDS_MAX
from spark_2pc_sink.reference.transactions.service import MarkerWriter, TransactionService, Verification
from tests.unit.reference.batches import RESPONSES, append_in_transaction, client_batch, message
from tests.unit.reference.coordinator.driver import metadata
from tests.unit.reference.waiting import DEADLINE_S, present, until

TID = "orders"
START_MS = 1_700_000_000_000
TOPIC_IDS = {"t": uuid.UUID(int=1), "u": uuid.UUID(int=2)}


@dataclass
class Disk:
    """All stores of a node, and what is wrong with them.

    Args:
        stop_at: the disk stops for good in the sync of this number, counted from 1; 0 for never.
        append_error: part of the name of the partitions whose appends fail; '' for none.
        sync_error: the same for syncs.
    """

    stores: dict[tuple[str, int], DiskStoreInMemory] = field(default_factory=dict)
    topics: dict[str, Topic] = field(default_factory=dict)
    starts: int = 0
    next_producer_id: int = 0
    stop_at: int = 0
    syncs: int = 0
    append_error: str = ""
    sync_error: str = ""
    failed_appends: int = 0
    stopped: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)

    def copied(self, *, everything: bool) -> Disk:
        """What a crash leaves: everything that was written, or only what had been synced."""
        copy = Disk(topics=self.topics, starts=self.starts, next_producer_id=self.next_producer_id)
        for name, store in self.stores.items():
            copy.stores[name] = store.copied(copy, everything=everything)
        return copy

    def sync(self) -> bool:
        """Count a sync; False where the disk has stopped."""
        self.syncs += 1
        if self.stop_at and self.syncs >= self.stop_at:
            self.stopped.set()
            self.released.wait(DEADLINE_S)
            return False
        return True


#: A disk so slow is waited for in a thread, where a test can stop it.
_SLOW_S = 1.5 * INLINE_SECONDS_MAX


class FileInMemory(MemoryFile):
    """A file that knows what was synced."""

    def __init__(self, path: str, disk: Disk) -> None:
        super().__init__(path)
        self.disk = disk
        self.synced_bytes = 0

    def append(self, parts: Any) -> None:
        if self.disk.append_error and self.disk.append_error in self.path:
            self.disk.failed_appends += 1
            raise OSError("no space left on device")
        super().append(parts)

    def sync(self) -> None:
        if self.disk.sync_error and self.disk.sync_error in self.path:
            raise OSError("input/output error")
        size_bytes = self.size_bytes
        time.sleep(_SLOW_S)
        if self.disk.sync():
            self.synced_bytes = size_bytes


class DiskStoreInMemory(MemoryStore):
    """One partition's files, waited for as if they were on a disk; their paths are named after the partition."""

    on_disk = True

    def __init__(self, disk: Disk, name: str) -> None:
        super().__init__()
        self.path = name
        self.disk = disk
        self.files: dict[int, FileInMemory] = {}

    def base_offsets(self) -> list[int]:
        return sorted(self.files)

    def segment(self, base_offset: int) -> FileInMemory:
        return self.files.setdefault(base_offset, FileInMemory(self.path, self.disk))

    def sync(self) -> None:
        """Names are there at once."""

    def copied(self, disk: Disk, *, everything: bool) -> DiskStoreInMemory:
        copy = DiskStoreInMemory(disk, self.path)
        for base_offset, file in self.files.items():
            kept = file.read(0, file.size_bytes if everything else file.synced_bytes)
            copied = copy.segment(base_offset)
            MemoryFile.append(copied, [kept])
            copied.synced_bytes = len(kept)
        return copy


class FakeCluster:
    """The catalog as far as these tests need it: topics that exist, their logs, blocks of producer ids."""

    def __init__(self, disk: Disk, *, transaction_version: int = 2) -> None:
        disk.starts += 1
        self.node_epoch = disk.starts - 1
        self.transaction_version = transaction_version
        self.disk = disk
        self.opened: dict[tuple[str, int], PartitionLog] = {}
        self.settings = LogSettings()
        for name, count in ((TRANSACTION_STATE, 3), (GROUP_OFFSETS, 3), ("t", 3), ("u", 1)):
            disk.topics.setdefault(name, Topic(name, TOPIC_IDS.get(name, uuid.uuid4()), count))
        for name, partition in tuple(disk.stores):
            self.log(name, partition)

    def topic(self, name: str) -> Topic | None:
        return self.disk.topics.get(name)

    def topic_by_id(self, topic_id: uuid.UUID) -> Topic | None:
        return next((topic for topic in self.disk.topics.values() if topic.id == topic_id), None)

    def logs(self) -> Iterable[PartitionLog]:
        return tuple(self.opened.values())

    def log(self, topic: str, partition: int) -> PartitionLog | None:
        known = self.disk.topics.get(topic)
        if known is None or not 0 <= partition < known.partitions:
            return None
        if (topic, partition) not in self.opened:
            self.opened[topic, partition] = self._open(topic, partition)
        return self.opened[topic, partition]

    def _open(self, topic: str, partition: int) -> PartitionLog:
        store = self.disk.stores.setdefault((topic, partition), DiskStoreInMemory(self.disk, f"{topic}-{partition}"))
        with mock.patch.object(self.disk, "sync", return_value=True):
            return PartitionLog.open(
                store, topic=topic, partition=partition, leader_epoch=self.node_epoch, settings=self.settings
            )

    async def allocate_producer_ids(self) -> range:
        first = self.disk.next_producer_id
        self.disk.next_producer_id += 1000
        return range(first, first + 1000)


class Node:
    """A started node."""

    def __init__(self, disk: Disk, settings: Settings, verification: BrokerProperties | None) -> None:
        properties = verification or BrokerProperties()
        self.now_ms = START_MS
        self.disk = disk
        self.cluster = FakeCluster(disk, transaction_version=settings.transaction_version)
        #: How many Produce requests have let the next one of their connection begin.
        self.appended = 0
        self.group_markers: list[tuple[int, int, bool]] = []
        catalog: Any = self.cluster
        self.markers = MarkerWriter(
            catalog, on_group_marker=lambda *marker: self.group_markers.append(marker), now_ms=self.clock
        )
        self.service = TransactionService(
            catalog, self.markers, settings=settings, properties=properties, now_ms=self.clock
        )
        self.verification = Verification(self.service, lambda: properties)
        self.transactions = TransactionHandlers(self.service, self.markers, catalog, now_ms=self.clock)
        self.producing = ProduceHandlers(catalog, self.verification, now_ms=self.clock)
        self.partitions = PartitionHandlers(catalog)

    def clock(self) -> int:
        return self.now_ms

    def _count_append(self) -> None:
        self.appended += 1

    # --- requests, through the wire format ----------------------------------------------------------------------------

    async def init(self, tid: str = TID, *, keep: bool = False) -> Any:
        held = {"transaction_timeout_ms": 60_000, "producer_id": -1, "producer_epoch": -1}
        request = InitProducerIdRequest(transactional_id=tid, **held, enable2_pc=False, keep_prepared_txn=keep)
        return await exchange(self.transactions.init_producer_id, request, 6)

    async def end(self, pair: tuple[int, int], *, commit: bool = True) -> Any:
        request = EndTxnRequest(transactional_id=TID, producer_id=pair[0], producer_epoch=pair[1], committed=commit)
        return await exchange(self.transactions.end_txn, request, 5)

    async def produce(
        self,
        batches: dict[tuple[str, int], bytes],
        *,
        tid: str | None = TID,
        version: int = 12,
        access: Access = FULL_ACCESS,
        client_id: str = "test",
    ) -> dict[tuple[str, int], Any]:
        """The answer of each partition."""
        topics: dict[str, list[Any]] = {}
        for (topic, index), records in batches.items():
            topics.setdefault(topic, []).append({"index": index, "records": records})
        data = [
            {"name": topic, "topic_id": TOPIC_IDS.get(topic, uuid.UUID(int=99)), "partition_data": found}
            for topic, found in topics.items()
        ]
        request = message(ProduceRequest, transactional_id=tid, acks=-1, timeout_ms=1000, topic_data=data)
        context = RequestContext(version=version, client_id=client_id, access=access, appended=self._count_append)
        response = await exchange(self.producing.produce, request, version, context=context)
        names = {topic_id: name for name, topic_id in TOPIC_IDS.items()}
        return {
            (found.name or names.get(found.topic_id, "unknown"), each.index): each
            for found in response.responses
            for each in found.partition_responses
        }

    async def write(self, pair: tuple[int, int], *, sequence: int = 0, partition: int = 0, **fields: Any) -> int:
        """Produce one record in a transaction; the code."""
        records = batch(b"v", pair=pair, sequence=sequence)
        answers = await self.produce({("t", partition): records}, **fields)
        return int(answers["t", partition].error_code)

    async def fetch(
        self,
        offsets: Mapping[tuple[str, int], int],
        *,
        access: Access = FULL_ACCESS,
        version: int = 12,
        partition_max_bytes: int = 1 << 20,
        current_leader_epoch: int = -1,
        **fields: Any,
    ) -> Any:
        """Fetch of partitions from these offsets; the whole response."""
        usual = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20, "isolation_level": 0}
        each = {"current_leader_epoch": current_leader_epoch, "partition_max_bytes": partition_max_bytes}
        topics: dict[str, list[Any]] = {}
        for (name, index), offset in offsets.items():
            topics.setdefault(name, []).append({"partition": index, "fetch_offset": offset, **each})
        wanted = [
            {"topic": name, "topic_id": TOPIC_IDS.get(name), "partitions": found} for name, found in topics.items()
        ]
        request = message(FetchRequest, **{"session_epoch": -1, **usual, **fields}, topics=wanted)
        return await exchange(self.partitions.fetch, request, version, access=access)

    async def read(self, partition: int = 0, *, isolation: int = 1, **fields: Any) -> Any:
        """Fetch one partition of t; the partition's answer."""
        response = await self.fetch({("t", partition): 0}, version=17, isolation_level=isolation, **fields)
        return response.responses[0].partitions[0]

    # --- what stands in the logs --------------------------------------------------------------------------------------

    def batches(self, topic: str = "t", partition: int = 0) -> list[Any]:
        """The headers in a log, all that were written."""
        log = present(self.cluster.log(topic, partition))
        return [header for header, _ in log._log.batches(0)]

    def markers_of(self, partition: int = 0) -> list[tuple[int, int, str]]:
        """Producer id, epoch and type of the end markers in the log of a partition of t, in order."""
        log = present(self.cluster.log("t", partition))
        return [
            (each.batch.producer_id, each.batch.producer_epoch, "commit" if each.key == b"\0\0\0\1" else "abort")
            for each in log.records()
            if each.batch.control
        ]

    def state(self, tid: str = TID) -> str:
        """The name of the state that an id is in, '' for none."""
        found = self.service.state.get(tid)
        return "" if found is None else found.state.label

    def added(self) -> set[TopicPartition]:
        """The partitions of the transaction of the usual id."""
        return set(present(self.service.state.get(TID)).partitions)

    def records(self) -> list[LogRecord]:
        """The records of the state log, of the partition of the usual id."""
        index = self.service.state.partition_of(TID)
        log = present(self.cluster.log(TRANSACTION_STATE, index))
        return [LogRecord.decode(index, each.key or b"", each.value) for each in log.records()]

    async def settled(self, tid: str = TID) -> str:
        """Wait until nothing of an id is pending; the name of its state."""

        def at_rest() -> bool:
            found = self.service.state.get(tid)
            return found is None or found.pending is None

        await until(at_rest)
        return self.state(tid)


@asynccontextmanager
async def node(
    disk: Disk | None = None, *, settings: Settings | None = None, verification: BrokerProperties | None = None
) -> AsyncIterator[Node]:
    """A node that is loaded and started, and stopped at the end."""
    running = Node(disk or Disk(), settings or Settings(two_phase_commit_enable=True), verification)
    await running.service.load()
    running.service.start()
    try:
        yield running
    finally:
        await running.service.stop()


async def exchange(
    function: HandlerFunction,
    request: Any,
    version: int,
    *,
    access: Access = FULL_ACCESS,
    context: RequestContext | None = None,
) -> Any:
    """Send a request through encoding and decoding, and its response back."""
    received = type(request).decode(request.encode(version=version), version=version)
    response = await function(context or RequestContext(version=version, access=access), received)
    if response is None:
        return None
    return RESPONSES[request.API_KEY].decode(response.encode(version=version), version=version)


def batch(*values: bytes, pair: tuple[int, int] = (-1, -1), sequence: int = -1, timestamp_ms: int = START_MS) -> bytes:
    """A client's record batch: transactional where it has a pair."""
    return client_batch(
        values,
        keys=[b"k"] * len(values),
        producer=pair,
        sequence=sequence,
        transactional=pair[0] >= 0,
        timestamps_ms=timestamp_ms,
    )


def committed(partition: Any) -> list[bytes]:
    """What a read_committed consumer makes of a fetch (KIP-98, "Consumer"): values outside aborted transactions."""
    waiting = sorted((row.first_offset, row.producer_id) for row in partition.aborted_transactions or [])
    active: set[int] = set()
    values: list[bytes] = []
    reader = MemoryRecords(bytes(partition.records))
    while found := reader.next_batch():
        last_offset = found.base_offset + found.last_offset_delta
        while waiting and waiting[0][0] <= last_offset:
            active.add(waiting.pop(0)[1])
        if found.is_control_batch:
            if any(record.abort for record in found):
                active.discard(found.producer_id)
        elif not (found.is_transactional and found.producer_id in active):
            values += [record.value for record in found]
    return values


def seeded(*recorded: TransactionMetadata, data: Mapping[TopicPartition, tuple[int, int]] | None = None) -> Disk:
    """What a node left that knew some ids, and that had one record of an open transaction in some partitions.

    Args:
        recorded: what the state log says.
        data: the pair that wrote it, by partition.
    """
    disk = Disk()
    cluster = FakeCluster(disk)
    for each in recorded:
        index = partition_for(each.transactional_id, disk.topics[TRANSACTION_STATE].partitions)
        record = LogRecord(partition=index, transactional_id=each.transactional_id, value=each)
        log = present(cluster.log(TRANSACTION_STATE, index))
        log.append_records([(record.key_bytes, record.value_bytes)], now_ms=START_MS)
    for partition, pair in (data or {}).items():
        log = present(cluster.log(partition.topic, partition.partition))
        assert append_in_transaction(log, [b"before"], producer=pair, sequence=0).code == 0
    return disk.copied(everything=True)


def known() -> Disk:
    """What a node left that knew one id, whose transaction was committed."""
    return seeded(metadata(StateId.COMPLETE_COMMIT))
