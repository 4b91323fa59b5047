"""All Kafka requests of this package except Produce and EndTxn (see `framed_request`), using kafka-python.

For each API there is a function ``<api>_request`` that builds the request at an explicit version. Its response is a
kafka-python object, see `spark_2pc_sink.wire.responses`. Nothing here waits, retries or interprets.

Versions are always explicit, see `spark_2pc_sink.wire.api_versions`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, Final, Protocol, TypeVar

from kafka.protocol.admin import (
    DescribeConfigsRequest,
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
)
from kafka.protocol.consumer import FetchRequest, ListOffsetsRequest
from kafka.protocol.metadata import ApiVersionsRequest, FindCoordinatorRequest, MetadataRequest
from kafka.protocol.producer import AddPartitionsToTxnRequest, InitProducerIdRequest, WriteTxnMarkersRequest

from spark_2pc_sink.errors import LocalProtocolError
from spark_2pc_sink.ids import NO_PRODUCER_ID, ProducerIdAndEpoch, TopicPartition
from spark_2pc_sink.wire.api_versions import SUPPORTED, Api, unsupported_version

_Part = TypeVar("_Part")
_INT32_MAX: Final = 2**31 - 1
_NO_EPOCH: Final = -1
#: The first version of InitProducerId that carries enable2Pc and keepPreparedTxn (KIP-939).
TWO_PHASE_COMMIT_VERSION: Final = 6
#: The versions of ListTransactions with a filter by duration (KIP-994) and by pattern (KIP-1152).
_DURATION_FILTER_VERSION: Final = 1
_PATTERN_FILTER_VERSION: Final = 2
_CONSUMER: Final = -1
_TRANSACTION_COORDINATOR: Final = 1


class KafkaRequest(Protocol):
    """A request with its API key and version: kafka-python's, or a `framed_request.FramedRequest`."""

    API_KEY: int
    API_VERSION: int

    @property
    def header(self) -> Any: ...

    def with_header(self, *, correlation_id: int, client_id: str) -> None: ...

    def encode(self, *, framed: bool, header: bool) -> bytes: ...


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


def api_versions_request(*, version: int, client_name: str, client_version: str) -> KafkaRequest:
    """Ask for APIs and features. ``client_name`` and ``client_version`` appear in the broker's metrics."""
    return _request(
        ApiVersionsRequest, version, client_software_name=client_name, client_software_version=client_version
    )


def metadata_request(topics: Iterable[str] | None, *, version: int, operations: bool = False) -> KafkaRequest:
    """Ask for brokers, cluster id, and the partitions of ``topics``. Creates no topic.

    Without topics only brokers are listed; for None every topic that may be described, including internal ones. With
    ``operations`` also this client's allowed operations on each topic (KIP-430).
    """
    topic = MetadataRequest.MetadataRequestTopic
    names = None if topics is None else sorted(set(topics))
    return _request(
        MetadataRequest,
        version,
        topics=None if names is None else [topic(name=name) for name in names],
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=operations,
    )


def find_coordinators_request(transactional_ids: Iterable[str], *, version: int) -> KafkaRequest:
    return _request(
        FindCoordinatorRequest, version, key_type=_TRANSACTION_COORDINATOR, coordinator_keys=list(transactional_ids)
    )


def init_producer_id_request(
    transactional_id: str,
    *,
    version: int,
    timeout_ms: int,
    enable_two_phase_commit: bool = False,
    keep_prepared: bool = False,
) -> KafkaRequest:
    """Ask for a pair, and fence every holder of an older one (KIP-98).

    Without ``keep_prepared`` an ongoing transaction of the id is aborted (KIP-939); ``timeout_ms`` is without effect if
    two-phase commit is granted. A flag that the version does not support is a LocalProtocolError. Encoding would drop
    it silently, and a dropped ``keep_prepared`` aborts the very transaction that it should keep.
    """
    if version < TWO_PHASE_COMMIT_VERSION and (enable_two_phase_commit or keep_prepared):
        raise LocalProtocolError(
            operation="InitProducerId with enable2Pc or keepPreparedTxn",
            state=f"version {version} of the request",
            rule="only version 6 carries these flags (KIP-939, 'Protocol Changes')",
        )
    flags = {"enable2_pc": enable_two_phase_commit, "keep_prepared_txn": keep_prepared}
    return _request(
        InitProducerIdRequest,
        version,
        transactional_id=transactional_id,
        transaction_timeout_ms=timeout_ms,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=_NO_EPOCH,
        **(flags if version >= TWO_PHASE_COMMIT_VERSION else {}),
    )


def add_partitions_request(
    transactional_id: str, producer: ProducerIdAndEpoch, partitions: Iterable[TopicPartition], *, version: int
) -> KafkaRequest:
    """Add partitions to the transaction (transaction.version 0 and 1; from 2 on, Produce v12 does it)."""
    topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
    return _request(
        AddPartitionsToTxnRequest,
        version,
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.epoch,
        v3_and_below_topics=[topic(name=name, partitions=indexes) for name, indexes in _indexes(partitions).items()],
    )


def describe_transactions_request(transactional_ids: Iterable[str], *, version: int) -> KafkaRequest:
    return _request(DescribeTransactionsRequest, version, transactional_ids=list(transactional_ids))


def list_transactions_request(
    *,
    version: int,
    states: Sequence[str] = (),
    producer_ids: Sequence[int] = (),
    running_longer_than_ms: int | None = None,
    transactional_id_pattern: str | None = None,
) -> KafkaRequest:
    """Ask a broker for the transactional ids that it coordinates (KIP-664, KIP-994, KIP-1152).

    A filter that the version does not support is a LocalProtocolError: the broker would silently list everything.
    """
    filters: dict[str, Any] = {}
    for name, value, oldest, source in (
        ("duration_filter", running_longer_than_ms, _DURATION_FILTER_VERSION, "KIP-994"),
        ("transactional_id_pattern", transactional_id_pattern, _PATTERN_FILTER_VERSION, "KIP-1152"),
    ):
        if value is None:
            continue
        if version < oldest:
            raise LocalProtocolError(
                operation=f"ListTransactions with {name}",
                state=f"version {version} of the request",
                rule=f"the broker filters by it from version {oldest} on ({source})",
            )
        filters[name] = value
    return _request(
        ListTransactionsRequest, version, state_filters=list(states), producer_id_filters=list(producer_ids), **filters
    )


def write_txn_markers_request(
    producer: ProducerIdAndEpoch, partition: TopicPartition, *, commit: bool, coordinator_epoch: int, version: int
) -> KafkaRequest:
    """Tell the leader of ``partition`` to append an end marker, as a coordinator does (KIP-98, KIP-664).

    The marker has TransactionVersion 0, so the leader accepts it at the transaction's own epoch: a marker for
    transaction.version 2 would need the next epoch, which only the coordinator may hand out (KIP-1228).
    ``coordinator_epoch`` must not be below the one that the leader remembers for this producer.
    """
    marker = WriteTxnMarkersRequest.WritableTxnMarker
    return _request(
        WriteTxnMarkersRequest,
        version,
        markers=[
            marker(
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                transaction_result=commit,
                coordinator_epoch=coordinator_epoch,
                topics=[marker.WritableTxnMarkerTopic(name=partition.topic, partition_indexes=[partition.partition])],
            )
        ],
    )


def describe_producers_request(partitions: Iterable[TopicPartition], *, version: int) -> KafkaRequest:
    topic = DescribeProducersRequest.TopicRequest
    return _request(
        DescribeProducersRequest,
        version,
        topics=[topic(name=name, partition_indexes=indexes) for name, indexes in _indexes(partitions).items()],
    )


def describe_configs_request(resource: ConfigResource, name: str, keys: Iterable[str], *, version: int) -> KafkaRequest:
    """Ask for configuration values; for a broker, which must be asked itself, ``name`` is its node id."""
    asked = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=int(resource), resource_name=name, configuration_keys=list(keys)
    )
    return _request(
        DescribeConfigsRequest, version, resources=[asked], include_synonyms=False, include_documentation=False
    )


def fetch_request(
    offsets: Mapping[TopicPartition, int],
    *,
    version: int,
    isolation: IsolationLevel,
    max_wait_ms: int,
    partition_bytes_max: int,
    bytes_max: int = _INT32_MAX,
) -> KafkaRequest:
    """Read record batches from ``offsets`` on, without a fetch session.

    The broker may wait ``max_wait_ms`` for the first byte. A first batch larger than ``partition_bytes_max`` is
    returned whole (KIP-74); partitions beyond ``bytes_max`` are returned empty.
    """
    topic, fetch = FetchRequest.FetchTopic, FetchRequest.FetchTopic.FetchPartition
    by_topic = _by_topic(
        (partition, fetch(partition=partition.partition, fetch_offset=offset, partition_max_bytes=partition_bytes_max))
        for partition, offset in offsets.items()
    )
    return _request(
        FetchRequest,
        version,
        replica_id=_CONSUMER,
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=min(bytes_max, partition_bytes_max * max(1, len(offsets))),
        isolation_level=int(isolation),
        session_id=0,
        session_epoch=-1,
        topics=[topic(topic=name, partitions=wanted) for name, wanted in by_topic.items()],
        forgotten_topics_data=[],
        rack_id="",
    )


def list_offsets_request(
    timestamps: Mapping[TopicPartition, int], *, version: int, isolation: IsolationLevel
) -> KafkaRequest:
    """Look up one offset per partition: the first record at or after a time (ms), or an `OffsetSpec` end.

    With READ_COMMITTED, LATEST means the last stable offset.
    """
    topic, lookup = ListOffsetsRequest.ListOffsetsTopic, ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition
    by_topic = _by_topic(
        (partition, lookup(partition_index=partition.partition, timestamp=int(timestamp)))
        for partition, timestamp in timestamps.items()
    )
    return _request(
        ListOffsetsRequest,
        version,
        replica_id=_CONSUMER,
        isolation_level=int(isolation),
        topics=[topic(name=name, partitions=wanted) for name, wanted in by_topic.items()],
    )


def _request(kind: Any, version: int, **fields: Any) -> KafkaRequest:
    """A request of kafka-python's class ``kind``; its parts use the same version."""
    if (kind.API_KEY, version) not in SUPPORTED:
        raise unsupported_version(Api(kind.API_KEY), version)
    request: KafkaRequest = kind(version=version, **fields)
    return request


def _by_topic(parts: Iterable[tuple[TopicPartition, _Part]]) -> dict[str, list[_Part]]:
    topics: dict[str, list[_Part]] = {}
    for partition, part in parts:
        topics.setdefault(partition.topic, []).append(part)
    return topics


def _indexes(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    return _by_topic((partition, partition.partition) for partition in sorted(set(partitions)))
