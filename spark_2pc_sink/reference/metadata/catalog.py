"""Catalog of the cluster: topics and their logs, configs, ACLs, feature levels, producer id blocks.

In a Kafka cluster this is the controller's metadata. Every change is durable before the call returns, and not visible
earlier: the new state is written next to the old one, replaces it, and only then becomes visible. Without a directory
everything is kept in memory.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Iterable, Mapping, Set as AbstractSet
from dataclasses import replace
from pathlib import Path

from spark_2pc_sink.errors import LocalProtocolError
from spark_2pc_sink.reference.config.properties import BrokerProperties, with_configs
from spark_2pc_sink.reference.config.topic_configs import internal_topics, log_settings
from spark_2pc_sink.reference.log.partition_log import PartitionLog
from spark_2pc_sink.reference.metadata.acls import Acl
from spark_2pc_sink.reference.metadata.catalog_state import (
    PRODUCER_ID_BLOCK_SIZE,
    CatalogState,
    DataDirectory,
    LogEnds,
    Topic,
    new_state,
    random_id,
    start,
)

_log = logging.getLogger(__name__)


class Catalog:
    """The catalog of a running node; made by :meth:`open`, ended by :meth:`close`.

    Reads never wait. Changes run one after the other, in the order of the calls, and complete even if the caller is
    cancelled in between.

    ``node_epoch`` counts the starts before this one: the leader epoch of every partition, and the coordinator epoch of
    both coordinators. ``state`` is replaced with each change. ``properties`` are those of the start with later
    alterations applied. ``on_deleted`` is called with each deleted topic, after it became invisible to readers and
    before its logs are closed; ``on_transaction_version`` with each new level of the feature, once it is durable.
    """

    def __init__(
        self, state: CatalogState, directory: DataDirectory | None, properties: BrokerProperties, durable_ends: LogEnds
    ) -> None:
        self.cluster_id: str = state.cluster_id
        self.node_id: int = state.node_id
        self.node_epoch: int = state.starts - 1
        self.started_with = properties
        self.properties: BrokerProperties = with_configs(properties, state.broker_configs)
        self.on_deleted: list[Callable[[Topic], None]] = []
        self.on_transaction_version: list[Callable[[int], None]] = []
        self.state: CatalogState = state
        self._directory = directory
        self._by_id = {topic.id: topic for topic in state.topics.values()}
        self._logs: dict[tuple[str, int], PartitionLog] = {}
        self._durable_ends = durable_ends
        self._opened_all = False
        self._closed = False
        self._changing = asyncio.Lock()  # a change waits for the disk, and the next one must start from its result

    @classmethod
    async def open(cls, directory: Path | None, properties: BrokerProperties) -> Catalog:
        """Start the node on its state, or on a new one, and count the start. Does not open any log.

        ``node.id`` must be that of the earlier starts. ``transaction.version`` is the level of a new directory. A value
        other than at the last start changes the level, up or down; the same value keeps the level that
        ``kafka-features.sh`` has set since then.
        """
        if directory is None:
            return cls(new_state(properties), None, properties, {})
        held, state, durable_ends = await asyncio.to_thread(start, directory, properties)
        return cls(state, held, properties, durable_ends)

    @property
    def features_epoch(self) -> int:
        """Grows with every start and every level change: clients believe the answer with the higher epoch."""
        return self.node_epoch + self.state.feature_changes

    async def set_transaction_version(self, level: int) -> None:
        def change(state: CatalogState) -> CatalogState:
            if state.transaction_version == level:
                return state
            return replace(state, transaction_version=level, feature_changes=state.feature_changes + 1)

        before = self.state.transaction_version
        state = await self._change(change)
        if state.transaction_version != before:
            _log.info("transaction.version: %d -> %d", before, state.transaction_version)
            for call in self.on_transaction_version:
                call(state.transaction_version)

    async def alter_broker_configs(self, broker: str, changes: Mapping[str, str | None]) -> None:
        """Alter configs of a broker ('' for the default of all) while it runs; open logs apply them from now on."""

        def change(state: CatalogState) -> CatalogState:
            now = {**state.broker_configs.get(broker, {}), **changes}
            kept = {name: value for name, value in now.items() if value is not None}
            return replace(state, broker_configs={**state.broker_configs, broker: kept})

        await self._change(change)
        self.properties = with_configs(self.started_with, self.state.broker_configs)
        for log in self.logs():
            log.settings = replace(log.settings, verification=self.properties.transaction_partition_verification_enable)

    async def allocate_producer_ids(self) -> range:
        """A new block, never handed out again; a restart loses the rest of the last one, as in Kafka (KIP-730)."""
        size = PRODUCER_ID_BLOCK_SIZE
        state = await self._change(lambda now: replace(now, next_producer_id=now.next_producer_id + size))
        return range(state.next_producer_id - size, state.next_producer_id)

    async def alter_acls(self, alter: Callable[[AbstractSet[Acl]], AbstractSet[Acl]]) -> None:
        """Replace the ACLs by what ``alter`` makes from those in effect when the change is carried out."""
        await self._change(lambda state: replace(state, acls=tuple(sorted(alter(frozenset(state.acls))))))

    def topic(self, name: str) -> Topic | None:
        return self.state.topics.get(name)

    def topic_by_id(self, topic_id: uuid.UUID) -> Topic | None:
        return self._by_id.get(topic_id)

    def topics(self) -> tuple[Topic, ...]:
        return tuple(self.state.topics.values())

    async def create_topic(
        self, name: str, partitions: int, configs: Mapping[str, str] | None = None, *, topic_id: uuid.UUID | None = None
    ) -> Topic | None:
        """Create a topic whose name and configs have been validated; None if the name is taken."""
        topic = Topic(name, topic_id or random_id(), partitions, dict(configs or {}))
        return topic if (await self.create_topics([topic])).get(name) is topic else None

    async def create_topics(self, topics: Iterable[Topic]) -> Mapping[str, Topic]:
        """Create topics in one change, except those whose name is taken; returns all topics."""
        new = {topic.name: topic for topic in topics}
        # The first gives the order, the last the values: existing topics stay as they are.
        return (await self._change(lambda now: replace(now, topics={**now.topics, **new, **now.topics}))).topics

    async def ensure_internal_topics(self) -> None:
        """Create the coordinators' missing topics; existing ones keep their number of partitions.

        Kafka creates each when it is first needed. Here both exist from the start, so that the coordinators always
        find their partitions.
        """
        rows = internal_topics(self.properties)
        await self.create_topics(Topic(name, random_id(), partitions, configs) for name, partitions, configs in rows)

    async def delete_topic(self, name: str) -> Topic | None:
        """Delete a topic with its records, and return its last state; None if it does not exist."""
        return await asyncio.shield(asyncio.ensure_future(self._delete(name)))

    async def add_partitions(self, name: str, count: int) -> Topic | None:
        """Increase a topic's partitions to ``count`` in all; None if it is gone or already has as many."""
        return await self._alter(name, lambda now: replace(now, partitions=count) if now.partitions < count else None)

    async def alter_configs(self, name: str, alter: Callable[[Mapping[str, str]], Mapping[str, str]]) -> Topic | None:
        """Change a topic's configs by ``alter`` in its turn; open logs apply them. None if the topic is gone."""
        topic = await self._alter(name, lambda topic: replace(topic, configs=dict(alter(topic.configs))))
        if topic is not None:
            settings = log_settings(topic.configs, self.properties)
            for log in self.logs():
                if log.topic == name:
                    log.settings = settings
        return topic

    async def delete_records(self, name: str, starts: Mapping[int, int]) -> Topic | None:
        """Make records below these offsets unreadable, by partition; None if the topic is gone or nothing changes."""

        def moved(topic: Topic) -> Topic | None:
            later = {at: offset for at, offset in starts.items() if offset > topic.log_starts.get(at, 0)}
            return replace(topic, log_starts={**topic.log_starts, **later}) if later else None

        topic = await self._alter(name, moved)
        if topic is not None:
            for partition, offset in starts.items():
                if log := self.log(name, partition):
                    log.delete_before(offset)
        return topic

    def log(self, topic: str, partition: int) -> PartitionLog | None:
        """A partition's log, opened on first use; None if the partition does not exist."""
        if found := self._logs.get((topic, partition)):
            return found
        known = self.state.topics.get(topic)
        if known is None or not 0 <= partition < known.partitions or self._closed:
            return None
        opened = PartitionLog.open(
            self._directory.must_belong(known, partition) if self._directory is not None else None,
            topic=topic,
            partition=partition,
            leader_epoch=self.node_epoch,
            settings=log_settings(known.configs, self.properties),
            log_start_offset=known.log_starts.get(partition, 0),
            durable_end=self._durable_ends.get((known.id, partition), 0),
        )
        if opened.recovered_cut_bytes:
            message = "%s-%d: truncated %d bytes after offset %d: torn write from an unclean shutdown"
            _log.warning(message, topic, partition, opened.recovered_cut_bytes, opened.end_offset)
        self._logs[topic, partition] = opened
        return opened

    def logs(self) -> tuple[PartitionLog, ...]:
        """The open logs; includes all logs with records once `open_logs` has been called."""
        return tuple(self._logs.values())

    async def open_logs(self) -> None:
        """Open every partition with records, as required before serving. Empty ones are opened on first use."""
        if self._directory is not None:
            await asyncio.to_thread(self._open_all, self._directory)
        self._opened_all = True

    async def close(self) -> None:
        """Flush and close all logs and release the directory. A second call does nothing."""
        async with self._changing:
            logs, self._closed = self.logs(), True
            self._logs.clear()
            begun = [log.flush() for log in logs]
            failed = [failure for each in begun if (failure := await each) is not None]
            for log in logs:
                log.close()
            if self._directory is not None:
                if self._opened_all and not failed:
                    await asyncio.to_thread(self._directory.write_log_ends, self._ends_of(logs))
                self._directory.close()
                self._directory = None
        if failed:
            raise failed[0]

    def _open_all(self, directory: DataDirectory) -> None:
        names = {segment.parent.name for segment in directory.path.glob("*/*.log") if segment.stat().st_size}
        for topic in self.topics():
            for partition in range(topic.partitions):
                expected = self._durable_ends.get((topic.id, partition), 0)
                if expected or directory.partition(topic.name, partition).name in names:
                    self.log(topic.name, partition)
        # The recovered records are on disk now: a crash may tear later writes, never these.
        directory.write_log_ends(self._ends_of(self.logs()))

    def _ends_of(self, logs: Iterable[PartitionLog]) -> LogEnds:
        topics = self.state.topics
        return {
            (topics[log.topic].id, log.partition): log.high_watermark
            for log in logs
            if log.topic in topics and log.high_watermark
        }

    async def _alter(self, name: str, alter: Callable[[Topic], Topic | None]) -> Topic | None:
        """Replace a topic by what ``alter`` makes; None if the topic is gone or ``alter`` returned None."""
        altered: Topic | None = None

        def change(state: CatalogState) -> CatalogState:
            nonlocal altered
            altered = alter(state.topics[name]) if name in state.topics else None
            return state if altered is None else replace(state, topics={**state.topics, name: altered})

        await self._change(change)
        return altered

    async def _change(self, change: Callable[[CatalogState], CatalogState]) -> CatalogState:
        async def change_in_turn() -> CatalogState:
            async with self._changing:
                state = change(self.state)
                if state != self.state:
                    await self._store(state)
                return state

        return await asyncio.shield(asyncio.ensure_future(change_in_turn()))

    async def _delete(self, name: str) -> Topic | None:
        async with self._changing:
            topic = self.state.topics.get(name)
            if topic is None:
                return None
            left = {key: each for key, each in self.state.topics.items() if key != name}
            state = replace(self.state, topics=left, removing=(*self.state.removing, topic))
            await self._store(state)
            for call in self.on_deleted:
                call(topic)
            for partition in range(topic.partitions):
                if log := self._logs.pop((name, partition), None):
                    log.close()
            if self._directory is not None:
                # If the disk refuses, it stays listed, and is retried with the next one or at the next start.
                await asyncio.to_thread(self._directory.remove_topics, state.removing, live=state.topics)
            # The file still lists it as being removed: the next change writes that it is gone, and until then a
            # start finds nothing to remove.
            self._show(replace(self.state, removing=()))
            return topic

    async def _store(self, state: CatalogState) -> None:
        """Make a changed state durable, then visible."""
        if self._closed:
            raise LocalProtocolError(operation="a change of the catalog", state="closed", rule="the node has stopped")
        if self._directory is not None:
            await asyncio.to_thread(self._directory.store, state, before=self.state)
        self._show(state)

    def _show(self, state: CatalogState) -> None:
        self.state = state
        self._by_id = {topic.id: topic for topic in state.topics.values()}
