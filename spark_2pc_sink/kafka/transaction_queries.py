"""Queries to brokers about transactions: to every coordinator, and to each partition's leader; and their results.

Incomplete answers are errors here. "No coordinator knows this producer" is the reason for aborting a transaction,
so it is only returned if every partition of ``__transaction_state`` had a leader that answered, none of them moved
in the meantime, and we may describe every transactional id.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from spark_2pc_sink.clock import Deadline, now_ms
from spark_2pc_sink.codes import Code
from spark_2pc_sink.ids import TIMEOUT_NEVER_MS, ProducerIdAndEpoch, TopicPartition, TransactionState
from spark_2pc_sink.kafka.cluster import Cluster
from spark_2pc_sink.kafka.connection_failures import NodeUnavailableError
from spark_2pc_sink.kafka.coordinator_calls import CoordinatorCalls
from spark_2pc_sink.kafka.error_policy import COORDINATOR_MOVED, LEADER_MOVED, kafka_error
from spark_2pc_sink.options.settings import refused
from spark_2pc_sink.plural import counted
from spark_2pc_sink.wire import messages
from spark_2pc_sink.wire.api_versions import Api
from spark_2pc_sink.wire.messages import KafkaPart, KafkaResponse, describe_error


@dataclass(frozen=True)
class ListFilter:
    """Which transactional ids to list; all given conditions must match, and an empty one matches all.

    Args:
        states: Kafka's names, such as Ongoing or PrepareCommit.
        running_longer_than_ms: only transactions that began longer ago; None or a negative number for all (KIP-994).
            An id without a start time, because no transaction is open, passes.
        transactional_id_pattern: an RE2 expression for the whole id; None or '' for all (KIP-1152).
        broker_id: only ids coordinated by this broker; other brokers are not asked; None for all (KIP-664).
    """

    states: tuple[str, ...] = ()
    producer_ids: tuple[int, ...] = ()
    running_longer_than_ms: int | None = None
    transactional_id_pattern: str | None = None
    broker_id: int | None = None


@dataclass(frozen=True, order=True)
class TransactionListing:
    """One transactional id, as listed by its coordinator."""

    transactional_id: str
    coordinator: int
    producer_id: int
    state: str


@dataclass(frozen=True)
class TransactionDetails:
    """One transactional id, as described by its coordinator.

    Args:
        coordinator: the broker.
        producer_id, producer_epoch: the pair; -1 while an id is being created.
        state: Kafka's name of the state.
        timeout_ms: 2147483647 if transactions never time out (KIP-939).
        start_time_ms: when the current or the last transaction began; None if there was none.
        duration_ms: time since then, even if it has ended.
        partitions: partitions without an end marker.
    """

    coordinator: int
    transactional_id: str
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    start_time_ms: int | None
    duration_ms: int | None
    partitions: tuple[TopicPartition, ...]

    @property
    def two_phase_commit(self) -> bool:
        """True if transactions of this id never time out."""
        return self.timeout_ms == TIMEOUT_NEVER_MS


@dataclass(frozen=True)
class ProducerDetails:
    """One producer remembered by a partition.

    Args:
        coordinator_epoch: epoch in the last end marker, -1 if there was none.
        last_sequence: -1 if no data batch is remembered.
        last_timestamp_ms: timestamp set by the producer for its last record, or that of its last end marker.
        start_offset: first offset of its open transaction; None if none is open.
    """

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    start_offset: int | None


@dataclass(frozen=True)
class OpenTransaction:
    """A transaction that is open in a partition, according to the partition's leader."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int

    @property
    def where(self) -> TopicPartition:
        """The partition with its topic."""
        return TopicPartition(self.topic, self.partition)

    @property
    def identity(self) -> tuple[TopicPartition, int, int, int]:
        """Unique among open transactions; also the sort order of results."""
        return self.where, self.start_offset, self.producer_id, self.producer_epoch


@dataclass(frozen=True)
class HangingTransaction(OpenTransaction):
    """A transaction that is open in a partition but that no coordinator will end.

    Args:
        last_timestamp_ms: timestamp of its last record.
        duration_ms: time since then.
        reason: why no coordinator will end it.
    """

    last_timestamp_ms: int
    duration_ms: int
    reason: str


@dataclass(frozen=True)
class AbortedOpenTransaction(OpenTransaction):
    """A hanging transaction that was ended.

    Args:
        marker_written: False if the answer to the marker was lost, and the transaction was then found ended.
        reason: why it was hanging.
    """

    marker_written: bool
    reason: str


@dataclass(frozen=True)
class TerminatedTransaction:
    """A fenced transactional id; its coordinator aborted its open transaction, if there was one.

    Args:
        state_before: the transaction's previous state.
        producer_id, producer_epoch: the new pair, which is unused.
        timeout_ms: the coordinator's stored transaction timeout, until the owner takes over the id again.
        warnings: what the operator must know or do.
    """

    transactional_id: str
    state_before: str
    partitions_before: tuple[TopicPartition, ...]
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    warnings: tuple[str, ...]


#: Partitions per DescribeProducers round, to bound request sizes; as in Kafka's own tool.
PARTITIONS_PER_ROUND_MAX: Final = 500
_TRANSACTION_STATE_TOPIC: Final = "__transaction_state"
#: States of an open transaction, as named by ListTransactions.
_OPEN_STATES: Final = (
    TransactionState.ONGOING.value,
    TransactionState.PREPARE_COMMIT.value,
    TransactionState.PREPARE_ABORT.value,
)
#: The last version of InitProducerId without enable2Pc and keepPreparedTxn.
_PLAIN_INIT_VERSION: Final = messages.TWO_PHASE_COMMIT_VERSION - 1


class TransactionQueries:
    """Queries about transactions, each repeated until the answer is complete or ``max_block_ms`` has passed."""

    def __init__(self, cluster: Cluster, now_ms: Callable[[], int] = now_ms) -> None:
        self._cluster = cluster
        self.now_ms = now_ms

    @property
    def deadline_ms(self) -> int:
        return self._cluster.options.max_block_ms

    def listings(self, wanted: ListFilter) -> tuple[TransactionListing, ...]:
        """The transactional ids of every broker, or of the requested one, that we may describe (DESCRIBE)."""
        deadline = self._cluster.deadline()
        self._cluster.refresh((), deadline)
        brokers = self._cluster.node_ids(deadline) if wanted.broker_id is None else (wanted.broker_id,)
        return self._listings(brokers, wanted, deadline)

    def open_ids(self) -> list[str]:
        """The ids with open transactions that we may describe (DESCRIBE), sorted."""
        return [each.transactional_id for each in self.listings(ListFilter(states=_OPEN_STATES))]

    def details(self, transactional_id: str) -> TransactionDetails | None:
        """One transactional id, None if its coordinator does not know it."""
        deadline = self._cluster.deadline()
        found = CoordinatorCalls(self._cluster, transactional_id).describe(deadline)
        if found.state == TransactionState.UNKNOWN:
            return None
        return TransactionDetails(
            coordinator=self._cluster.coordinator(transactional_id, deadline),
            transactional_id=transactional_id,
            producer_id=-1 if found.producer is None else found.producer.producer_id,
            producer_epoch=-1 if found.producer is None else found.producer.epoch,
            state=found.state,
            timeout_ms=found.timeout_ms,
            start_time_ms=found.start_time_ms,
            duration_ms=None if found.start_time_ms is None else self.now_ms() - found.start_time_ms,
            partitions=found.partitions,
        )

    def owners(self, producer_ids: Sequence[int]) -> dict[int, str]:
        """The transactional id of each producer id. Missing ones have none, for certain: no id is hidden from us."""
        deadline = self._cluster.deadline()
        self._check_nothing_is_hidden(deadline)
        wanted = ListFilter(producer_ids=tuple(producer_ids))

        def attempt() -> dict[int, str]:
            before = self._coordinators(deadline)
            brokers = {*self._cluster.node_ids(deadline), *(leader for leader, _ in before.values())}
            rows = self._listings(sorted(brokers), wanted, deadline)
            if before != self._coordinators(deadline):
                raise NodeUnavailableError(f"partitions of {_TRANSACTION_STATE_TOPIC} moved during the requests")
            return {row.producer_id: row.transactional_id for row in rows}

        return self._cluster.until_answered("asking every transaction coordinator", attempt, deadline)

    def init_producer_id(self, transactional_id: str, *, timeout_ms: int) -> KafkaResponse:
        """Plain InitProducerId: abort an open transaction, and take the next pair; retried during the abort."""
        request = messages.init_producer_id_request(transactional_id, timeout_ms=timeout_ms)
        plain = request._replace(version_max=_PLAIN_INIT_VERSION)
        return CoordinatorCalls(self._cluster, transactional_id).ask(plain, self._cluster.deadline())

    def partitions(self, topic: str | None, broker_id: int | None) -> tuple[TopicPartition, ...]:
        """The partitions of a topic, or of every topic, including internal ones; those with a replica on a broker."""
        topics = self._topics(None if topic is None else [topic], self._cluster.deadline())
        for found in topics:
            if found.error_code != Code.NONE:
                raise kafka_error("Metadata", found.error_code, f"topic {found.name!r}")
        parts = ((found.name, part) for found in topics for part in found.partitions)
        chosen = ((name, part) for name, part in parts if broker_id is None or broker_id in part.replica_nodes)
        return tuple(sorted(TopicPartition(name, part.partition_index) for name, part in chosen))

    def producers(
        self, partitions: Iterable[TopicPartition], *, broker_id: int | None = None
    ) -> dict[TopicPartition, tuple[KafkaPart, ...]]:
        """The producers remembered by partitions at a broker, None for the leaders; omits missing partitions."""
        found: dict[TopicPartition, tuple[KafkaPart, ...]] = {}
        wanted = sorted(set(partitions))
        for first in range(0, len(wanted), PARTITIONS_PER_ROUND_MAX):
            found |= self._producers(wanted[first : first + PARTITIONS_PER_ROUND_MAX], broker_id)
        return found

    def write_abort_marker(
        self, partition: TopicPartition, producer: ProducerIdAndEpoch, *, coordinator_epoch: int
    ) -> int | None:
        """Send one ABORT marker, once, to the leader; returns its code, or None if it gave no answer."""
        deadline = self._cluster.deadline()
        try:
            node_id = self._brokers_of([partition], None, deadline).get(partition)
            if node_id is None:
                return None
            request = messages.write_txn_markers_request(producer, partition, coordinator_epoch=coordinator_epoch)
            response = self._cluster.request(node_id, request, deadline)
        except NodeUnavailableError:
            return None
        written = {marker.producer_id: messages.by_partition(marker) for marker in response.markers}
        answer = written.get(producer.producer_id, {}).get(partition)
        return int(Code.UNKNOWN_SERVER_ERROR if answer is None else answer.error_code)

    def _listings(
        self, brokers: Iterable[int], wanted: ListFilter, deadline: Deadline
    ) -> tuple[TransactionListing, ...]:
        return tuple(
            sorted(
                TransactionListing(row.transactional_id, node_id, row.producer_id, row.transaction_state)
                for node_id in brokers
                for row in self._listed_by(node_id, wanted, deadline).transaction_states
            )
        )

    def _listed_by(self, node_id: int, wanted: ListFilter, deadline: Deadline) -> KafkaResponse:
        longer_than_ms = wanted.running_longer_than_ms
        request = messages.list_transactions_request(
            states=wanted.states,
            producer_ids=wanted.producer_ids,
            running_longer_than_ms=-1 if longer_than_ms is None else max(-1, longer_than_ms),
            transactional_id_pattern=wanted.transactional_id_pattern or None,
        )

        def attempt() -> KafkaResponse:
            reply = self._cluster.request(node_id, request, deadline)
            if reply.error_code in COORDINATOR_MOVED:
                raise NodeUnavailableError(f"broker {node_id} answered {describe_error(reply.error_code)}")
            _check_listing(reply, wanted)
            return reply

        return self._cluster.until_answered(f"{Api.LIST_TRANSACTIONS.name} at broker {node_id}", attempt, deadline)

    def _check_nothing_is_hidden(self, deadline: Deadline) -> None:
        """Describe an id that does not exist: without DESCRIBE on all ids the answer is 53, else "unknown"."""
        # ListTransactions silently omits ids that we may not describe, so a missing id would prove nothing.
        unknown_id = f"spark-2pc-no-such-id-{secrets.token_hex(8)}"
        response = self._cluster.call(messages.describe_transactions_request([unknown_id]), deadline)
        code = messages.described(response, unknown_id).error_code
        if code == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            raise kafka_error(
                "DescribeTransactions",
                code,
                "coordinators hide the ids that may not be described, so no transaction can be shown to be unknown to "
                "all of them; grant DESCRIBE on every transactional id ('*')",
            )

    def _coordinators(self, deadline: Deadline) -> Mapping[int, tuple[int, int]]:
        """Leader and leader epoch of each transaction log partition; empty before the first transaction."""

        def attempt() -> Mapping[int, tuple[int, int]]:
            (topic,) = self._topics([_TRANSACTION_STATE_TOPIC], deadline)
            if topic.error_code == Code.UNKNOWN_TOPIC_OR_PARTITION:
                return {}
            if topic.error_code != Code.NONE:
                raise kafka_error("Metadata", topic.error_code, f"topic {topic.name!r}")
            without = [part.partition_index for part in topic.partitions if part.leader_id < 0]
            if without:
                raise NodeUnavailableError(
                    f"partitions {without} of {topic.name} have no leader, so their transactions are not visible"
                )
            return {part.partition_index: (part.leader_id, part.leader_epoch) for part in topic.partitions}

        return self._cluster.until_answered("finding every transaction coordinator", attempt, deadline)

    def _topics(self, names: Sequence[str] | None, deadline: Deadline) -> tuple[KafkaPart, ...]:
        return tuple(self._cluster.call(messages.metadata_request(names), deadline).topics)

    def _producers(
        self, partitions: Sequence[TopicPartition], broker_id: int | None
    ) -> dict[TopicPartition, tuple[KafkaPart, ...]]:
        """One round: ask, and retry partitions whose leader has moved."""
        found: dict[TopicPartition, tuple[KafkaPart, ...]] = {}
        deadline = self._cluster.deadline()

        def attempt() -> dict[TopicPartition, tuple[KafkaPart, ...]]:
            where = self._brokers_of([key for key in partitions if key not in found], broker_id, deadline)
            reason = "no leader is known"
            requests = {
                node_id: messages.describe_producers_request(key for key, node in where.items() if node == node_id)
                for node_id in {node for node in where.values() if node is not None}
            }
            # The partitions of a broker that does not answer are retried at their new leaders.
            for node_id, response in self._cluster.request_at_once(requests, deadline).items():
                for partition, answer in messages.by_partition(response).items():
                    if answer.error_code == Code.NONE:
                        found[partition] = tuple(answer.active_producers)
                    elif answer.error_code not in LEADER_MOVED:
                        raise kafka_error("DescribeProducers", answer.error_code, f"partition {partition}")
                    else:
                        reason = f"broker {node_id} answered {describe_error(answer.error_code)}"
            missing = sorted(where.keys() - found.keys())
            if missing:
                raise NodeUnavailableError(f"{missing[0]} and {len(missing) - 1} more: {reason}")
            return found

        return self._cluster.until_answered(
            f"{Api.DESCRIBE_PRODUCERS.name} of {counted(len(partitions), 'partition')}", attempt, deadline
        )

    def _brokers_of(
        self, partitions: Sequence[TopicPartition], broker_id: int | None, deadline: Deadline
    ) -> dict[TopicPartition, int | None]:
        """The broker for each existing partition, None while it has no leader; others are omitted."""
        wanted = set(partitions)
        found: dict[TopicPartition, int | None] = {}
        for topic in self._cluster.refresh({partition.topic for partition in wanted}, deadline).topics:
            if topic.error_code not in {Code.NONE, Code.UNKNOWN_TOPIC_OR_PARTITION}:
                raise kafka_error("Metadata", topic.error_code, f"topic {topic.name!r}")
            for part in topic.partitions:
                key = TopicPartition(topic.name, part.partition_index)
                if key in wanted and (broker_id is None or broker_id in part.replica_nodes):
                    leader_id = part.leader_id if part.leader_id >= 0 else None
                    found[key] = leader_id if broker_id is None else broker_id
        return found


def _check_listing(reply: KafkaResponse, wanted: ListFilter) -> None:
    if reply.error_code == Code.INVALID_REGULAR_EXPRESSION:
        rule = "must be a regular expression in RE2 syntax that matches the whole id"
        remedy = "for example, write 'orders-.*' for all ids that begin with orders-"
        raise refused("transactional_id_pattern", wanted.transactional_id_pattern, rule, remedy)
    if reply.error_code != Code.NONE:
        raise kafka_error("ListTransactions", reply.error_code)
    if reply.unknown_state_filters:
        remedy = "use Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit or CompleteAbort"
        raise refused("state", ", ".join(reply.unknown_state_filters), "must be a state that the broker knows", remedy)
