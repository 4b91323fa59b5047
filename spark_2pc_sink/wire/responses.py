"""Broker responses: kafka-python's own objects, indexed by subject.

Callers read the fields of these objects directly. They have the names of Kafka's message definitions, in Python's
spelling: ``error_code``, ``partition_index``, ``current_txn_start_offset``. Error codes are not interpreted: a code
stays a number (`spark_2pc_sink.wire.error_codes.describe_error` names it), because its meaning depends on
the request.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import RemoteProtocolError
from spark_2pc_sink.ids import ProducerIdAndEpoch, TopicPartition
from spark_2pc_sink.wire.framed_request import pair_of

#: A decoded response of ``kafka.protocol``, whose classes are generated at run time from Kafka's own schemas.
KafkaResponse: TypeAlias = Any
#: A part of a response: a topic, a partition, a transaction.
KafkaPart: TypeAlias = Any


def by_partition(response: KafkaResponse) -> dict[TopicPartition, KafkaPart]:
    """The partitions in a response, or in a part with topics; Fetch has other names for topics and their names."""
    return {
        TopicPartition(topic.topic if hasattr(topic, "topic") else topic.name, part.partition_index): part
        for topic in (response.responses if hasattr(response, "responses") else response.topics)
        for part in topic.partitions
    }


def topic_exists(topic: KafkaPart) -> bool:
    return topic.error_code == Code.NONE and bool(topic.partitions)


def topic_id(topic: KafkaPart) -> str:
    """A topic's id in a Metadata response, in the format of Kafka's tools (KIP-516).

    It changes when the topic is deleted and recreated. '' if the broker has none: below version 10, and in clusters
    that were never upgraded past Kafka 2.7.
    """
    given = topic.topic_id
    if given is None or not given.int:
        return ""
    # URL-safe Base64 without padding (org.apache.kafka.common.Uuid).
    return base64.urlsafe_b64encode(given.bytes).rstrip(b"=").decode()


def coordinators_of(response: KafkaResponse, transactional_ids: Iterable[str]) -> dict[str, KafkaPart]:
    """The FindCoordinator results, by transactional id; a response about other ids is a RemoteProtocolError."""
    found = {each.key: each for each in response.coordinators}
    wanted = set(transactional_ids)
    if found.keys() != wanted or len(response.coordinators) != len(wanted):
        raise RemoteProtocolError(
            peer="a broker",
            detail=f"FindCoordinator for {len(wanted)} transactional ids answered {len(response.coordinators)} "
            f"coordinators, {len(found.keys() & wanted)} of them for these ids",
        )
    return found


def initialized_pair(response: KafkaResponse) -> ProducerIdAndEpoch | None:
    """The pair returned by InitProducerId; None with an error, RemoteProtocolError for success without a pair."""
    producer = pair_of(response.producer_id, response.producer_epoch)
    if response.error_code == Code.NONE and producer is None:
        raise RemoteProtocolError(
            peer="the transaction coordinator", detail="InitProducerId succeeded without a producer id"
        )
    return producer


def added_partitions(response: KafkaResponse) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic.name, part.partition_index): part.partition_error_code
        for topic in response.results_by_topic_v3_and_below
        for part in topic.results_by_partition
    }


def written_markers(response: KafkaResponse) -> dict[int, dict[TopicPartition, int]]:
    """Each partition's error code in a WriteTxnMarkers response, by producer id."""
    return {
        marker.producer_id: {at: part.error_code for at, part in by_partition(marker).items()}
        for marker in response.markers
    }


def described(response: KafkaResponse, transactional_id: str) -> KafkaPart:
    """The result for one id in a DescribeTransactions response; a response without it is a RemoteProtocolError."""
    found = next((each for each in response.transaction_states if each.transactional_id == transactional_id), None)
    if found is None:
        raise RemoteProtocolError(
            peer="a broker", detail=f"DescribeTransactions did not answer about {transactional_id!r}"
        )
    return found


def transaction_partitions(described: KafkaPart) -> tuple[TopicPartition, ...]:
    """A described transaction's partitions without an end marker."""
    return tuple(sorted(TopicPartition(topic.topic, index) for topic in described.topics for index in topic.partitions))


def config_values(response: KafkaResponse, resource_name: str) -> Mapping[str, str | None] | None:
    """A resource's values in a DescribeConfigs response; None without permission (DESCRIBE_CONFIGS).

    A sensitive or unset value is None.
    """
    found = next((each for each in response.results if each.resource_name == resource_name), None)
    if found is None or found.error_code != Code.NONE:
        return None
    return {config.name: config.value for config in found.configs}
