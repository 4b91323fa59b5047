"""Kafka's side of a check: questions to the brokers, and one empty transaction. They disturb no running job."""

from __future__ import annotations

from collections.abc import Iterable
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
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.producer.cluster import Cluster
from spark_2pc_sink.producer.cluster_settings import describe_topics, may_write, read_configs, refused_topics
from spark_2pc_sink.producer.transaction_client import TransactionClient
from spark_2pc_sink.wire.messages import ConfigResource

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
        if not found.exists:
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
                replicas=min(len(part.replica_ids) for part in found.partitions),
                operations=found.operations,
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
