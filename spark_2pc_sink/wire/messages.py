"""Every Kafka message that this package sends or reads: the one place that imports ``kafka.protocol``.

For each API there is a function ``<api>_request`` that builds the request at an explicit version, and a function
``read_<api>`` that turns the response into a value of `spark_2pc_sink.wire.replies`. Nothing here waits, retries or
judges: an error code is passed on as it is.

Versions are always explicit, because they change what a broker does and not only how bytes look: Produce v12 adds
the partition to the transaction and v11 only verifies it, EndTxn v5 bumps the epoch and v4 does not (KIP-890).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, Final, Protocol, TypeAlias

from kafka.protocol.admin import (
    DescribeConfigsRequest,
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
)
from kafka.protocol.consumer import FetchRequest, ListOffsetsRequest
from kafka.protocol.metadata import ApiVersionsRequest, FindCoordinatorRequest, MetadataRequest
from kafka.protocol.producer import (
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ProduceRequest,
)

from spark_2pc_sink.errors import KafkaError, LocalProtocolError
from spark_2pc_sink.ids import NO_PRODUCER_ID, ProducerIdAndEpoch, TopicPartition
from spark_2pc_sink.wire import replies
from spark_2pc_sink.wire._responses import (
    KafkaResponse,
    read_add_partitions,
    read_api_versions,
    read_describe_configs,
    read_describe_producers,
    read_describe_transactions,
    read_end_txn,
    read_fetch,
    read_find_coordinator,
    read_init_producer_id,
    read_list_offsets,
    read_list_transactions,
    read_metadata,
    read_produce,
)
from spark_2pc_sink.wire.error_codes import Code
from spark_2pc_sink.wire.replies import VersionRange

__all__ = [
    "VERSIONS",
    "Api",
    "ConfigResource",
    "IsolationLevel",
    "KafkaRequest",
    "KafkaResponse",
    "OffsetSpec",
    "RecordBytes",
    "add_partitions_request",
    "api_versions_request",
    "choose_version",
    "describe_configs_request",
    "describe_producers_request",
    "describe_transactions_request",
    "end_txn_request",
    "fetch_request",
    "find_coordinator_request",
    "init_producer_id_request",
    "list_offsets_request",
    "list_transactions_request",
    "metadata_request",
    "produce_request",
    "read_add_partitions",
    "read_api_versions",
    "read_describe_configs",
    "read_describe_producers",
    "read_describe_transactions",
    "read_end_txn",
    "read_fetch",
    "read_find_coordinator",
    "read_init_producer_id",
    "read_list_offsets",
    "read_list_transactions",
    "read_metadata",
    "read_produce",
]

#: What a request can be made of: whatever exposes its bytes without a copy.
RecordBytes: TypeAlias = bytes | bytearray | memoryview

_INT32_MAX: Final = 2**31 - 1
_NO_EPOCH: Final = -1
#: The version of InitProducerId that carries enable2Pc and keepPreparedTxn (KIP-939).
_TWO_PHASE_COMMIT_VERSION: Final = 6
_ALL_IN_SYNC_REPLICAS: Final = -1
_CONSUMER: Final = -1
_TRANSACTION_COORDINATOR: Final = 1


class KafkaRequest(Protocol):
    """A request with its API key and its version, ready for ``KafkaConnectionManager.send``."""

    API_KEY: int
    API_VERSION: int


class Api(IntEnum):
    """The APIs that this package speaks, by their key on the wire."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    FIND_COORDINATOR = 10
    API_VERSIONS = 18
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    END_TXN = 26
    DESCRIBE_CONFIGS = 32
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66


class IsolationLevel(IntEnum):
    """Which records a Fetch or ListOffsets sees."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


class OffsetSpec(IntEnum):
    """The ends of a log, as ListOffsets spells them in place of a timestamp."""

    LATEST = -1
    EARLIEST = -2


class ConfigResource(IntEnum):
    """What DescribeConfigs can be asked about."""

    TOPIC = 2
    BROKER = 4


#: The versions that the functions below build and read. The oldest ones are those of Apache Kafka 3.0, the first
#: release with DescribeTransactions (KIP-664), without which nothing can be recovered. Produce ends at 12, the last
#: version that names topics instead of numbering them; AddPartitionsToTxn at 3, the last one meant for clients.
VERSIONS: Final[Mapping[Api, VersionRange]] = {
    Api.PRODUCE: VersionRange(9, 12),
    Api.FETCH: VersionRange(11, 12),
    Api.LIST_OFFSETS: VersionRange(6, 7),
    Api.METADATA: VersionRange(9, 12),
    Api.FIND_COORDINATOR: VersionRange(4, 6),
    Api.API_VERSIONS: VersionRange(3, 4),
    Api.INIT_PRODUCER_ID: VersionRange(4, 6),
    Api.ADD_PARTITIONS_TO_TXN: VersionRange(3, 3),
    Api.END_TXN: VersionRange(3, 5),
    Api.DESCRIBE_CONFIGS: VersionRange(3, 4),
    Api.DESCRIBE_PRODUCERS: VersionRange(0, 0),
    Api.DESCRIBE_TRANSACTIONS: VersionRange(0, 0),
    Api.LIST_TRANSACTIONS: VersionRange(0, 2),
}


def choose_version(broker: replies.ApiVersionsReply, api: Api, *, at_most: int | None = None) -> int:
    """The newest version of ``api`` that the broker and this package both speak.

    Args:
        broker: what the broker offered.
        api: the API to call.
        at_most: a bound for callers that need an older protocol, such as 4 for EndTxn below transaction.version 2.

    Raises:
        KafkaError: there is no common version (code 35, as the broker itself would answer).
    """
    ours = VERSIONS[api]
    theirs = broker.apis.get(api)
    newest_ours = ours.newest if at_most is None else min(at_most, ours.newest)
    if theirs is not None and max(ours.oldest, theirs.oldest) <= min(newest_ours, theirs.newest):
        return min(newest_ours, theirs.newest)
    offered = "does not offer it" if theirs is None else f"offers versions {theirs.oldest} to {theirs.newest}"
    raise KafkaError(
        api=api.name,
        code=Code.UNSUPPORTED_VERSION,
        name=Code.UNSUPPORTED_VERSION.name,
        detail=f"this package needs a version from {ours.oldest} to {newest_ours}, the broker {offered}",
    )


def api_versions_request(*, version: int, client_name: str, client_version: str) -> KafkaRequest:
    """Ask which APIs and features there are. ``client_name`` and ``client_version`` show in the broker's metrics."""
    _check_version(Api.API_VERSIONS, version)
    request: KafkaRequest = ApiVersionsRequest(
        version=version, client_software_name=client_name, client_software_version=client_version
    )
    return request


def metadata_request(topics: Iterable[str], *, version: int) -> KafkaRequest:
    """Ask for brokers, cluster id, and the partitions of ``topics`` (none: only brokers). Creates no topic."""
    _check_version(Api.METADATA, version)
    topic = MetadataRequest.MetadataRequestTopic
    request: KafkaRequest = MetadataRequest(
        version=version,
        topics=[topic(version=version, name=name) for name in sorted(set(topics))],
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )
    return request


def find_coordinator_request(transactional_id: str, *, version: int) -> KafkaRequest:
    """Ask which broker coordinates ``transactional_id``."""
    _check_version(Api.FIND_COORDINATOR, version)
    request: KafkaRequest = FindCoordinatorRequest(
        version=version, key_type=_TRANSACTION_COORDINATOR, coordinator_keys=[transactional_id]
    )
    return request


def init_producer_id_request(
    transactional_id: str,
    *,
    version: int,
    timeout_ms: int,
    producer: ProducerIdAndEpoch | None = None,
    enable_two_phase_commit: bool = False,
    keep_prepared: bool = False,
) -> KafkaRequest:
    """Ask for a pair. Without ``keep_prepared`` an ongoing transaction of the id is aborted (KIP-98, KIP-939).

    Args:
        transactional_id: whose pair.
        version: 4 or 5; 6 for the last two flags.
        timeout_ms: transaction.timeout.ms; without effect where two-phase commit is granted.
        producer: the pair held so far, so that only its holder gets the next one (KIP-360); None to fence everyone.
        enable_two_phase_commit: ask that the transactions of this id never time out.
        keep_prepared: leave an ongoing transaction as it is and answer its pair too.

    Raises:
        LocalProtocolError: a flag is set that the version cannot carry. Encoding would drop it silently, and a
            dropped ``keep_prepared`` aborts the very transaction that it was to keep.
    """
    _check_version(Api.INIT_PRODUCER_ID, version)
    if version < _TWO_PHASE_COMMIT_VERSION and (enable_two_phase_commit or keep_prepared):
        raise LocalProtocolError(
            operation="InitProducerId with enable2Pc or keepPreparedTxn",
            state=f"version {version} of the request",
            rule="only version 6 carries these flags (KIP-939, 'Protocol Changes')",
        )
    flags = {"enable2_pc": enable_two_phase_commit, "keep_prepared_txn": keep_prepared}
    request: KafkaRequest = InitProducerIdRequest(
        version=version,
        transactional_id=transactional_id,
        transaction_timeout_ms=timeout_ms,
        producer_id=NO_PRODUCER_ID if producer is None else producer.producer_id,
        producer_epoch=_NO_EPOCH if producer is None else producer.epoch,
        **(flags if version >= _TWO_PHASE_COMMIT_VERSION else {}),
    )
    return request


def add_partitions_request(
    transactional_id: str, producer: ProducerIdAndEpoch, partitions: Iterable[TopicPartition], *, version: int
) -> KafkaRequest:
    """Add partitions to the transaction (transaction.version 0 and 1; from 2 on, Produce v12 does it)."""
    _check_version(Api.ADD_PARTITIONS_TO_TXN, version)
    topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
    request: KafkaRequest = AddPartitionsToTxnRequest(
        version=version,
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.epoch,
        v3_and_below_topics=[
            topic(version=version, name=name, partitions=indexes) for name, indexes in _by_topic(partitions).items()
        ],
    )
    return request


def produce_request(
    transactional_id: str,
    batches: Mapping[TopicPartition, RecordBytes],
    *,
    version: int,
    timeout_ms: int,
) -> KafkaRequest:
    """Append one record batch per partition, acknowledged by all in-sync replicas.

    Args:
        transactional_id: of the producer whose pair the batches carry.
        batches: exactly one encoded batch for each partition; the bytes are copied once, into the frame.
        version: 12 to add the partitions to the transaction on the way, 11 where they were added before.
        timeout_ms: how long the broker waits for replicas.
    """
    _check_version(Api.PRODUCE, version)
    topic_data, partition_data = ProduceRequest.TopicProduceData, ProduceRequest.TopicProduceData.PartitionProduceData
    by_topic: dict[str, list[Any]] = {}
    for partition, records in batches.items():
        data = partition_data(version=version, index=partition.partition, records=records)
        by_topic.setdefault(partition.topic, []).append(data)
    request: KafkaRequest = ProduceRequest(
        version=version,
        transactional_id=transactional_id,
        acks=_ALL_IN_SYNC_REPLICAS,
        timeout_ms=timeout_ms,
        topic_data=[topic_data(version=version, name=name, partition_data=data) for name, data in by_topic.items()],
    )
    return request


def end_txn_request(transactional_id: str, producer: ProducerIdAndEpoch, *, commit: bool, version: int) -> KafkaRequest:
    """Commit or abort. Version 5 speaks transaction.version 2 and answers a bumped pair, 4 and below do not."""
    _check_version(Api.END_TXN, version)
    request: KafkaRequest = EndTxnRequest(
        version=version,
        transactional_id=transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        committed=commit,
    )
    return request


def describe_transactions_request(transactional_ids: Iterable[str], *, version: int = 0) -> KafkaRequest:
    """Ask a coordinator for the state of its transactional ids (KIP-664)."""
    _check_version(Api.DESCRIBE_TRANSACTIONS, version)
    request: KafkaRequest = DescribeTransactionsRequest(version=version, transactional_ids=list(transactional_ids))
    return request


def list_transactions_request(
    *,
    version: int,
    states: Sequence[str] = (),
    producer_ids: Sequence[int] = (),
    running_longer_than_ms: int | None = None,
) -> KafkaRequest:
    """Ask a broker for the transactional ids that it coordinates (KIP-664, KIP-994).

    Raises:
        LocalProtocolError: ``running_longer_than_ms`` at version 0, which would silently list everything.
    """
    _check_version(Api.LIST_TRANSACTIONS, version)
    if version < 1 and running_longer_than_ms is not None:
        raise LocalProtocolError(
            operation="ListTransactions by duration",
            state=f"version {version} of the request",
            rule="the broker filters by duration from version 1 on (KIP-994)",
        )
    duration = {} if running_longer_than_ms is None else {"duration_filter": running_longer_than_ms}
    request: KafkaRequest = ListTransactionsRequest(
        version=version, state_filters=list(states), producer_id_filters=list(producer_ids), **duration
    )
    return request


def describe_producers_request(partitions: Iterable[TopicPartition], *, version: int = 0) -> KafkaRequest:
    """Ask a partition leader which producers it remembers (KIP-664)."""
    _check_version(Api.DESCRIBE_PRODUCERS, version)
    topic = DescribeProducersRequest.TopicRequest
    request: KafkaRequest = DescribeProducersRequest(
        version=version,
        topics=[
            topic(version=version, name=name, partition_indexes=indexes)
            for name, indexes in _by_topic(partitions).items()
        ],
    )
    return request


def describe_configs_request(resource: ConfigResource, name: str, keys: Iterable[str], *, version: int) -> KafkaRequest:
    """Ask for configuration values; a broker is asked about itself, ``name`` being its node id."""
    _check_version(Api.DESCRIBE_CONFIGS, version)
    asked = DescribeConfigsRequest.DescribeConfigsResource(
        version=version, resource_type=int(resource), resource_name=name, configuration_keys=list(keys)
    )
    request: KafkaRequest = DescribeConfigsRequest(
        version=version, resources=[asked], include_synonyms=False, include_documentation=False
    )
    return request


def fetch_request(
    offsets: Mapping[TopicPartition, int],
    *,
    version: int,
    isolation: IsolationLevel,
    max_wait_ms: int,
    partition_bytes_max: int,
    min_bytes: int = 1,
) -> KafkaRequest:
    """Read record batches from ``offsets`` on, outside any fetch session.

    Args:
        offsets: where to begin, by partition.
        version: 11 or 12.
        isolation: whether to stop at the last stable offset.
        max_wait_ms: how long the broker may wait for ``min_bytes``.
        partition_bytes_max: bytes per partition; the first batch comes whole even if it is larger (KIP-74).
        min_bytes: bytes to wait for.
    """
    _check_version(Api.FETCH, version)
    topic, fetch = FetchRequest.FetchTopic, FetchRequest.FetchTopic.FetchPartition
    by_topic: dict[str, list[Any]] = {}
    for partition, offset in offsets.items():
        wanted = fetch(
            version=version,
            partition=partition.partition,
            fetch_offset=offset,
            partition_max_bytes=partition_bytes_max,
        )
        by_topic.setdefault(partition.topic, []).append(wanted)
    request: KafkaRequest = FetchRequest(
        version=version,
        replica_id=_CONSUMER,
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=min(_INT32_MAX, partition_bytes_max * max(1, len(offsets))),
        isolation_level=int(isolation),
        session_id=0,
        session_epoch=-1,
        topics=[topic(version=version, topic=name, partitions=wanted) for name, wanted in by_topic.items()],
        forgotten_topics_data=[],
        rack_id="",
    )
    return request


def list_offsets_request(
    timestamps: Mapping[TopicPartition, int], *, version: int, isolation: IsolationLevel
) -> KafkaRequest:
    """Look up one offset per partition: of the first record at or after a time, or an `OffsetSpec` end.

    Args:
        timestamps: milliseconds since 1970, or an `OffsetSpec`, by partition.
        version: 6 or 7.
        isolation: with READ_COMMITTED, LATEST means the last stable offset.
    """
    _check_version(Api.LIST_OFFSETS, version)
    topic, lookup = ListOffsetsRequest.ListOffsetsTopic, ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition
    by_topic: dict[str, list[Any]] = {}
    for partition, timestamp in timestamps.items():
        wanted = lookup(version=version, partition_index=partition.partition, timestamp=int(timestamp))
        by_topic.setdefault(partition.topic, []).append(wanted)
    request: KafkaRequest = ListOffsetsRequest(
        version=version,
        replica_id=_CONSUMER,
        isolation_level=int(isolation),
        topics=[topic(version=version, name=name, partitions=wanted) for name, wanted in by_topic.items()],
    )
    return request


def _check_version(api: Api, version: int) -> None:
    spoken = VERSIONS[api]
    if not spoken.oldest <= version <= spoken.newest:
        raise LocalProtocolError(
            operation=f"build a {api.name} request",
            state=f"version {version}",
            rule=f"this package builds and reads versions {spoken.oldest} to {spoken.newest}",
        )


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    by_topic: dict[str, list[int]] = {}
    for partition in sorted(set(partitions)):
        by_topic.setdefault(partition.topic, []).append(partition.partition)
    return by_topic
