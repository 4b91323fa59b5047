"""Settings of a cluster and its topics, and what this client may do there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import KafkaError
from spark_2pc_sink.ids import ProducerIdAndEpoch, TopicPartition
from spark_2pc_sink.producer.cluster import Cluster
from spark_2pc_sink.producer.coordinator_calls import CoordinatorCalls
from spark_2pc_sink.producer.transaction_client import TransactionClient
from spark_2pc_sink.wire import messages, responses
from spark_2pc_sink.wire.api_versions import Api
from spark_2pc_sink.wire.framed_request import end_txn_request
from spark_2pc_sink.wire.messages import ConfigResource
from spark_2pc_sink.wire.replies import TopicMetadata

#: No broker hands it out: producer ids are counted up from 0, in blocks (KIP-730).
_NOBODY: Final = ProducerIdAndEpoch(2**63 - 1, 0)
#: For so long a transaction stays open whose process has died.
TRIAL_TIMEOUT_MS: Final = 60_000
#: EndTxn below the version that bumps epochs, which every transaction.version takes.
_END_VERSION_MAX: Final = 4


def describe_topics(cluster: Cluster, topics: Iterable[str]) -> dict[str, TopicMetadata]:
    """Partitions and replicas of topics, and the operations that are allowed there (KIP-430).

    Returns:
        All that were asked for, also those that are not there or may not be described, which have an error code.

    Raises:
        KafkaTimeoutError: no broker answered.
    """
    wanted, deadline = tuple(topics), cluster.deadline()

    def ask() -> dict[str, TopicMetadata]:
        node_id = cluster.any_node(deadline)
        version = cluster.version(node_id, Api.METADATA, deadline)
        request = messages.metadata_request(wanted, version=version, operations=True)
        return {
            topic.name: topic for topic in responses.read_metadata(cluster.request(node_id, request, deadline)).topics
        }

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
        found = responses.read_describe_configs(cluster.request(node_id, request, deadline)).get(name)
        return None if found is None or found.error_code != Code.NONE else found.values

    return cluster.until_answered(Api.DESCRIBE_CONFIGS.name, ask, deadline)


def may_write(cluster: Cluster, transactional_id: str) -> bool:
    """Whether this client has WRITE on a transactional id; a running producer of that id is not disturbed.

    It asks to end a transaction of a producer id that nobody has. The coordinator looks at the permission first, and
    refuses the rest because of the id (``KafkaApis.handleEndTxnRequest``).

    Raises:
        KafkaTimeoutError: no coordinator answered.
        KafkaError: the coordinator may not be looked up.
    """
    code = CoordinatorCalls(cluster, transactional_id).ask(
        Api.END_TXN,
        lambda version: end_txn_request(transactional_id, _NOBODY, commit=False, version=version),
        lambda response: responses.read_end_txn(response).error_code,
        lambda found: found,
        cluster.deadline(),
        version_max=_END_VERSION_MAX,
    )
    return code != Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


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
