"""Responses of brokers, decoded by kafka-python, into values of `spark_2pc_sink.wire.replies`.

For each API there is a function ``read_<api>``. Nothing here judges: an error code is passed on as it is.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Any, Final, TypeAlias

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import ConfigurationError, RemoteProtocolError
from spark_2pc_sink.ids import NO_PRODUCER_ID, ProducerIdAndEpoch, TopicPartition
from spark_2pc_sink.wire import replies
from spark_2pc_sink.wire.framed_request import EndTxnResponse
from spark_2pc_sink.wire.replies import VersionRange

#: A decoded response of ``kafka.protocol``, whose classes are made at run time from Kafka's own schemas.
KafkaResponse: TypeAlias = Any

_NO_EPOCH: Final = -1


def read_api_versions(response: KafkaResponse) -> replies.ApiVersionsReply:
    """Read ApiVersions."""
    return replies.ApiVersionsReply(
        error_code=response.error_code,
        apis={api.api_key: VersionRange(api.min_version, api.max_version) for api in response.api_keys},
        finalized_features={feature.name: feature.max_version_level for feature in response.finalized_features or ()},
        features_epoch=response.finalized_features_epoch,
    )


def read_metadata(response: KafkaResponse) -> replies.MetadataReply:
    """Read Metadata."""
    return replies.MetadataReply(
        error_code=response.error_code,
        cluster_id=response.cluster_id,
        brokers=tuple(replies.Broker(node.node_id, node.host, node.port) for node in response.brokers),
        topics=tuple(
            replies.TopicMetadata(
                error_code=topic.error_code,
                name=topic.name,
                partitions=tuple(
                    replies.PartitionMetadata(
                        error_code=part.error_code,
                        partition=part.partition_index,
                        leader_id=part.leader_id,
                        leader_epoch=part.leader_epoch,
                        replica_ids=tuple(part.replica_nodes),
                    )
                    for part in sorted(topic.partitions, key=lambda part: part.partition_index)
                ),
                topic_id=_topic_id(topic.topic_id),
                operations=frozenset(topic.authorized_operations or ()),
            )
            for topic in response.topics
        ),
    )


def _topic_id(given: Any) -> str:
    """Kafka's text of a UUID: URL-safe Base64 without padding (``org.apache.kafka.common.Uuid``); '' for none."""
    if given is None or not given.int:
        return ""
    return base64.urlsafe_b64encode(given.bytes).rstrip(b"=").decode()


def read_find_coordinators(
    response: KafkaResponse, transactional_ids: Iterable[str]
) -> dict[str, replies.FindCoordinatorReply]:
    """Read FindCoordinator, by transactional id.

    Args:
        response: the answer.
        transactional_ids: those that were asked about.

    Raises:
        RemoteProtocolError: the broker answered about others.
    """
    found = {
        each.key: replies.FindCoordinatorReply(each.error_code, each.error_message, each.node_id, each.host, each.port)
        for each in response.coordinators
    }
    wanted = set(transactional_ids)
    if found.keys() != wanted or len(response.coordinators) != len(wanted):
        raise RemoteProtocolError(
            peer="a broker",
            detail=f"FindCoordinator for {len(wanted)} transactional ids answered {len(response.coordinators)} "
            f"coordinators, of {len(found.keys() & wanted)} of them",
        )
    return found


def read_init_producer_id(response: KafkaResponse) -> replies.InitProducerIdReply:
    """Read InitProducerId.

    Raises:
        RemoteProtocolError: success without a pair.
    """
    producer = _pair(response.producer_id, response.producer_epoch)
    if response.error_code == Code.NONE and producer is None:
        raise RemoteProtocolError(peer="the transaction coordinator", detail="InitProducerId succeeded without a pair")
    return replies.InitProducerIdReply(
        error_code=response.error_code,
        producer=producer,
        ongoing=_pair(response.ongoing_txn_producer_id, response.ongoing_txn_producer_epoch),
    )


def read_add_partitions(response: KafkaResponse) -> dict[TopicPartition, int]:
    """Read AddPartitionsToTxn version 3: the error code of each partition that was to join the transaction."""
    return {
        TopicPartition(topic.name, part.partition_index): part.partition_error_code
        for topic in response.results_by_topic_v3_and_below
        for part in topic.results_by_partition
    }


def read_end_txn(response: EndTxnResponse) -> replies.EndTxnReply:
    """Read EndTxn."""
    return replies.EndTxnReply(response.error_code, _pair(response.producer_id, response.producer_epoch))


def read_write_txn_markers(response: KafkaResponse) -> dict[int, dict[TopicPartition, int]]:
    """Read WriteTxnMarkers: the error code of each partition, by producer id."""
    return {
        marker.producer_id: {
            TopicPartition(topic.name, part.partition_index): part.error_code
            for topic in marker.topics
            for part in topic.partitions
        }
        for marker in response.markers
    }


def read_describe_transactions(response: KafkaResponse) -> dict[str, replies.DescribedTransaction]:
    """Read DescribeTransactions, by transactional id."""
    return {
        found.transactional_id: replies.DescribedTransaction(
            error_code=found.error_code,
            transactional_id=found.transactional_id,
            state=found.transaction_state,
            timeout_ms=found.transaction_timeout_ms,
            start_time_ms=found.transaction_start_time_ms,
            producer=_pair(found.producer_id, found.producer_epoch) if found.error_code == Code.NONE else None,
            partitions=tuple(
                sorted(TopicPartition(topic.topic, index) for topic in found.topics for index in topic.partitions)
            ),
        )
        for found in response.transaction_states
    }


def read_list_transactions(response: KafkaResponse) -> replies.ListTransactionsReply:
    """Read ListTransactions."""
    return replies.ListTransactionsReply(
        error_code=response.error_code,
        unknown_state_filters=tuple(response.unknown_state_filters),
        transactions=tuple(
            replies.ListedTransaction(found.transactional_id, found.producer_id, found.transaction_state)
            for found in response.transaction_states
        ),
    )


def read_describe_producers(response: KafkaResponse) -> dict[TopicPartition, replies.DescribedProducers]:
    """Read DescribeProducers, by partition."""
    return {
        TopicPartition(topic.name, part.partition_index): replies.DescribedProducers(
            error_code=part.error_code,
            error_message=part.error_message,
            producers=tuple(
                replies.ActiveProducer(
                    producer_id=state.producer_id,
                    epoch=state.producer_epoch,
                    last_sequence=state.last_sequence,
                    last_timestamp_ms=state.last_timestamp,
                    coordinator_epoch=state.coordinator_epoch,
                    txn_start_offset=state.current_txn_start_offset,
                )
                for state in part.active_producers
            ),
        )
        for topic in response.topics
        for part in topic.partitions
    }


def read_describe_configs(response: KafkaResponse) -> dict[str, replies.DescribedConfig]:
    """Read DescribeConfigs, by name of the resource."""
    return {
        result.resource_name: replies.DescribedConfig(
            error_code=result.error_code,
            error_message=result.error_message,
            values={config.name: config.value for config in result.configs},
        )
        for result in response.results
    }


def read_fetch(response: KafkaResponse) -> replies.FetchReply:
    """Read Fetch."""
    return replies.FetchReply(
        error_code=response.error_code,
        partitions={
            TopicPartition(topic.topic, part.partition_index): replies.FetchedPartition(
                error_code=part.error_code,
                records=bytes(part.records or b""),
            )
            for topic in response.responses
            for part in topic.partitions
        },
    )


def read_list_offsets(response: KafkaResponse) -> dict[TopicPartition, replies.ListedOffset]:
    """Read ListOffsets, by partition."""
    return {
        TopicPartition(topic.name, part.partition_index): replies.ListedOffset(part.error_code, part.offset)
        for topic in response.topics
        for part in topic.partitions
    }


def _pair(producer_id: int, epoch: int) -> ProducerIdAndEpoch | None:
    """The pair, or None where either half is -1: an error, nothing ongoing, or an id that is just being created."""
    if producer_id == NO_PRODUCER_ID or epoch == _NO_EPOCH:
        return None
    try:
        return ProducerIdAndEpoch(producer_id, epoch)
    except ConfigurationError as error:
        raise RemoteProtocolError(peer="the transaction coordinator", detail=str(error)) from error
