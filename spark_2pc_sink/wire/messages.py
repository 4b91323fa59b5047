"""Kafka's messages by kafka-python: all requests except Produce and EndTxn (see `framed_request`), and the answers.

For each API there is a function ``<api>_request``. Callers read the fields of answers directly: kafka-python's objects
have the names of Kafka's message definitions, in Python's spelling (``error_code``, ``current_txn_start_offset``). An
error code stays a number, because its meaning depends on the request; `describe_error` names it. Nothing here waits,
retries or interprets.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

from kafka import errors as kafka_errors
from kafka.protocol.admin import (
    DescribeConfigsRequest,
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
)
from kafka.protocol.consumer import FetchRequest, ListOffsetsRequest
from kafka.protocol.metadata import ApiVersionsRequest, FindCoordinatorRequest, MetadataRequest
from kafka.protocol.producer import AddPartitionsToTxnRequest, InitProducerIdRequest, WriteTxnMarkersRequest
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import LocalProtocolError, RemoteProtocolError
from spark_2pc_sink.ids import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, ProducerIdAndEpoch, TopicPartition
from spark_2pc_sink.wire.api_versions import Api
from spark_2pc_sink.wire.framed_request import FramedRequest, RequestTemplate, pair_of

_Part = TypeVar("_Part")
#: The first version of InitProducerId that carries enable2Pc and keepPreparedTxn (KIP-939).
TWO_PHASE_COMMIT_VERSION: Final = 6
_CONSUMER: Final = -1
_TRANSACTION_COORDINATOR: Final = 1
#: Fields that not every version in `spark_2pc_sink.wire.api_versions.VERSIONS` has.
_SOURCES: Final = {
    "enable2_pc": "KIP-939, 'Protocol Changes'",
    "keep_prepared_txn": "KIP-939, 'Protocol Changes'",
    "duration_filter": "KIP-994",
    "transactional_id_pattern": "KIP-1152",
}


class IsolationLevel(IntEnum):
    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


class OffsetSpec(IntEnum):
    """The ends of a log, as ListOffsets encodes them in place of a timestamp."""

    LATEST = -1
    EARLIEST = -2


class ConfigResource(IntEnum):
    TOPIC = 2
    BROKER = 4


def api_versions_request(client_name: str) -> RequestTemplate:
    """Ask for APIs and features. ``client_name`` appears in the broker's metrics."""
    return _request(ApiVersionsRequest, client_software_name=client_name, client_software_version="1")


def sasl_handshake_request(mechanism: str | None) -> RequestTemplate:
    return _request(SaslHandshakeRequest, mechanism=mechanism)


def sasl_authenticate_request(data: bytes) -> RequestTemplate:
    return _request(SaslAuthenticateRequest, auth_bytes=data)


def metadata_request(topics: Iterable[str] | None, *, operations: bool = False) -> RequestTemplate:
    """Ask for brokers, cluster id, and the partitions of ``topics``. Creates no topic.

    Without topics only brokers are listed; for None every topic that may be described, including internal ones. With
    ``operations`` also this client's allowed operations on each topic (KIP-430).
    """
    topic = MetadataRequest.MetadataRequestTopic
    return _request(
        MetadataRequest,
        topics=None if topics is None else [topic(name=name) for name in sorted(set(topics))],
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=operations,
    )


def find_coordinators_request(transactional_ids: Iterable[str]) -> RequestTemplate:
    return _request(FindCoordinatorRequest, key_type=_TRANSACTION_COORDINATOR, coordinator_keys=list(transactional_ids))


def init_producer_id_request(
    transactional_id: str, *, timeout_ms: int, enable_two_phase_commit: bool = False, keep_prepared: bool = False
) -> RequestTemplate:
    """Ask for a pair, and fence every holder of an older one (KIP-98).

    Without ``keep_prepared`` an ongoing transaction of the id is aborted (KIP-939); ``timeout_ms`` is without effect if
    two-phase commit is granted.
    """
    return _request(
        InitProducerIdRequest,
        transactional_id=transactional_id,
        transaction_timeout_ms=timeout_ms,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=NO_PRODUCER_EPOCH,
        enable2_pc=enable_two_phase_commit,
        keep_prepared_txn=keep_prepared,
    )


def add_partitions_request(
    transactional_id: str, producer: ProducerIdAndEpoch, partitions: Iterable[TopicPartition]
) -> RequestTemplate:
    """Add partitions to the transaction (transaction.version 0 and 1; from 2 on, Produce v12 does it)."""
    topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
    return _request(
        AddPartitionsToTxnRequest,
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.epoch,
        v3_and_below_topics=[topic(name=name, partitions=indexes) for name, indexes in _indexes(partitions).items()],
    )


def describe_transactions_request(transactional_ids: Iterable[str]) -> RequestTemplate:
    return _request(DescribeTransactionsRequest, transactional_ids=list(transactional_ids))


def list_transactions_request(
    *,
    states: Sequence[str] = (),
    producer_ids: Sequence[int] = (),
    running_longer_than_ms: int = -1,
    transactional_id_pattern: str | None = None,
) -> RequestTemplate:
    """Ask a broker for the transactional ids that it coordinates (KIP-664, KIP-994, KIP-1152)."""
    return _request(
        ListTransactionsRequest,
        state_filters=list(states),
        producer_id_filters=list(producer_ids),
        duration_filter=running_longer_than_ms,
        transactional_id_pattern=transactional_id_pattern,
    )


def write_txn_markers_request(
    producer: ProducerIdAndEpoch, partition: TopicPartition, *, coordinator_epoch: int
) -> RequestTemplate:
    """Tell the leader of ``partition`` to append an ABORT marker, as a coordinator does (KIP-98, KIP-664).

    The marker has TransactionVersion 0, so the leader accepts it at the transaction's own epoch: a marker for
    transaction.version 2 would need the next epoch, which only the coordinator may hand out (KIP-1228).
    ``coordinator_epoch`` must not be below the one that the leader remembers for this producer.
    """
    marker = WriteTxnMarkersRequest.WritableTxnMarker
    return _request(
        WriteTxnMarkersRequest,
        markers=[
            marker(
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                transaction_result=False,
                coordinator_epoch=coordinator_epoch,
                topics=[marker.WritableTxnMarkerTopic(name=partition.topic, partition_indexes=[partition.partition])],
            )
        ],
    )


def describe_producers_request(partitions: Iterable[TopicPartition]) -> RequestTemplate:
    topic = DescribeProducersRequest.TopicRequest
    return _request(
        DescribeProducersRequest,
        topics=[topic(name=name, partition_indexes=indexes) for name, indexes in _indexes(partitions).items()],
    )


def describe_configs_request(resource: ConfigResource, name: str, keys: Iterable[str]) -> RequestTemplate:
    """Ask for configuration values; for a broker, which must be asked itself, ``name`` is its node id."""
    asked = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=int(resource), resource_name=name, configuration_keys=list(keys)
    )
    return _request(DescribeConfigsRequest, resources=[asked], include_synonyms=False, include_documentation=False)


def fetch_request(offsets: Mapping[TopicPartition, int], *, max_wait_ms: int, bytes_max: int) -> RequestTemplate:
    """Read record batches from ``offsets`` on, also those of open transactions, without a fetch session.

    The broker may wait ``max_wait_ms`` for the first byte. A first batch larger than ``bytes_max`` is returned whole
    (KIP-74); partitions beyond it are returned empty.
    """
    topic, fetch = FetchRequest.FetchTopic, FetchRequest.FetchTopic.FetchPartition
    by_topic = _by_topic(
        (partition, fetch(partition=partition.partition, fetch_offset=offset, partition_max_bytes=bytes_max))
        for partition, offset in offsets.items()
    )
    return _request(
        FetchRequest,
        replica_id=_CONSUMER,
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=bytes_max,
        isolation_level=int(IsolationLevel.READ_UNCOMMITTED),
        session_id=0,
        session_epoch=-1,
        topics=[topic(topic=name, partitions=wanted) for name, wanted in by_topic.items()],
        forgotten_topics_data=[],
        rack_id="",
    )


def list_offsets_request(
    timestamps: Mapping[TopicPartition, int], *, isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
) -> RequestTemplate:
    """One offset per partition: the first at or after a time (ms), or an `OffsetSpec` (READ_COMMITTED: last stable)."""
    topic, lookup = ListOffsetsRequest.ListOffsetsTopic, ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition
    by_topic = _by_topic(
        (partition, lookup(partition_index=partition.partition, timestamp=int(timestamp)))
        for partition, timestamp in timestamps.items()
    )
    return _request(
        ListOffsetsRequest,
        replica_id=_CONSUMER,
        isolation_level=int(isolation),
        topics=[topic(name=name, partitions=wanted) for name, wanted in by_topic.items()],
    )


def _request(kind: Any, **fields: Any) -> RequestTemplate:
    """A request of kafka-python's class ``kind``.

    A value that its version does not carry is a LocalProtocolError. Encoding would drop it silently: without its flag
    InitProducerId aborts the transaction that it should keep, and without its filter a broker lists everything.
    """
    api = Api(kind.API_KEY)

    def build(version: int) -> FramedRequest:
        for name, value in fields.items():
            field = kind.fields[name]
            if not field.for_version_q(version) and value != field.default:
                raise LocalProtocolError(
                    operation=f"{api.name} with {name}",
                    state=f"version {version} of the request",
                    rule=f"brokers read it from version {field.min_version} on ({_SOURCES[name]})",
                )
        request = kind(version=version, **fields)
        request.with_header()
        read = partial(request.header.get_response_class().decode, header=True)
        return FramedRequest(api, version, (request.encode(),), read, flexible=kind.flexible_version_q(version))

    return RequestTemplate(api, build)


def _by_topic(parts: Iterable[tuple[TopicPartition, _Part]]) -> dict[str, list[_Part]]:
    topics: dict[str, list[_Part]] = {}
    for partition, part in parts:
        topics.setdefault(partition.topic, []).append(part)
    return topics


def _indexes(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    return _by_topic((partition, partition.partition) for partition in sorted(set(partitions)))


# --- responses: their parts, indexed by subject ---------------------------------------------------------------------

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
    """A resource's values, None if sensitive or unset; None for all without permission (DESCRIBE_CONFIGS)."""
    found = next((each for each in response.results if each.resource_name == resource_name), None)
    if found is None or found.error_code != Code.NONE:
        return None
    return {config.name: config.value for config in found.configs}


# --- error codes: kafka-python's table, except where Apache Kafka 4.4.0 differs -------------------------------------


@dataclass(frozen=True)
class ErrorCode:
    """One error code by its name in ``org.apache.kafka.common.protocol.Errors``.

    ``retriable`` if Kafka's own clients send the same request again (its exception is a ``RetriableException``). A code
    can still be final for one request: the caller decides, this only gives Kafka's general meaning.
    """

    code: int
    name: str
    retriable: bool

    def __str__(self) -> str:
        return f"{self.name} ({self.code})"


_CORRECTIONS: Final = (
    ErrorCode(-1, "UNKNOWN_SERVER_ERROR", retriable=False),
    ErrorCode(0, "NONE", retriable=False),
    ErrorCode(2, "CORRUPT_MESSAGE", retriable=True),
    ErrorCode(6, "NOT_LEADER_OR_FOLLOWER", retriable=True),
    ErrorCode(10, "MESSAGE_TOO_LARGE", retriable=False),
    ErrorCode(17, "INVALID_TOPIC_EXCEPTION", retriable=False),
    ErrorCode(39, "INVALID_REPLICA_ASSIGNMENT", retriable=False),
    ErrorCode(128, "INVALID_REGULAR_EXPRESSION", retriable=False),
    ErrorCode(129, "REBOOTSTRAP_REQUIRED", retriable=False),
    ErrorCode(130, "STREAMS_INVALID_TOPOLOGY", retriable=False),
    ErrorCode(131, "STREAMS_INVALID_TOPOLOGY_EPOCH", retriable=False),
    ErrorCode(132, "STREAMS_TOPOLOGY_FENCED", retriable=False),
    ErrorCode(133, "SHARE_SESSION_LIMIT_REACHED", retriable=True),
    ErrorCode(134, "GROUP_DELETION_FAILED", retriable=False),
    ErrorCode(135, "STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED", retriable=False),
    ErrorCode(136, "CONTROLLER_ID_NOT_REGISTERED", retriable=False),
)

#: Every known code.
ERROR_CODES: Final[dict[int, ErrorCode]] = {
    code: ErrorCode(code, error.message, error.retriable)
    for code, error in sorted(item for item in kafka_errors.kafka_errors.items() if item[0] is not None)
} | {error.code: error for error in _CORRECTIONS}


def describe_error(code: int) -> ErrorCode:
    """Explain ``code``; an unknown one is named ``UNKNOWN_ERROR_<code>`` and is not retriable."""
    return ERROR_CODES.get(code) or ErrorCode(code, f"UNKNOWN_ERROR_{code}", retriable=False)
