"""A fake cluster that also answers what the tool for transactions asks: several coordinators, open transactions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from kafka.protocol.admin import DescribeProducersResponse, DescribeTransactionsResponse, ListTransactionsResponse
from kafka.protocol.metadata import FindCoordinatorResponse, MetadataResponse
from kafka.protocol.producer import InitProducerIdResponse, WriteTxnMarkersResponse

from spark_2pc_sink.codes import Code
from spark_2pc_sink.ids import TopicPartition
from tests.unit.producer.fake_broker import FakeCluster
from tests.unit.producer.fake_partitions import Received

STATE_TOPIC = "__transaction_state"
STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead")


@dataclass
class FakeTransaction:
    """One transactional id at its coordinator."""

    producer_id: int
    epoch: int = 0
    state: str = "Ongoing"
    coordinator: int = 0
    partitions: tuple[TopicPartition, ...] = ()
    timeout_ms: int = 60_000
    start_time_ms: int = 1_000


@dataclass
class FakeProducer:
    """One producer as a partition remembers it."""

    producer_id: int
    epoch: int = 0
    start_offset: int = -1
    coordinator_epoch: int = -1
    last_timestamp_ms: int = 0
    last_sequence: int = 0


@dataclass
class Marker:
    """One marker that was written."""

    node_id: int
    version: int
    partition: TopicPartition
    producer_id: int
    epoch: int
    coordinator_epoch: int
    commit: bool


@dataclass
class View:
    """The state of the cluster; tests change it."""

    transactions: dict[str, FakeTransaction] = field(default_factory=dict)
    producers: dict[TopicPartition, list[FakeProducer]] = field(default_factory=dict)
    markers: list[Marker] = field(default_factory=list)
    hidden: bool = False
    #: Leader and leader epoch of each partition of the transaction log; None where it has not been made.
    state_partitions: list[tuple[int, int]] | None = field(default_factory=lambda: [(0, 0)])
    topic_error: int = 0
    #: The brokers that metadata shows; None for all.
    shown: set[int] | None = None
    #: DescribeTransactions answers about nothing.
    mute: bool = False


class FakeTransactionCluster(FakeCluster):
    """See the module's docstring. Every broker has a copy of the partitions that it leads, and no other has."""

    def __init__(self, **arguments: Any) -> None:
        self.view = View()
        super().__init__(**arguments)

    def _serve_metadata(self, received: Received, code: int) -> Any:
        topics = None if received.body.topics is None else {wanted.name for wanted in received.body.topics}
        everything = {key.topic for key in self.partitions} | ({STATE_TOPIC} if self.view.state_partitions else set())
        return MetadataResponse(
            version=received.version,
            brokers=[
                MetadataResponse.MetadataResponseBroker(
                    node_id=broker.node_id, host="127.0.0.1", port=broker.port, rack=None
                )
                for broker in self.brokers
                if self.view.shown is None or broker.node_id in self.view.shown
            ],
            cluster_id="fake-cluster",
            controller_id=0,
            topics=[self._topic(name, code) for name in sorted(everything if topics is None else topics)],
        )

    def _topic(self, name: str, code: int) -> Any:
        topic = MetadataResponse.MetadataResponseTopic
        leaders = (
            dict(enumerate(self.view.state_partitions or ()))
            if name == STATE_TOPIC
            else {key.partition: (log.leader, 0) for key, log in self.partitions.items() if key.topic == name}
        )
        parts = [
            topic.MetadataResponsePartition(
                error_code=0 if leader >= 0 else Code.LEADER_NOT_AVAILABLE,
                partition_index=index,
                leader_id=leader,
                leader_epoch=epoch,
                replica_nodes=[leader] if leader >= 0 else [],
                isr_nodes=[],
            )
            for index, (leader, epoch) in leaders.items()
        ]
        missing = Code.NONE if parts else Code.UNKNOWN_TOPIC_OR_PARTITION
        return topic(error_code=code or self.view.topic_error or missing, name=name, partitions=parts)

    def _serve_find_coordinator(self, received: Received, code: int) -> Any:
        key = received.body.coordinator_keys[0]
        known = self.view.transactions.get(key)
        node = 0 if known is None else known.coordinator
        found = FindCoordinatorResponse.Coordinator(
            key=key,
            node_id=node,
            host="127.0.0.1",
            port=self.brokers[node].port,
            error_code=code,
            error_message=None,
        )
        return FindCoordinatorResponse(version=received.version, coordinators=[found])

    def _serve_list_transactions(self, received: Received, code: int) -> Any:
        body = received.body
        pattern = (body.transactional_id_pattern if received.version >= 2 else None) or ".*"
        if "[" in pattern:
            code = Code.INVALID_REGULAR_EXPRESSION
        unknown = [state for state in body.state_filters if state not in STATES]
        state = ListTransactionsResponse.TransactionState
        rows = [
            state(transactional_id=name, producer_id=known.producer_id, transaction_state=known.state)
            for name, known in self.view.transactions.items()
            if known.coordinator == received.node_id
            and not self.view.hidden
            and (not body.producer_id_filters or known.producer_id in body.producer_id_filters)
            and (not body.state_filters or known.state in body.state_filters)
            and re.fullmatch(pattern, name)
        ]
        return ListTransactionsResponse(
            version=received.version,
            error_code=code,
            unknown_state_filters=unknown,
            transaction_states=[] if code else rows,
        )

    def _serve_describe_transactions(self, received: Received, code: int) -> Any:
        name = received.body.transactional_ids[0]
        known = self.view.transactions.get(name)
        if self.view.hidden:
            code = Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        elif known is None:
            code = code or Code.TRANSACTIONAL_ID_NOT_FOUND
        shown = known or FakeTransaction(-1, -1, state="", start_time_ms=-1)
        state = DescribeTransactionsResponse.TransactionState
        described = state(
            error_code=code,
            transactional_id=name,
            transaction_state=shown.state,
            transaction_timeout_ms=shown.timeout_ms,
            transaction_start_time_ms=shown.start_time_ms,
            producer_id=shown.producer_id,
            producer_epoch=shown.epoch,
            topics=[state.TopicData(topic=key.topic, partitions=[key.partition]) for key in shown.partitions],
        )
        return DescribeTransactionsResponse(version=0, transaction_states=[] if self.view.mute else [described])

    def _serve_describe_producers(self, received: Received, code: int) -> Any:
        topic_response = DescribeProducersResponse.TopicResponse
        part = topic_response.PartitionResponse
        topics = []
        for topic in received.body.topics:
            parts = []
            for index in topic.partition_indexes:
                key = TopicPartition(topic.name, index)
                elsewhere = self._leader(key) != received.node_id
                parts.append(
                    part(
                        partition_index=index,
                        error_code=code or (Code.NOT_LEADER_OR_FOLLOWER if elsewhere else 0),
                        error_message=None,
                        active_producers=[
                            part.ProducerState(
                                producer_id=known.producer_id,
                                producer_epoch=known.epoch,
                                last_sequence=known.last_sequence,
                                last_timestamp=known.last_timestamp_ms,
                                coordinator_epoch=known.coordinator_epoch,
                                current_txn_start_offset=known.start_offset,
                            )
                            for known in self.view.producers.get(key, [])
                        ],
                    )
                )
            topics.append(topic_response(name=topic.name, partitions=parts))
        return DescribeProducersResponse(version=0, topics=topics)

    def _leader(self, key: TopicPartition) -> int:
        if key.topic == STATE_TOPIC:
            return (self.view.state_partitions or [])[key.partition][0]
        return self.partitions[key].leader

    def _serve_init_producer_id(self, received: Received, code: int) -> Any:
        known = self.view.transactions[received.body.transactional_id]
        if not code:
            known.epoch, known.state, known.partitions = known.epoch + 1, "Empty", ()
            known.timeout_ms = received.body.transaction_timeout_ms
        return InitProducerIdResponse(
            version=received.version,
            error_code=code,
            producer_id=-1 if code else known.producer_id,
            producer_epoch=-1 if code else known.epoch,
        )

    def _serve_write_txn_markers(self, received: Received, code: int) -> Any:
        (asked,) = received.body.markers
        (topic,) = asked.topics
        (index,) = topic.partition_indexes
        key = TopicPartition(topic.name, index)
        if not code and self.partitions[key].leader != received.node_id:
            code = Code.NOT_LEADER_OR_FOLLOWER
        if not code:
            self.view.markers.append(
                Marker(
                    received.node_id,
                    received.version,
                    key,
                    asked.producer_id,
                    asked.producer_epoch,
                    asked.coordinator_epoch,
                    bool(asked.transaction_result),
                )
            )
            for known in self.view.producers.get(key, []):
                if known.producer_id == asked.producer_id:
                    known.start_offset = -1
        marker = WriteTxnMarkersResponse.WritableTxnMarkerResult
        answered = marker.WritableTxnMarkerTopicResult
        part = answered.WritableTxnMarkerPartitionResult
        return WriteTxnMarkersResponse(
            version=received.version,
            markers=[
                marker(
                    producer_id=asked.producer_id,
                    topics=[answered(name=key.topic, partitions=[part(partition_index=index, error_code=code)])],
                )
            ],
        )


@contextmanager
def fake_transactions(**arguments: Any) -> Iterator[FakeTransactionCluster]:
    """A `FakeTransactionCluster` for a ``with`` block."""
    cluster = FakeTransactionCluster(**arguments)
    try:
        yield cluster
    finally:
        cluster.close()


def properties_for(fake: FakeTransactionCluster, *, max_block_ms: int = 10_000) -> dict[str, str]:
    """Client properties of the cluster with short pauses, so that nothing waits for long."""
    return {
        "bootstrap.servers": fake.bootstrap,
        "retry.backoff.ms": "2",
        "retry.backoff.max.ms": "10",
        "reconnect.backoff.ms": "1",
        "reconnect.backoff.max.ms": "5",
        "request.timeout.ms": "5000",
        "max.block.ms": str(max_block_ms),
    }
