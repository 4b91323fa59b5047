"""Kafka's side of a check: questions to the brokers, and one empty transaction. They disturb no running job."""

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
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.producer.cluster import Cluster
from spark_2pc_sink.producer.coordinator_calls import CoordinatorCalls
from spark_2pc_sink.producer.transaction_client import TransactionClient
from spark_2pc_sink.wire import messages, responses
from spark_2pc_sink.wire.api_versions import Api
from spark_2pc_sink.wire.framed_request import end_txn_request
from spark_2pc_sink.wire.messages import ConfigResource
from spark_2pc_sink.wire.responses import KafkaPart

#: No broker hands it out: producer ids are counted up from 0, in blocks (KIP-730).
_NOBODY: Final = ProducerIdAndEpoch(2**63 - 1, 0)
#: For so long a transaction stays open whose process has died.
TRIAL_TIMEOUT_MS: Final = 60_000
#: EndTxn below the version that bumps epochs, which every transaction.version takes.
_END_VERSION_MAX: Final = 4


def describe_topics(cluster: Cluster, topics: Iterable[str]) -> dict[str, KafkaPart]:
    """Partitions and replicas of topics, and the operations that are allowed there (KIP-430).

    Returns:
        All that were asked for, also those that are not there or may not be described, which have an error code.

    Raises:
        KafkaTimeoutError: no broker answered.
    """
    wanted, deadline = tuple(topics), cluster.deadline()

    def ask() -> dict[str, KafkaPart]:
        node_id = cluster.any_node(deadline)
        version = cluster.version(node_id, Api.METADATA, deadline)
        request = messages.metadata_request(wanted, version=version, operations=True)
        return {topic.name: topic for topic in cluster.request(node_id, request, deadline).topics}

    return cluster.until_answered(Api.METADATA.name, ask, deadline)


def read_configs(
    cluster: Cluster, resource: ConfigResource, name: str, keys: Iterable[str]
) -> Mapping[str, str | None] | None:
    """Some values of a configuration.

    Args:
        cluster: whose.
        resource: a topic, or a broker, which is asked about itself.
        name: of the topic, or the broker's id.
        keys: of the values.

    Returns:
        None where this client may not read them (no DESCRIBE_CONFIGS).

    Raises:
        KafkaTimeoutError: no broker answered.
    """
    wanted, deadline = tuple(keys), cluster.deadline()

    def ask() -> Mapping[str, str | None] | None:
        node_id = int(name) if resource is ConfigResource.BROKER else cluster.any_node(deadline)
        version = cluster.version(node_id, Api.DESCRIBE_CONFIGS, deadline)
        request = messages.describe_configs_request(resource, name, wanted, version=version)
        return responses.config_values(cluster.request(node_id, request, deadline), name)

    return cluster.until_answered(Api.DESCRIBE_CONFIGS.name, ask, deadline)


def may_write(cluster: Cluster, transactional_id: str) -> bool:
    """Whether this client has WRITE on a transactional id; a running producer of that id is not disturbed.

    It asks to end a transaction of a producer id that nobody has. The coordinator looks at the permission first, and
    refuses the rest because of the id (``KafkaApis.handleEndTxnRequest``).

    Raises:
        KafkaTimeoutError: no coordinator answered.
        KafkaError: the coordinator may not be looked up.
    """
    answer = CoordinatorCalls(cluster, transactional_id).ask(
        Api.END_TXN,
        lambda version: end_txn_request(transactional_id, _NOBODY, commit=False, version=version),
        cluster.deadline(),
        version_max=_END_VERSION_MAX,
    )
    return bool(answer.error_code != Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)


def refused_topics(cluster: Cluster, transactional_id: str, topics: Iterable[str]) -> dict[str, str]:
    """The topics that take no transactions, and why: an empty one is begun with a partition of each, and aborted.

    A marker is written to these partitions, and no record. Two-phase commit is not asked for, so that a transaction
    that stays open ends by its time-out.

    Args:
        cluster: whose.
        transactional_id: of the transaction; no producer has it, as that one would be fenced.
        topics: that this client may write.

    Raises:
        AuthorizationError: this client may not write the transactional id.
        ConfigurationError: the transactional id is too long, or the brokers do not allow `TRIAL_TIMEOUT_MS`.
        KafkaError: no transaction can be begun.
        KafkaTimeoutError: no coordinator answered.
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
#: True for a topic without a log of its own (KIP-1150), as Aiven's.
DISKLESS: Final = "diskless.enable"
#: Behind the transactional id of a sink, the id of the empty transaction: that of the sink would fence its job.
TRIAL: Final = ".check"
_WRITE: Final = 4
#: Kafka's own log of transactions.
TRANSACTION_LOG: Final = "__transaction_state"


@dataclass(frozen=True)
class TopicFacts:
    """One topic.

    Attributes:
        there: whether the brokers say that it is.
        allowed: whether this client may describe it.
        partitions: how many.
        leaderless: of them, those that nobody leads.
        replicas: of the partition with the fewest.
        operations: codes of what this client may do there.
        configs: `MIN_INSYNC`, `UNCLEAN`, `MESSAGE_BYTES`, `CLEANUP` and `DISKLESS`; None where this client may not read
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
        problem: why it could not be begun or ended; '' where it could.
        refused: topics that take no transactions, and why.
    """

    allowed: bool = True
    problem: str = ""
    refused: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class KafkaFacts:
    """The cluster, as this client sees it.

    Attributes:
        problem: why it could not be asked; then nothing else is known. '' where it could.
        cluster_id: its id.
        brokers: how many.
        transaction_version: the finalized level of the feature.
        offers_two_phase: whether the coordinator speaks the version that can ask for two-phase commit.
        configs: of a broker `MAX_TIMEOUT` and `TWO_PHASE`; None where this client may not read them.
        id_allowed: whether this client has WRITE on the transactional id.
        topics: those of the sink.
        trial: an empty transaction; None where there was no topic for it.
        log: `TRANSACTION_LOG`; None where this client may not describe it, or no transaction was there yet.
    """

    problem: str = ""
    cluster_id: str = ""
    brokers: int = 0
    transaction_version: int = 0
    offers_two_phase: bool = False
    configs: dict[str, str | None] | None = None
    id_allowed: bool = True
    topics: tuple[TopicFacts, ...] = ()
    trial: Trial | None = None
    log: TopicFacts | None = None


def look_at_kafka(
    options: KafkaOptions, transactional_id: str, topics: tuple[str, ...], *, timeout_s: int
) -> KafkaFacts:
    """Ask the brokers.

    Args:
        options: of the connection.
        transactional_id: of the sink.
        topics: those that are known before there is a row.
        timeout_s: seconds for each question.
    """
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


def _topics(cluster: Cluster, names: tuple[str, ...]) -> tuple[TopicFacts, ...]:
    if not names:
        return ()
    facts = []
    for name, found in sorted(describe_topics(cluster, names).items()):
        if not responses.topic_exists(found):
            refused = found.error_code == Code.TOPIC_AUTHORIZATION_FAILED
            facts.append(TopicFacts(name, there=refused, allowed=not refused))
            continue
        asked = (MIN_INSYNC, UNCLEAN, MESSAGE_BYTES, CLEANUP, DISKLESS)
        configs = read_configs(cluster, ConfigResource.TOPIC, name, asked)
        facts.append(
            TopicFacts(
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
