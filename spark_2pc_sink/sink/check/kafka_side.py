"""Kafka's side of a check: requests to the brokers, and one empty transaction. Running jobs are not disturbed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import (
    AuthorizationError,
    ConfigurationError,
    KafkaError,
    KafkaTimeoutError,
    RemoteProtocolError,
)
from spark_2pc_sink.ids import ProducerIdAndEpoch, TopicPartition
from spark_2pc_sink.kafka.cluster import Cluster
from spark_2pc_sink.kafka.coordinator_calls import CoordinatorCalls
from spark_2pc_sink.kafka.transaction_client import TransactionClient
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.wire import messages, responses
from spark_2pc_sink.wire.framed_request import end_txn_request
from spark_2pc_sink.wire.messages import ConfigResource
from spark_2pc_sink.wire.responses import KafkaPart

#: Never allocated by a broker: producer ids are counted up from 0, in blocks (KIP-730).
_UNUSED_PRODUCER: Final = ProducerIdAndEpoch(2**63 - 1, 0)
#: How long the transaction of a check stays open if its process dies.
TRIAL_TIMEOUT_MS: Final = 60_000
#: EndTxn below the version that bumps epochs; accepted at every transaction.version.
_END_VERSION_MAX: Final = 4


def describe_topics(cluster: Cluster, topics: Iterable[str]) -> dict[str, KafkaPart]:
    """Partitions and replicas of topics, and the allowed operations (KIP-430).

    Returns:
        All requested topics; missing or undescribable ones have an error code.
    """
    answer = cluster.call(messages.metadata_request(topics, operations=True), cluster.deadline())
    return {topic.name: topic for topic in answer.topics}


def read_configs(
    cluster: Cluster, resource: ConfigResource, name: str, keys: Iterable[str]
) -> Mapping[str, str | None] | None:
    """Read some values of a topic, by its name, or of a broker, by its id.

    Returns:
        None if this client may not read them (no DESCRIBE_CONFIGS).
    """
    node_id = int(name) if resource is ConfigResource.BROKER else None
    request = messages.describe_configs_request(resource, name, keys)
    return responses.config_values(cluster.call(request, cluster.deadline(), node_id=node_id), name)


def may_write(cluster: Cluster, transactional_id: str) -> bool:
    """Whether this client has WRITE on a transactional id; a running producer of that id is not disturbed.

    It asks to end a transaction of a producer id that is never allocated. The coordinator checks the permission first,
    then rejects the id (``KafkaApis.handleEndTxnRequest``).

    Raises:
        KafkaError: this client may not look up the coordinator.
    """
    answer = CoordinatorCalls(cluster, transactional_id).ask(
        end_txn_request(transactional_id, _UNUSED_PRODUCER, commit=False),
        cluster.deadline(),
        version_max=_END_VERSION_MAX,
    )
    return bool(answer.error_code != Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)


def refused_topics(cluster: Cluster, transactional_id: str, topics: Iterable[str]) -> dict[str, str]:
    """Topics that reject transactions, with reasons: begins an empty transaction on a partition of each and aborts it.

    Only markers are written to these partitions. Two-phase commit is not requested, so a transaction left open ends by
    its timeout.

    Args:
        cluster: the cluster.
        transactional_id: must be unused, because its producer would be fenced.
        topics: topics that this client may write.

    Raises:
        AuthorizationError: this client may not write the transactional id.
        ConfigurationError: the transactional id is too long, or the brokers do not allow `TRIAL_TIMEOUT_MS`.
        KafkaError: the transaction cannot be begun.
    """
    options = replace(cluster.options, transaction_timeout_ms=TRIAL_TIMEOUT_MS)
    client = TransactionClient(cluster, transactional_id, options, two_phase_commit=False)
    producer = client.usable_producer().producer
    refused = {}
    for topic in topics:
        try:
            client.add_partitions(producer, [TopicPartition(topic, 0)])
        except KafkaError as error:
            refused[topic] = str(error)
    client.end(producer, commit=False)
    return refused


MAX_TIMEOUT: Final = "transaction.max.timeout.ms"
TWO_PHASE: Final = "transaction.two.phase.commit.enable"
MIN_INSYNC: Final = "min.insync.replicas"
UNCLEAN: Final = "unclean.leader.election.enable"
MESSAGE_BYTES: Final = "max.message.bytes"
CLEANUP: Final = "cleanup.policy"
#: True for a topic without its own log (KIP-1150), as Aiven's.
DISKLESS: Final = "diskless.enable"
#: Suffix of the empty transaction's id: using the sink's id would fence its job.
TRIAL: Final = ".check"
_WRITE: Final = 4
#: Kafka's own log of transactions.
TRANSACTION_LOG: Final = "__transaction_state"


@dataclass(frozen=True)
class CheckedTopic:
    """One topic.

    Attributes:
        there: whether it exists according to the brokers.
        allowed: whether this client may describe it.
        leaderless: partitions without a leader.
        replicas: fewest replicas of any partition.
        operations: codes of the operations allowed to this client.
        configs: `MIN_INSYNC`, `UNCLEAN`, `MESSAGE_BYTES`, `CLEANUP` and `DISKLESS`; None if this client may not read
            them.
    """

    name: str
    there: bool = True
    allowed: bool = True
    partitions: int = 0
    leaderless: int = 0
    replicas: int = 0
    operations: frozenset[int] = frozenset()
    configs: dict[str, str | None] | None = None


@dataclass(frozen=True)
class Trial:
    """An empty transaction, begun in each topic and aborted.

    Attributes:
        allowed: whether this client may write its transactional id.
        problem: why it could not be begun or ended; '' if it could.
        refused: topics that reject transactions, with reasons.
    """

    allowed: bool = True
    problem: str = ""
    refused: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class KafkaFacts:
    """The cluster as visible to this client.

    Attributes:
        problem: why it could not be queried, in which case all else is unknown; '' if it could.
        transaction_version: finalized level of the feature.
        offers_two_phase: whether the coordinator supports the request version with two-phase commit.
        configs: a broker's `MAX_TIMEOUT` and `TWO_PHASE`; None if this client may not read them.
        id_allowed: whether this client has WRITE on the transactional id.
        trial: an empty transaction; None if there was no topic for it.
        log: `TRANSACTION_LOG`; None if this client may not describe it, or there has been no transaction yet.
    """

    problem: str = ""
    cluster_id: str = ""
    brokers: int = 0
    transaction_version: int = 0
    offers_two_phase: bool = False
    configs: dict[str, str | None] | None = None
    id_allowed: bool = True
    topics: tuple[CheckedTopic, ...] = ()
    trial: Trial | None = None
    log: CheckedTopic | None = None


def query_brokers(
    options: KafkaOptions, transactional_id: str, topics: tuple[str, ...], *, timeout_s: int
) -> KafkaFacts:
    """Query the brokers about a sink, with ``timeout_s`` seconds for each request."""
    limit_ms = min(options.max_block_ms, timeout_s * 1000)
    with Cluster(replace(options, max_block_ms=limit_ms)) as cluster:
        try:
            return _ask(cluster, transactional_id, topics)
        except (KafkaError, KafkaTimeoutError, RemoteProtocolError) as error:
            return KafkaFacts(problem=str(error))


def _ask(cluster: Cluster, transactional_id: str, topics: tuple[str, ...]) -> KafkaFacts:
    features, nodes = cluster.features(), cluster.node_ids()
    client = TransactionClient(cluster, transactional_id, cluster.options)
    try:
        id_allowed = may_write(cluster, transactional_id)
        offers = client.offers_keep_prepared
    except KafkaError as error:
        if error.code != Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            raise
        id_allowed, offers = False, False
    known = _topics(cluster, topics)
    writable = [topic.name for topic in known if topic.there and topic.allowed and _WRITE in topic.operations]
    configs = read_configs(cluster, ConfigResource.BROKER, str(nodes[0]), (MAX_TIMEOUT, TWO_PHASE))
    return KafkaFacts(
        cluster_id=features.cluster_id,
        brokers=len(nodes),
        transaction_version=features.transaction_version,
        offers_two_phase=offers,
        configs=None if configs is None else dict(configs),
        id_allowed=id_allowed,
        topics=known,
        trial=_try_transaction(cluster, transactional_id, writable) if id_allowed and writable else None,
        log=next((topic for topic in _topics(cluster, (TRANSACTION_LOG,)) if topic.allowed and topic.there), None),
    )


def _topics(cluster: Cluster, names: tuple[str, ...]) -> tuple[CheckedTopic, ...]:
    if not names:
        return ()
    facts = []
    for name, found in sorted(describe_topics(cluster, names).items()):
        if not responses.topic_exists(found):
            refused = found.error_code == Code.TOPIC_AUTHORIZATION_FAILED
            facts.append(CheckedTopic(name, there=refused, allowed=not refused))
            continue
        asked = (MIN_INSYNC, UNCLEAN, MESSAGE_BYTES, CLEANUP, DISKLESS)
        configs = read_configs(cluster, ConfigResource.TOPIC, name, asked)
        facts.append(
            CheckedTopic(
                name,
                partitions=len(found.partitions),
                leaderless=sum(part.leader_id < 0 for part in found.partitions),
                replicas=min(len(part.replica_nodes) for part in found.partitions),
                operations=frozenset(found.authorized_operations or ()),
                configs=None if configs is None else dict(configs),
            )
        )
    return tuple(facts)


def _try_transaction(cluster: Cluster, transactional_id: str, topics: Iterable[str]) -> Trial:
    try:
        return Trial(refused=refused_topics(cluster, f"{transactional_id}{TRIAL}", topics))
    except AuthorizationError:
        return Trial(allowed=False)
    except (ConfigurationError, KafkaError, KafkaTimeoutError) as error:
        return Trial(problem=str(error))
