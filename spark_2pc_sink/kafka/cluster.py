"""Synchronous access to a Kafka cluster: brokers, topics, coordinators and leaders, with a deadline for every wait.

Metadata, coordinators and features are requested explicitly, because kafka-python's own refresh would create
topics, retry for ever, and hide why it failed.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from jdbc_state.sink_log import sink_log
from spark_2pc_sink.clock import Deadline
from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import KafkaError
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.kafka.broker_connections import AnswerLater, BrokerConnections, NodeId
from spark_2pc_sink.kafka.connection import API_VERSIONS
from spark_2pc_sink.kafka.connection_failures import NodeUnavailableError
from spark_2pc_sink.kafka.error_policy import LEADER_MOVED, kafka_error
from spark_2pc_sink.kafka.record_encoder import UNKNOWN_LIMITS, TopicLimits
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.wire import messages
from spark_2pc_sink.wire.api_versions import Api, ApiVersionsReply
from spark_2pc_sink.wire.framed_request import RequestTemplate
from spark_2pc_sink.wire.messages import ConfigResource, IsolationLevel, KafkaPart, KafkaResponse, describe_error

_log = sink_log(__name__)

#: Topics are never created by us, so a topic missing from several refreshes in a row does not exist. More than
#: one, because a broker learns of a new topic slightly later than the controller creates it.
UNKNOWN_TOPIC_REFRESHES_MAX: Final = 5
#: An answer to an older request is discarded: the level may have changed since.
_PREFETCH_AGE_S_MAX: Final = 1.0
_TOPIC_REFUSALS: Final = frozenset({Code.TOPIC_AUTHORIZATION_FAILED, Code.INVALID_TOPIC_EXCEPTION})


@dataclass(frozen=True)
class BrokerFeatures:
    """Identity and features of the cluster, as reported by one broker."""

    cluster_id: str
    #: The finalized level of the feature transaction.version, 0 if absent (KIP-1022).
    transaction_version: int
    #: Grows with the levels; -1 if the broker does not know it.
    epoch: int = -1


class Cluster(BrokerConnections):
    """A cluster's brokers, topics and coordinators. Connects at first use; `refresh` if a partition has no leader."""

    def __init__(self, options: KafkaOptions) -> None:
        super().__init__(options)
        self._metadata: KafkaResponse | None = None
        self._metadata_until_s = 0.0
        #: A broker has been unreachable since: its address may have changed.
        self._may_have_moved = False
        self.leaders: dict[TopicPartition, int] = {}
        self._topic_ids: dict[str, str] = {}
        self.coordinators: dict[str, int] = {}
        self._features: BrokerFeatures | None = None
        self._features_at_s = 0.0
        #: `prefetch_features`: the broker, what waits for its answer, and when it was asked.
        self._prefetched: tuple[int, AnswerLater, float] | None = None

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def features(self, *, age_ms_max: int | None = None) -> BrokerFeatures:
        """Cluster id and transaction.version, at most ``age_ms_max`` old; a broker's higher epoch wins (KIP-584)."""
        deadline = self.deadline()
        if age_ms_max and (fresh := self.fresh_features(age_ms_max)) is not None:
            return fresh
        known = self._features

        def attempt() -> BrokerFeatures:
            cluster_id = self._known(deadline).cluster_id or ""
            versions = self._take_prefetched()
            if versions is None:
                node_id = self.any_node(deadline)
                if age_ms_max is not None:
                    self._versions.pop(node_id, None)
                versions = self.api_versions(node_id, deadline)
            return BrokerFeatures(cluster_id, versions.transaction_version, versions.features_epoch)

        found = self.until_answered(Api.API_VERSIONS.name, attempt, deadline)
        self._features_at_s = time.monotonic()
        if known is not None and known.cluster_id == found.cluster_id and known.epoch > found.epoch:
            return known
        self._features = found
        return found

    def prefetch_features(self) -> None:
        """Send the request for `features`, used if called within a second; not if that requires a new connection."""
        # An earlier answer that nothing needed is discarded: the level may have changed since.
        if self._metadata is None or self._may_have_moved:
            return
        deadline = self.deadline()
        try:
            self._take_prefetched()
            node_id = self.any_node(deadline)
            answer = self.begin(node_id, API_VERSIONS, deadline)
        except NodeUnavailableError as error:
            _log.info("%s; will retry when the answer is needed", error)
            return
        if answer is not None:
            self._prefetched = node_id, answer, time.monotonic()

    def _take_prefetched(self) -> ApiVersionsReply | None:
        """The answer to `prefetch_features`; None if it was not called, or too long ago."""
        asked, self._prefetched = self._prefetched, None
        if asked is None:
            return None
        node_id, answer, at_s = asked
        versions = self._note_versions(node_id, answer())
        return versions if time.monotonic() - at_s < _PREFETCH_AGE_S_MAX else None

    def fresh_features(self, age_ms_max: int) -> BrokerFeatures | None:
        """Features reported within ``age_ms_max``; None if a new request is needed."""
        return self._features if time.monotonic() - self._features_at_s < age_ms_max / 1000 else None

    def forget_features(self) -> None:
        """Request versions and features again when next needed; a cluster may be up- or downgraded."""
        self._versions.clear()
        self._prefetched = None

    def call(self, request: RequestTemplate, deadline: Deadline, *, node_id: int | None = None) -> KafkaResponse:
        """Send a request until a broker answers, whatever the answer: this one, or any."""

        def attempt() -> KafkaResponse:
            asked = self.any_node(deadline) if node_id is None else node_id
            return self.request(asked, request, deadline)

        return self.until_answered(request.api.name, attempt, deadline)

    def node_ids(self, deadline: Deadline | None = None) -> tuple[int, ...]:
        return tuple(broker.node_id for broker in self._known(deadline or self.deadline()).brokers)

    def any_node(self, deadline: Deadline) -> int:
        return int(self.most_promising_first(self.node_ids(deadline))[0])

    def partition_counts(self, topics: Iterable[str]) -> dict[str, int]:
        """Each topic's number of partitions. One that does not exist is an UnknownTopicError, and is not created."""
        wanted = sorted(set(topics))
        found = self.existing_topics(wanted)
        missing = [topic for topic in wanted if topic not in found]
        if missing:
            servers = ",".join(self.options.bootstrap_servers)
            secured = "" if self.options.security_protocol == "PLAINTEXT" else " --command-config FILE"
            raise unknown_topic(
                missing[0],
                f"it does not exist at {servers}, and topics are never created automatically; correct the name, or "
                f"create it: kafka-topics.sh --bootstrap-server {servers} --create --topic {missing[0]}{secured}",
            )
        return {topic: len(found[topic].partitions) for topic in wanted}

    def existing_topics(self, topics: Iterable[str], deadline: Deadline | None = None) -> dict[str, KafkaPart]:
        """Those of ``topics`` that exist, by a new request. A topic is missing only after several such answers."""
        deadline = deadline or self.deadline()
        wanted = tuple(sorted(set(topics)))
        found: dict[str, KafkaPart] = {}
        for attempt in range(UNKNOWN_TOPIC_REFRESHES_MAX if wanted else 0):
            if attempt:
                deadline.pause()
            found = {topic.name: topic for topic in self.refresh(wanted, deadline).topics}
            if len(found) == len(wanted) and all(map(messages.topic_exists, found.values())):
                break
            for topic in found.values():
                if topic.error_code in _TOPIC_REFUSALS:
                    raise kafka_error("Metadata", topic.error_code, f"topic {topic.name!r}")
        for topic in found.values():
            if topic.error_code not in {Code.NONE, Code.UNKNOWN_TOPIC_OR_PARTITION}:
                raise kafka_error("Metadata", topic.error_code, f"topic {topic.name!r}")
        return {name: topic for name, topic in found.items() if messages.topic_exists(topic)}

    def topic_id(self, topic: str) -> str:
        """A topic's id in the newest answer about it; '' if the broker has none (KIP-516)."""
        return self._topic_ids.get(topic, "")

    def refresh(self, topics: Iterable[str], deadline: Deadline) -> KafkaResponse:
        wanted = tuple(sorted(set(topics)))
        verb = "connecting" if self._metadata is None else "connecting again"
        # Brokers silently close connections that use another protocol than the listener's.
        servers, protocol = ",".join(self.options.bootstrap_servers), self.options.security_protocol
        return self.until_answered(
            f"{verb} to bootstrap.servers={servers} with security.protocol={protocol}",
            lambda: self._refresh_from_any(wanted, deadline),
            deadline,
            remedy=_connection_remedy,
        )

    def coordinator(self, transactional_id: str, deadline: Deadline) -> int:
        """The coordinator of ``transactional_id``; NodeUnavailableError if the brokers currently know none."""
        known = self.coordinators.get(transactional_id)
        if known is not None:
            return known
        (found,) = self.find_coordinators([transactional_id], deadline).values()
        if isinstance(found, Exception):
            raise found
        return found

    def find_coordinators(
        self, transactional_ids: Sequence[str], deadline: Deadline
    ) -> dict[str, int | NodeUnavailableError | KafkaError]:
        """Request the brokers of these ids at once, and cache them; or errors: unknown now, or not to be described."""
        node_id = self.any_node(deadline)
        request = messages.find_coordinators_request(transactional_ids)
        answers = messages.coordinators_of(self.request(node_id, request, deadline), transactional_ids)
        found: dict[str, int | NodeUnavailableError | KafkaError] = {}
        for name, answer in answers.items():
            if answer.error_code == Code.NONE:
                found[name] = int(answer.node_id)
            elif (error := describe_error(answer.error_code)).retriable:
                found[name] = NodeUnavailableError(f"FindCoordinator answered {error}")
            else:
                found[name] = kafka_error("FindCoordinator", error.code, answer.error_message or f"id {name!r}")
        known = {name: answer for name, answer in found.items() if isinstance(answer, int)}
        if not {*known.values()} <= {*self.node_ids(deadline)}:
            self.refresh((), deadline)
        self.coordinators |= known
        return found

    def _known(self, deadline: Deadline) -> KafkaResponse:
        if self._metadata is None or time.monotonic() > self._metadata_until_s:
            return self.refresh((), deadline)
        if self._may_have_moved:
            self._may_have_moved = False
            try:
                return self._refresh_from_any((), deadline)
            except NodeUnavailableError as error:
                _log.info("%s; the known addresses stay", error)
        return self._metadata

    def _unavailable(self, node_id: NodeId, error: BaseException) -> Exception:
        self._may_have_moved = True
        return super()._unavailable(node_id, error)

    def _refresh_from_any(self, topics: tuple[str, ...], deadline: Deadline) -> KafkaResponse:
        """Ask the known brokers, the most promising first; then bootstrap.servers, in case all of them moved."""
        known = () if self._metadata is None else tuple(broker.node_id for broker in self._metadata.brokers)
        bootstrap = tuple(node_id for node_id in self._addresses if isinstance(node_id, str))
        *others, last = *self.most_promising_first(known), *self.most_promising_first(bootstrap)
        for node_id in others:
            try:
                return self._refresh_from(node_id, topics, deadline)
            except NodeUnavailableError as error:
                _log.info("%s; asking another broker", error)
        return self._refresh_from(last, topics, deadline)

    def _refresh_from(self, node_id: NodeId, topics: tuple[str, ...], deadline: Deadline) -> KafkaResponse:
        reply = self.request(node_id, messages.metadata_request(topics), deadline)
        if not reply.brokers:
            raise NodeUnavailableError(f"broker {node_id} does not list any brokers yet")
        self._metadata = reply
        bootstrap = {node: at for node, at in self._addresses.items() if isinstance(node, str)}
        self._addresses = bootstrap | {broker.node_id: (broker.host, broker.port) for broker in reply.brokers}
        self._metadata_until_s = time.monotonic() + self.options.metadata_max_age_ms / 1000
        if isinstance(node_id, str) and (connection := self._connections.pop(node_id, None)) is not None:
            connection.close(ConnectionResetError("no longer needed"))  # it has a node id now, which is connected to
        for topic in reply.topics:
            self._topic_ids[topic.name] = messages.topic_id(topic)
            for part in topic.partitions:
                key = TopicPartition(topic.name, part.partition_index)
                if part.leader_id >= 0:
                    self.leaders[key] = part.leader_id
                else:
                    self.leaders.pop(key, None)
        return reply


def _connection_remedy(last_error: str) -> str:
    if "ECONNREFUSED" in last_error:
        return "Start the brokers, or correct host and port in bootstrap.servers"
    if "DNS" in last_error or "getaddrinfo" in last_error:
        return "Correct the host in bootstrap.servers, or this machine's name service, which cannot resolve it"
    return (
        "This machine must reach a broker at bootstrap.servers, whose listener there must have the same "
        "security.protocol, and the addresses in advertised.listeners"
    )


def unknown_topic(topic: str, detail: str) -> KafkaError:
    return kafka_error("Metadata", Code.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic!r}: {detail}")


#: After these the leader is looked up again. The last one is returned right after a leader change: until the new
#: leader's high watermark has reached the start of its leadership it reports no end offset (KIP-207).
_ASKED_AGAIN: Final = LEADER_MOVED | {Code.FENCED_LEADER_EPOCH, Code.UNKNOWN_LEADER_EPOCH, Code.OFFSET_NOT_AVAILABLE}


class LeaderFinder:
    def __init__(self, cluster: Cluster, partition: TopicPartition) -> None:
        self._cluster = cluster
        self._partition = partition
        self._refreshes_in_vain = 0

    def find(self, deadline: Deadline) -> int | None:
        """The leader; None while there is none. UnknownTopicError if several refreshes in a row lack the partition."""
        leader = self._cluster.leaders.get(self._partition)
        if leader is not None:
            return leader
        topic, index = self._partition.topic, self._partition.partition
        found = next((item for item in self._cluster.refresh([topic], deadline).topics if item.name == topic), None)
        code = Code.UNKNOWN_TOPIC_OR_PARTITION if found is None else found.error_code
        exists = found is not None and any(part.partition_index == index for part in found.partitions)
        if exists or (describe_error(code).retriable and code != Code.UNKNOWN_TOPIC_OR_PARTITION):
            self._refreshes_in_vain = 0
            return self._cluster.leaders.get(self._partition)
        if code not in {Code.NONE, Code.UNKNOWN_TOPIC_OR_PARTITION}:
            raise kafka_error("Metadata", code, f"topic {topic!r}")
        self._refreshes_in_vain += 1
        if self._refreshes_in_vain >= UNKNOWN_TOPIC_REFRESHES_MAX:
            raise unknown_topic(
                topic, f"partition {index} does not exist; add partitions, or create the topic if it was deleted"
            )
        return None


def ask_leader(cluster: Cluster, partition: TopicPartition, request: RequestTemplate, deadline: Deadline) -> KafkaPart:
    """Ask the current leader of ``partition`` until it answers, and return its answer for the partition."""
    finder, api = LeaderFinder(cluster, partition), request.api.name

    def attempt() -> KafkaPart:
        node_id = finder.find(deadline)
        if node_id is None:
            raise NodeUnavailableError("the partition has no leader")
        try:
            found = messages.by_partition(cluster.request(node_id, request, deadline))[partition]
        except NodeUnavailableError:
            cluster.leaders.pop(partition, None)
            raise
        if found.error_code in _ASKED_AGAIN:
            cluster.leaders.pop(partition, None)
            raise NodeUnavailableError(f"broker {node_id} answered {describe_error(found.error_code)}")
        if found.error_code != Code.NONE:
            raise kafka_error(api.title().replace("_", ""), found.error_code, f"partition {partition}")
        return found

    unasked = "the deadline passed before its leader was asked"
    return cluster.until_answered(f"{api} for {partition}", attempt, deadline, otherwise=unasked)


def end_offset(
    cluster: Cluster,
    partition: TopicPartition,
    end: int,
    deadline: Deadline,
    *,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> int:
    """One past the last offset (LATEST), the first offset (EARLIEST), or the first record at or after a time.

    ``end`` is an `OffsetSpec`, or milliseconds since 1970, answered with -1 if every record is older. With isolation
    READ_COMMITTED it is the last stable offset, else the high watermark.
    """
    request = messages.list_offsets_request({partition: end}, isolation=isolation)
    return int(ask_leader(cluster, partition, request, deadline).offset)


def ask_leaders(
    cluster: Cluster,
    partitions: Collection[TopicPartition],
    request_for: Callable[[Sequence[TopicPartition]], RequestTemplate],
    deadline: Deadline,
) -> dict[TopicPartition, KafkaPart]:
    """The answers without errors of leaders, to one request each at the same time; unknown ones are looked up once."""
    unknown = {partition.topic for partition in partitions if partition not in cluster.leaders}
    if unknown:
        cluster.refresh(unknown, deadline)
    led: defaultdict[int, list[TopicPartition]] = defaultdict(list)
    for partition in partitions:
        leader = cluster.leaders.get(partition)
        if leader is not None:
            led[leader].append(partition)
    answers = cluster.request_at_once({leader: request_for(each) for leader, each in led.items()}, deadline)
    parts = (item for answer in answers.values() for item in messages.by_partition(answer).items())
    return {partition: part for partition, part in parts if part.error_code == Code.NONE}


def end_offsets(
    cluster: Cluster, partitions: Iterable[TopicPartition], end: int, deadline: Deadline
) -> dict[TopicPartition, int]:
    """`end_offset` for several partitions; those that `ask_leaders` omits are requested one by one."""
    wanted = list(partitions)
    found = ask_leaders(cluster, wanted, lambda led: messages.list_offsets_request(dict.fromkeys(led, end)), deadline)
    return {
        partition: found[partition].offset if partition in found else end_offset(cluster, partition, end, deadline)
        for partition in wanted
    }


def topic_limits(cluster: Cluster, topic: str, deadline: Deadline) -> TopicLimits:
    """A topic's limits, as far as our permissions show them."""
    sizes, timestamps, cleanup = ("max.message.bytes", "segment.bytes"), "message.timestamp.type", "cleanup.policy"
    request = messages.describe_configs_request(ConfigResource.TOPIC, topic, [*sizes, timestamps, cleanup])
    found = messages.config_values(cluster.call(request, deadline), topic)
    if found is None:
        return UNKNOWN_LIMITS
    given = [(int(value), name) for name in sizes if (value := found.get(name)) is not None]
    bytes_max, name = min(given, default=(None, ""))
    kind = found.get(timestamps)
    return TopicLimits(
        message_bytes_max=bytes_max,
        create_time=None if kind is None else kind == "CreateTime",
        bytes_limit=f"{name} of the topic is {bytes_max}",
        needs_keys="compact" in (found.get(cleanup) or ""),
    )
