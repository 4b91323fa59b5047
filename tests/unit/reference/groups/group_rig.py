"""The handlers of groups and offsets over logs in memory, asked as a client asks: by encoded messages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from typing import Any
from uuid import UUID

from spark_2pc_sink.codes import Code
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.reference.config.properties import BrokerProperties
from spark_2pc_sink.reference.coordinator.plans import EndMarker
from spark_2pc_sink.reference.coordinator.states import Pair
from spark_2pc_sink.reference.groups.service import GroupService
from spark_2pc_sink.reference.groups.store import GroupStore
from spark_2pc_sink.reference.handlers.groups import GroupHandlers
from spark_2pc_sink.reference.internal_topics import GROUP_OFFSETS
from spark_2pc_sink.reference.log.partition_log import PartitionLog
from spark_2pc_sink.reference.metadata.catalog import Catalog
from spark_2pc_sink.reference.metadata.catalog_state import Topic, new_state
from spark_2pc_sink.reference.protocol import REQUESTS, RequestContext, handlers_of
from tests.unit.reference.batches import message
from tests.unit.reference.groups import messages
from tests.unit.reference.node import exchange
from tests.unit.reference.waiting import present

TOPIC = Topic("orders", UUID(int=7), 3)
PARTITIONS = 2
START_MS = 1_700_000_000_000


def catalog_in_memory() -> Catalog:
    """The catalog of a node with a topic, and with the one that keeps groups."""
    properties = BrokerProperties()
    topics = {TOPIC.name: TOPIC, GROUP_OFFSETS: Topic(GROUP_OFFSETS, UUID(int=8), PARTITIONS)}
    return Catalog(replace(new_state(properties), topics=topics), None, properties, {})


def logs_of(catalog: Catalog) -> list[PartitionLog]:
    """Those that keep groups."""
    return [present(catalog.log(GROUP_OFFSETS, index)) for index in range(PARTITIONS)]


class FakeVerification:
    """The transaction coordinator: answers what the test says."""

    def __init__(self) -> None:
        self.code = Code.NONE
        self.asked: list[tuple[int, str, Pair, TopicPartition]] = []
        self.kept: Pair | None = None

    async def for_offsets(self, version: int, transactional_id: str, pair: Pair, partition: TopicPartition) -> int:
        self.asked.append((version, transactional_id, pair, partition))
        return self.code

    def is_sealed(self, pair: Pair) -> bool:
        return pair == self.kept


class GroupRig:
    """A broker's worth of groups. Time stands still unless the test moves ``now_ms``, or the system's clock."""

    def __init__(self, catalog: Catalog | None = None) -> None:
        self.now_ms = START_MS
        self.clock_shift_ms = 0
        settings = BrokerProperties(group_initial_rebalance_delay_ms=0, group_min_session_timeout_ms=1_000)
        self.catalog = catalog or catalog_in_memory()
        self.verification = FakeVerification()
        self.context = RequestContext(version=0, client_id="c")
        self._ids = count(1)
        store = GroupStore(self.catalog, partition_count=PARTITIONS, now_ms=self._day_ms)
        self.service = GroupService(
            store,
            settings,
            now_ms=self._day_ms,
            steady_ms=lambda: self.now_ms,
            new_member_id=lambda prefix: f"{prefix}-{next(self._ids)}",
        )
        verification: Any = self.verification
        self.service.load()
        self._handlers = {
            **handlers_of(GroupHandlers(self.service, verification, self.catalog, now_ms=self._day_ms)),
        }

    def _day_ms(self) -> int:
        return self.now_ms + self.clock_shift_ms

    def restarted(self) -> GroupRig:
        """A broker that starts on the same logs."""
        rig = GroupRig(self.catalog)
        rig.now_ms = self.now_ms
        return rig

    async def ask(self, name: str, version: int, **fields: Any) -> dict[str, Any]:
        """Send a request of kafka-python's, by name, and decode what comes back."""
        kind = next(each for each in REQUESTS.values() if each.__name__ == f"{name}Request")
        handler = self._handlers[kind.API_KEY]
        assert handler.version_min <= version <= handler.version_max
        request, context = message(kind, version, **fields), replace(self.context, version=version)
        answer = await exchange(handler.function, request, version, context=context)
        decoded: dict[str, Any] = answer.to_dict()
        return decoded

    async def stable(self) -> str:
        """The group g, stable with one member in generation 1; its id."""
        member_id: str = (await self.ask("JoinGroup", 3, **messages.join()))["member_id"]
        synced = await self.ask("SyncGroup", 5, **messages.sync("g", 1, member_id, {member_id: b"A"}))
        assert synced["error_code"] == 0
        return member_id

    async def commit(self, *arguments: Any, **fields: Any) -> list[int]:
        """OffsetCommit, as `messages.commit` makes it; the codes."""
        return codes_of(await self.ask("OffsetCommit", 9, **messages.commit(*arguments, **fields)))

    async def commit_in_transaction(self, *arguments: Any, version: int = 5, **fields: Any) -> list[int]:
        """TxnOffsetCommit, as `messages.commit_in_transaction` makes it; the codes."""
        made = messages.commit_in_transaction(*arguments, **fields)
        return codes_of(await self.ask("TxnOffsetCommit", version, **made))

    async def marker(self, group_id: str, pair: Pair, *, commit: bool) -> None:
        """An end marker in the group's partition, as the transaction coordinator writes it."""
        index = self.service.store.partition_of(group_id)
        log = logs_of(self.catalog)[index]
        mark = EndMarker(pair.producer_id, pair.epoch, commit, coordinator_epoch=0)
        assert log.append_marker(mark, now_ms=self.now_ms) is Code.NONE
        self.service.store.on_marker(index, pair.producer_id, commit)
        await log.flush()


@asynccontextmanager
async def running_groups() -> AsyncIterator[GroupRig]:
    """A broker's worth of groups, ended in an orderly way."""
    rig = GroupRig()
    rig.service.start()
    try:
        yield rig
    finally:
        await rig.service.stop()


def codes_of(answer: Mapping[str, Any]) -> list[int]:
    """The codes of the partitions of a commit or a deletion."""
    return [partition["error_code"] for topic in answer["topics"] for partition in topic["partitions"]]
