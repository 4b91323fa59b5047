"""The transaction APIs: messages to coordinator events, and its replies to messages.

The only decisions here are those the coordinator cannot make: which partitions exist, and who may send markers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, cast

from kafka.protocol import admin, producer

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import RemoteProtocolError
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.reference.coordinator import events, plans
from spark_2pc_sink.reference.coordinator.add_partitions import BATCH_VERSION, batch_allowed
from spark_2pc_sink.reference.coordinator.machine import describe_transaction, list_transactions
from spark_2pc_sink.reference.coordinator.states import TransactionMetadata
from spark_2pc_sink.reference.handlers.topics import by_topic
from spark_2pc_sink.reference.internal_topics import STRING_BYTES_MAX
from spark_2pc_sink.reference.metadata.catalog import Catalog
from spark_2pc_sink.reference.protocol import RequestContext, serves
from spark_2pc_sink.reference.transactions.service import MarkerWriter, TransactionService
from spark_2pc_sink.wire.api_versions import Api

_Added = producer.AddPartitionsToTxnResponse
_TxnResult = _Added.AddPartitionsToTxnResult
_TxnTopicResult = _Added.AddPartitionsToTxnTopicResult
_TxnPartitionResult = _TxnTopicResult.AddPartitionsToTxnPartitionResult
_MarkerResult = producer.WriteTxnMarkersResponse.WritableTxnMarkerResult
_MarkerTopicResult = _MarkerResult.WritableTxnMarkerTopicResult
_MarkerPartitionResult = _MarkerTopicResult.WritableTxnMarkerPartitionResult
_Description = admin.DescribeTransactionsResponse.TransactionState


class TransactionHandlers:
    def __init__(
        self, service: TransactionService, markers: MarkerWriter, catalog: Catalog, *, now_ms: Callable[[], int]
    ) -> None:
        self._service = service
        self._markers = markers
        self._catalog = catalog
        self._now_ms = now_ms

    @serves(Api.INIT_PRODUCER_ID, 0, 6)
    async def init_producer_id(self, context: RequestContext, request: Any) -> Any:
        """InitProducerId v0 to v6; as in Kafka there is no answer to an id too long for a record of the state log."""
        if len((request.transactional_id or "").encode()) > STRING_BYTES_MAX:
            # Nothing may be reserved, or the id would be pending for ever.
            detail = f"a transactional id of more than {STRING_BYTES_MAX} bytes"
            raise RemoteProtocolError(peer="the client", detail=detail)
        event = events.InitProducerId(
            **_client(context, request),
            timeout_ms=request.transaction_timeout_ms,
            enable_2pc=request.enable2_pc,
            keep_prepared=request.keep_prepared_txn,
        )
        reply = cast("plans.InitProducerIdReply", await self._service.submit(event))
        return producer.InitProducerIdResponse(
            error_code=reply.code,
            producer_id=reply.pair.producer_id,
            producer_epoch=reply.pair.epoch,
            ongoing_txn_producer_id=reply.ongoing.producer_id,
            ongoing_txn_producer_epoch=reply.ongoing.epoch,
        )

    @serves(Api.ADD_PARTITIONS_TO_TXN, 0, 5)
    async def add_partitions(self, context: RequestContext, request: Any) -> Any:
        """AddPartitionsToTxn: for one client below v4, a batch of transactions from v4 on."""
        if context.version < BATCH_VERSION:
            reply = await self._add(request.v3_and_below_topics, **_client(context, request, prefix="v3_and_below_"))
            return _Added(results_by_topic_v3_and_below=_topic_results(reply))
        if code := batch_allowed(context.access):
            return _Added(error_code=code)
        each_added = (
            self._add(each.topics, **_client(context, each), verify_only=each.verify_only)
            for each in request.transactions
        )
        replies = await asyncio.gather(*each_added)
        results = [
            _TxnResult(transactional_id=reply.transactional_id, topic_results=_topic_results(reply))
            for reply in replies
        ]
        return _Added(results_by_transaction=results)

    @serves(Api.ADD_OFFSETS_TO_TXN, 0, 4)
    async def add_offsets(self, context: RequestContext, request: Any) -> Any:
        event = events.AddOffsetsToTxn(**_client(context, request), group_id=request.group_id)
        reply = cast("plans.AddOffsetsReply", await self._service.submit(event))
        return producer.AddOffsetsToTxnResponse(error_code=reply.code)

    @serves(Api.END_TXN, 0, 5)
    async def end_txn(self, context: RequestContext, request: Any) -> Any:
        event = events.EndTxn(**_client(context, request), commit=request.committed)
        reply = cast("plans.EndTxnReply", await self._service.submit(event))
        return producer.EndTxnResponse(
            error_code=reply.code, producer_id=reply.pair.producer_id, producer_epoch=reply.pair.epoch
        )

    @serves(Api.WRITE_TXN_MARKERS, 1, 2)
    async def write_markers(self, context: RequestContext, request: Any) -> Any:
        """WriteTxnMarkers v1 and v2: markers from another coordinator, or ``kafka-transactions abort``.

        The codes of markers with one producer id are merged; the last marker of a partition wins, as in Kafka.
        """
        operations = (events.AclOperation.ALTER, events.AclOperation.CLUSTER_ACTION)
        allowed = any(context.access.allows(each, events.Resource.CLUSTER, events.CLUSTER_NAME) for each in operations)
        written = await asyncio.gather(*(self._write(marker, allowed=allowed) for marker in request.markers))
        merged: dict[int, dict[TopicPartition, int]] = {}
        for marker, codes in zip(request.markers, written, strict=True):
            merged.setdefault(marker.producer_id, {}).update(codes)
        results = []
        for producer_id, codes in merged.items():
            topics = [
                _MarkerTopicResult(
                    name=topic,
                    partitions=[_MarkerPartitionResult(partition_index=index, error_code=code) for index, code in rows],
                )
                for topic, rows in by_topic(codes.items()).items()
            ]
            results.append(_MarkerResult(producer_id=producer_id, topics=topics))
        return producer.WriteTxnMarkersResponse(markers=results)

    @serves(Api.DESCRIBE_TRANSACTIONS, 0, 0)
    async def describe_transactions(self, context: RequestContext, request: Any) -> Any:
        names, state = request.transactional_ids, self._service.state
        described = [_description(name, describe_transaction(state, name, context.access)) for name in names]
        return admin.DescribeTransactionsResponse(transaction_states=described)

    @serves(Api.LIST_TRANSACTIONS, 0, 2)
    async def list_transactions(self, context: RequestContext, request: Any) -> Any:
        code, unknown, found = list_transactions(self._service.state, request, context.access, self._now_ms())
        listed = [
            admin.ListTransactionsResponse.TransactionState(
                transactional_id=each.transactional_id, producer_id=each.producer_id, transaction_state=each.state.label
            )
            for each in found
        ]
        return admin.ListTransactionsResponse(error_code=code, unknown_state_filters=unknown, transaction_states=listed)

    async def _add(self, topics: Iterable[Any], **given: Any) -> plans.AddPartitionsReply:
        partitions = tuple(TopicPartition(topic.name, index) for topic in topics for index in topic.partitions)
        found = {each.topic: self._catalog.topic(each.topic) for each in partitions}
        counts = {name: 0 if topic is None else topic.partitions for name, topic in found.items()}
        unknown = frozenset(each for each in partitions if not 0 <= each.partition < counts[each.topic])
        event = events.AddPartitionsToTxn(**given, partitions=partitions, unknown=unknown)
        return cast("plans.AddPartitionsReply", await self._service.submit(event))

    async def _write(self, marker: Any, *, allowed: bool) -> dict[TopicPartition, int]:
        partitions = [TopicPartition(topic.name, index) for topic in marker.topics for index in topic.partition_indexes]
        if not allowed:
            return dict.fromkeys(partitions, Code.CLUSTER_AUTHORIZATION_FAILED)
        read = plans.EndMarker(
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            commit=marker.transaction_result,
            coordinator_epoch=marker.coordinator_epoch,
            transaction_version=marker.transaction_version,
        )
        return await self._markers.write(read, partitions)


def _client(context: RequestContext, request: Any, *, prefix: str = "") -> dict[str, Any]:
    given = {name: getattr(request, prefix + name) for name in ("transactional_id", "producer_id", "producer_epoch")}
    return {**given, "version": context.version, "access": context.access}


def _topic_results(reply: plans.AddPartitionsReply) -> list[Any]:
    return [
        _TxnTopicResult(
            name=topic,
            results_by_partition=[
                _TxnPartitionResult(partition_index=index, partition_error_code=code) for index, code in rows
            ],
        )
        for topic, rows in by_topic(reply.results).items()
    ]


def _description(name: str, found: TransactionMetadata | Code) -> Any:
    if isinstance(found, Code):
        return _Description(error_code=found, transactional_id=name)
    topics = by_topic((partition, None) for partition in sorted(found.partitions))
    return _Description(
        transactional_id=name,
        transaction_state=found.state.label,
        transaction_timeout_ms=found.timeout_ms,
        transaction_start_time_ms=found.start_ms,
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        topics=[_Description.TopicData(topic=each, partitions=[at for at, _ in rows]) for each, rows in topics.items()],
    )
