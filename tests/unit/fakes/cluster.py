"""A Kafka cluster in threads: real sockets, the handlers and the coordinator of the reference broker, and a script.

Without a script it behaves. A *step* put into the script of an API replaces the answer to the next request of that API,
whichever broker it comes to::

    cluster.script(Api.PRODUCE, lose_answer, answer(Code.NOT_LEADER_OR_FOLLOWER))

so the first Produce is carried out and its connection closed, the second refused, and all others served. The client
under test has one thread, so the order of requests, and with it every test, is the same each time.

The reference broker is one node. That there are several, who leads what, and who is shown what, is `wire.Topology`'s.
"""

from __future__ import annotations

import asyncio
import struct
import threading
import uuid
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from spark_2pc_sink.codes import Code
from spark_2pc_sink.ids import ProducerIdAndEpoch, TopicPartition
from spark_2pc_sink.reference.config.properties import BrokerProperties
from spark_2pc_sink.reference.coordinator.events import FULL_ACCESS, AclOperation, AddPartitionsToTxn, Event, Resource
from spark_2pc_sink.reference.coordinator.machine import step
from spark_2pc_sink.reference.coordinator.plans import AddPartitionsReply, EndMarker, Reply
from spark_2pc_sink.reference.coordinator.states import Settings
from spark_2pc_sink.reference.handlers.partitions import PartitionHandlers
from spark_2pc_sink.reference.handlers.produce import ProduceHandlers
from spark_2pc_sink.reference.handlers.transactions import TransactionHandlers
from spark_2pc_sink.reference.log.partition_log import LogSettings, PartitionLog
from spark_2pc_sink.reference.metadata.catalog_state import Topic
from spark_2pc_sink.reference.protocol import RequestContext, handlers_of
from spark_2pc_sink.reference.storage.files import MemoryStore
from spark_2pc_sink.reference.transactions.service import MarkerWriter, Verification
from spark_2pc_sink.wire.api_versions import Api
from tests.unit.fakes.coordinator import FakeCoordinator, FakeTransaction
from tests.unit.fakes.wire import STATE_TOPIC, Listener, Received, Step, Topology, serve_it
from tests.unit.reference.coordinator.access import AccessBy

#: Clocks of tests need not be right.
_SETTINGS = LogSettings(timestamp_after_max_ms=1 << 62)


@dataclass
class FakeProducer:
    """One producer as a partition is to show it."""

    producer_id: int
    epoch: int = 0
    start_offset: int = -1
    coordinator_epoch: int = -1
    last_timestamp_ms: int = 0


class FakeLog:
    """The log of one partition.

    Args:
        leader: the broker that leads it; -1 for none. All brokers share the records.

    Attributes:
        shown: the producers that DescribeProducers shows in place of those of the log.
        stable_offset: the last stable offset that ListOffsets shows in place of that of the log.
    """

    def __init__(self, partition: TopicPartition, leader: int) -> None:
        self.leader = leader
        self.shown: list[FakeProducer] | None = None
        self.stable_offset: int | None = None
        self._partition = partition
        self._store = MemoryStore()
        self.log = self._opened()

    @property
    def next_offset(self) -> int:
        return self.log.end_offset

    @property
    def batches(self) -> list[tuple[tuple[int, int], int]]:
        """Pair and base sequence of each batch of records, oldest first."""
        headers = dict.fromkeys(record.batch for record in self.log.records() if not record.batch.control)
        return [((each.producer_id, each.producer_epoch), each.base_sequence) for each in headers]

    @property
    def values(self) -> int:
        return sum(not record.batch.control for record in self.log.records())

    def stamp_appends(self) -> None:
        self.log.settings = replace(self.log.settings, log_append_time=True)

    def put(self, batch: bytes) -> int:
        """Write a batch at the end, as if it had always stood there: the leader reads its log anew; its offset."""
        offset = self.next_offset
        self._store.segment(0).append([struct.pack(">q", offset) + bytes(batch[8:])])
        self.log = self._opened()
        return offset

    def _opened(self) -> PartitionLog:
        return PartitionLog.open(
            self._store,
            topic=self._partition.topic,
            partition=self._partition.partition,
            leader_epoch=0,
            settings=_SETTINGS,
        )


_START_MS: Final = 1_700_000_000_000
_FIRST_PRODUCER_ID: Final = 7
#: Where an answer has the codes of its partitions.
_CODES: Final = {
    Api.PRODUCE: ("responses", "partition_responses"),
    Api.FETCH: ("responses", "partitions"),
    Api.LIST_OFFSETS: ("topics", "partitions"),
    Api.DESCRIBE_PRODUCERS: ("topics", "partitions"),
}
_TRANSACTIONAL: Final = frozenset(
    {Api.INIT_PRODUCER_ID, Api.ADD_PARTITIONS_TO_TXN, Api.END_TXN, Api.DESCRIBE_TRANSACTIONS}
)


#: No transactional id may be described.
HIDDEN_IDS: Final = AccessBy(lambda _operation, kind, _name: kind is not Resource.TRANSACTIONAL_ID)


class FakeCluster(Topology, FakeCoordinator):
    """Some brokers, their partitions, and the coordinators of transactional ids.

    Args:
        brokers: how many; broker n leads the partitions n, n + brokers and so on of each topic.
        transaction_version: finalized feature transaction.version; None where the feature is unknown.
        begun: the pair of the usual id, which is at rest; None where nobody knows the id.

    Attributes:
        added: the partitions that were added to transactions.
        markers: what WriteTxnMarkers has brought: broker, version, partition, marker.
    """

    def __init__(
        self,
        *,
        brokers: int = 1,
        transaction_version: int | None = 2,
        topics: dict[str, int] | None = None,
        begun: ProducerIdAndEpoch | None = None,
    ) -> None:
        FakeCoordinator.__init__(
            self, Settings(transaction_version=transaction_version or 0), first_producer_id=_FIRST_PRODUCER_ID
        )
        Topology.__init__(self, transaction_version, [Listener(node_id, self.respond) for node_id in range(brokers)])
        self.now_ms = _START_MS
        self.lock = threading.Lock()
        self.received: list[Received] = []
        self.added: set[TopicPartition] = set()
        self.markers: list[tuple[int, int, TopicPartition, EndMarker]] = []
        self.access: Any = FULL_ACCESS
        self.partitions = {
            (partition := TopicPartition(name, index)): FakeLog(partition, index % brokers)
            for name, count in (topics or {"t": 2}).items()
            for index in range(count)
        }
        self._state_log = FakeLog(TopicPartition(STATE_TOPIC, 0), 0)
        self._refusal = 0
        self._serving: Received | None = None
        self._loop = asyncio.new_event_loop()
        self._scripts: dict[int, deque[Step]] = {}
        reference: Any = self
        families = (
            ProduceHandlers(reference, Verification(reference, BrokerProperties), now_ms=self._now_ms),
            PartitionHandlers(reference),
            TransactionHandlers(reference, reference, reference, now_ms=self._now_ms),
        )
        self._handlers: dict[int, Any] = {api: each for family in families for api, each in handlers_of(family).items()}
        if begun is not None:
            self.know(FakeTransaction(begun.producer_id, begun.epoch, state="Empty", start_time_ms=-1))

    # --- what a test asks, and does to it ------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """Of the usual id; -1 where nobody knows it."""
        found = self.metadata()
        return -1 if found is None else found.producer_epoch

    @property
    def id_state(self) -> str:
        self.drain()
        found = self.metadata()
        return "" if found is None else found.state.label

    def show(self, producers: Mapping[TopicPartition, list[FakeProducer]]) -> None:
        """Let DescribeProducers show these producers, and none elsewhere."""
        for partition, log in self.partitions.items():
            log.shown = list(producers.get(partition, ()))

    def script(self, api: Api, *steps: Step) -> None:
        """Put steps behind those that the API's script still has."""
        self._scripts.setdefault(api, deque()).extend(steps)

    def end_scripts(self) -> None:
        self._scripts.clear()

    def of(self, api: Api) -> list[Received]:
        """The requests of one API so far."""
        with self.lock:
            return [request for request in self.received if request.api == api]

    def close(self) -> None:
        for broker in self.brokers:
            broker.stop()
        self._loop.close()

    # --- requests ------------------------------------------------------------------------------------------------

    def respond(self, received: Received) -> Any:
        """The response to a request, by script or by behaviour; None for silence."""
        with self.lock:
            self.received.append(received)
            script = self._scripts.get(received.api)
            scripted = script.popleft() if script else serve_it
            return scripted(received, lambda code: self._serve(received, code))

    def _serve(self, received: Received, code: int) -> Any:
        own = self.topology.get(received.api)
        if own is not None:
            return own(received, code)
        api = Api(received.api)
        self._refusal = code or self._elsewhere(api, received)
        self._serving = received
        if api in (Api.DESCRIBE_TRANSACTIONS, Api.LIST_TRANSACTIONS) and not self._refusal:
            self.drain()
        if api is Api.FETCH:
            self._shorten(received.body)
        context = RequestContext(version=received.version, access=self.access)
        response: Any = self._loop.run_until_complete(self._handlers[api].function(context, received.body))
        if self._refusal and api in _CODES:
            topics, partitions = _CODES[api]
            for topic in getattr(response, topics):
                for partition in getattr(topic, partitions):
                    partition.error_code = self._refusal
        elif self._refusal and api is Api.DESCRIBE_TRANSACTIONS:
            names = [row.transactional_id for row in response.transaction_states]
            kind = response.TransactionState
            response.transaction_states = [kind(error_code=self._refusal, transactional_id=name) for name in names]
        elif self._refusal and api is Api.LIST_TRANSACTIONS:
            response.error_code, response.transaction_states = self._refusal, []
        elif not self._refusal:
            self._as_scripted(api, received, response)
        return response

    def _shorten(self, body: Any) -> None:
        """One batch for each answer, so that a reader has to come again; and no long polls."""
        body.max_wait_ms = 0
        for topic in body.topics:
            for partition in topic.partitions:
                partition.partition_max_bytes = 1

    def _elsewhere(self, api: Api, received: Received) -> int:
        """The code for who asks a broker that is not in charge."""
        if api in _TRANSACTIONAL:
            named = _transactional_id(api, received.body)
            # Whoever may not see the id is told so by any broker.
            here = self.coordinator_of(named) == received.node_id
            visible = self.access.allows(AclOperation.DESCRIBE, Resource.TRANSACTIONAL_ID, named)
            return Code.NONE if here or not visible else Code.NOT_COORDINATOR
        leaders = {self.leader(partition) for partition in _partitions(api, received.body)}
        return Code.NONE if leaders <= {received.node_id, None} else Code.NOT_LEADER_OR_FOLLOWER

    def _as_scripted(self, api: Api, received: Received, response: Any) -> None:
        """Put what is scripted in place of what is there."""
        if api is Api.LIST_TRANSACTIONS:
            response.transaction_states = [
                row
                for row in response.transaction_states
                if self.coordinator_of(row.transactional_id) == received.node_id
            ]
        for topic in response.topics if api in (Api.DESCRIBE_PRODUCERS, Api.LIST_OFFSETS) else ():
            for row in topic.partitions:
                log = self.partitions.get(TopicPartition(topic.name, row.partition_index))
                if log is None:
                    continue
                if api is Api.DESCRIBE_PRODUCERS and log.shown is not None:
                    row.active_producers = [_shown(row, each) for each in log.shown]
                elif api is Api.LIST_OFFSETS and log.stable_offset is not None and received.body.isolation_level:
                    row.offset = log.stable_offset

    # --- what the handlers of the reference broker need ------------------------------------------------------------

    def topic(self, name: str) -> Topic | None:
        """The catalog's: a topic by name."""
        indexes = [each.partition for each in self.partitions if each.topic == name]
        if name == STATE_TOPIC:
            indexes = list(range(len(self.state_partitions or ())))
        return Topic(name, uuid.UUID(int=0), max(indexes) + 1) if indexes else None

    def topic_by_id(self, _topic_id: uuid.UUID) -> Topic | None:
        """The catalog's: clients of these tests name topics by name."""
        return None

    def log(self, topic: str, partition: int) -> PartitionLog | None:
        """The catalog's: a log, unless nothing is to be carried out."""
        found = self._state_log if topic == STATE_TOPIC else self.partitions.get(TopicPartition(topic, partition))
        return None if found is None or self._refusal else found.log

    async def submit(self, event: Event) -> Reply:
        """The coordinator's: a request of a client."""
        if self._refusal:
            # Made of what the reply would be.
            refused = step(self.state, event, self.now_ms).reply
            assert refused is not None
            return refused.failed(self._refusal)
        reply = self.ask(event)
        if isinstance(reply, AddPartitionsReply):
            self.added |= {partition for partition, code in reply.results if code == Code.NONE}
        return reply

    def add(self, event: AddPartitionsToTxn) -> Reply:
        """The coordinator's: a question of a leader."""
        return self.ask(event)

    async def write(self, marker: EndMarker, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The marker writer's: what WriteTxnMarkers brings."""
        wanted = tuple(partitions)
        if self._refusal:
            return dict.fromkeys(wanted, self._refusal)
        assert self._serving is not None
        catalog: Any = self
        writer = MarkerWriter(catalog, on_group_marker=lambda *_: None, now_ms=self._now_ms)
        written = await writer.write(marker, wanted)
        for partition in wanted:
            self.markers.append((self._serving.node_id, self._serving.version, partition, marker))
            for shown in self.partitions[partition].shown or ():
                if shown.producer_id == marker.producer_id:
                    shown.start_offset = -1
        return written

    def write_marker(self, marker: EndMarker, partition: TopicPartition) -> int:
        found = self.partitions.get(partition)
        return Code.UNKNOWN_TOPIC_OR_PARTITION if found is None else found.log.append_marker(marker, now_ms=self.now_ms)

    def _now_ms(self) -> int:
        return self.now_ms


def _transactional_id(api: Api, body: Any) -> str:
    if api is Api.DESCRIBE_TRANSACTIONS:
        return str(body.transactional_ids[0])
    return str(body.v3_and_below_transactional_id if api is Api.ADD_PARTITIONS_TO_TXN else body.transactional_id)


def _partitions(api: Api, body: Any) -> Iterator[TopicPartition]:
    """The partitions that a request is about."""
    if api is Api.PRODUCE:
        yield from (
            TopicPartition(topic.name, each.index) for topic in body.topic_data for each in topic.partition_data
        )
    elif api is Api.FETCH:
        yield from (TopicPartition(topic.topic, each.partition) for topic in body.topics for each in topic.partitions)
    elif api is Api.LIST_OFFSETS:
        for topic in body.topics:
            yield from (TopicPartition(topic.name, each.partition_index) for each in topic.partitions)
    elif api is not Api.LIST_TRANSACTIONS:
        topics = body.topics if api is Api.DESCRIBE_PRODUCERS else [each for row in body.markers for each in row.topics]
        yield from (TopicPartition(topic.name, index) for topic in topics for index in topic.partition_indexes)


def _shown(row: Any, known: FakeProducer) -> Any:
    return row.ProducerState(
        producer_id=known.producer_id,
        producer_epoch=known.epoch,
        last_timestamp=known.last_timestamp_ms,
        coordinator_epoch=known.coordinator_epoch,
        current_txn_start_offset=known.start_offset,
    )


@contextmanager
def fake_cluster(**arguments: Any) -> Iterator[FakeCluster]:
    """A `FakeCluster` for a ``with`` block."""
    cluster = FakeCluster(**arguments)
    try:
        yield cluster
    finally:
        cluster.close()
