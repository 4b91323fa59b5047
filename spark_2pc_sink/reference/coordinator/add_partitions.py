"""AddPartitionsToTxn and AddOffsetsToTxn: adding partitions to a transaction (KIP-98, KIP-890).

A client asks with v0 to v3 and names everything itself. A broker asks with v4 and v5 on behalf of a client that
produces: to add (implicitly, for clients that speak transaction.version 2) or only to verify, before the first record
of a transaction reaches its partition (KIP-890, 2 and 3). The leader translates the codes for its client, because old
clients take some of them as fatal (KIP-890, Old Clients).
"""

from __future__ import annotations

from typing import TypeAlias

from spark_2pc_sink.codes import Code
from spark_2pc_sink.ids import EPOCH_BUMP_VERSION, TopicPartition
from spark_2pc_sink.reference.coordinator import events, states
from spark_2pc_sink.reference.coordinator.events import AclOperation, AddOffsetsToTxn, AddPartitionsToTxn, Resource
from spark_2pc_sink.reference.coordinator.plans import AddOffsetsReply, AddPartitionsReply, Plan, Reply, answer, change
from spark_2pc_sink.reference.coordinator.states import CoordinatorState, StateId, TransactionMetadata
from spark_2pc_sink.reference.internal_topics import GROUP_OFFSETS, INTERNAL_TOPICS

#: First version that brokers send, several transactions in one request (KIP-890, AddPartitionsToTxnRequest).
BATCH_VERSION = 4
#: PRODUCER_FENCED exists from this version of both requests on; earlier versions use INVALID_PRODUCER_EPOCH.
_FENCED_CODE_VERSION = 2
_Adding: TypeAlias = AddPartitionsToTxn | AddOffsetsToTxn

# First versions of Produce and TxnOffsetCommit whose client ...
PRODUCE_ADD_VERSION = 12  # relies on the implicit add, and bumps its epoch with every transaction
OFFSETS_ADD_VERSION = 5  # relies on the implicit add; an older client's partition is verified
_PRODUCE_ABORTABLE_VERSION = 11  # knows TRANSACTION_ABORTABLE
_OFFSETS_ABORTABLE_VERSION = 4  # knows TRANSACTION_ABORTABLE

_CODES: dict[int, Code] = {Code.PRODUCER_FENCED: Code.INVALID_PRODUCER_EPOCH}
_OLD_CODES: dict[int, Code] = {**_CODES, Code.TRANSACTION_ABORTABLE: Code.INVALID_TXN_STATE}
#: What every old producer retries, if the coordinator's log or the previous transaction is in the way.
_WAIT = Code.NOT_ENOUGH_REPLICAS
_PRODUCE_CODES: dict[int, Code] = {**_CODES, Code.NOT_COORDINATOR: _WAIT}
_PRODUCE_VERIFY_CODES: dict[int, Code] = {**_PRODUCE_CODES, Code.CONCURRENT_TRANSACTIONS: _WAIT}
_PRODUCE_OLD_CODES: dict[int, Code] = {**_OLD_CODES, **_PRODUCE_VERIFY_CODES}


def batch_allowed(access: events.Access) -> Code:
    """The top-level code of AddPartitionsToTxn v4 and v5: only brokers may send them."""
    allowed = access.allows(AclOperation.CLUSTER_ACTION, Resource.CLUSTER, events.CLUSTER_NAME)
    return Code.NONE if allowed else Code.CLUSTER_AUTHORIZATION_FAILED


def add_partitions(state: CoordinatorState, event: AddPartitionsToTxn, now_ms: int) -> Plan:
    reply = AddPartitionsReply(event.transactional_id, tuple((each, Code.NONE) for each in event.partitions))
    refused = _request_refusal(event, reply)
    if refused is not None:
        return answer(refused)
    if not event.verify_only:
        return _add(state, event, frozenset(event.partitions), reply, now_ms)
    # A pending change is deliberately ignored.
    code, metadata = _located(state, event)
    if metadata is None:
        return answer(reply.failed(code))
    if metadata.state in states.DECIDED:
        return answer(reply.failed(Code.CONCURRENT_TRANSACTIONS))
    member = Code.INVALID_TXN_STATE if metadata.kept else Code.NONE
    results = (
        (each, member if each in metadata.partitions else Code.TRANSACTION_ABORTABLE) for each in event.partitions
    )
    return answer(AddPartitionsReply(event.transactional_id, tuple(results)))


def add_offsets(state: CoordinatorState, event: AddOffsetsToTxn, now_ms: int) -> Plan:
    if not event.access.allows(AclOperation.WRITE, Resource.TRANSACTIONAL_ID, event.transactional_id):
        return answer(AddOffsetsReply(Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
    if not event.access.allows(AclOperation.READ, Resource.GROUP, event.group_id):
        return answer(AddOffsetsReply(Code.GROUP_AUTHORIZATION_FAILED))
    index = states.partition_for(event.group_id, state.settings.offsets_partition_count)
    partitions = frozenset({TopicPartition(GROUP_OFFSETS, index)})
    return _add(state, event, partitions, AddOffsetsReply(Code.NONE), now_ms)


def _request_refusal(event: AddPartitionsToTxn, reply: AddPartitionsReply) -> AddPartitionsReply | None:
    """KafkaApis.handleAddPartitionsToTxnRequest: all partitions may be added (or verified), or none.

    Brokers need no grants on ids and topics; that the partitions exist is checked for them too.
    """
    client = event.version < BATCH_VERSION
    if client and not event.access.allows(AclOperation.WRITE, Resource.TRANSACTIONAL_ID, event.transactional_id):
        return reply.failed(Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if not client and not event.unknown:
        return None
    codes = dict.fromkeys(event.partitions, Code.OPERATION_NOT_ATTEMPTED)
    codes |= dict.fromkeys(event.unknown & codes.keys(), Code.UNKNOWN_TOPIC_OR_PARTITION)
    for topic in {each.topic for each in codes} if client else ():
        if topic in INTERNAL_TOPICS or not event.access.allows(AclOperation.WRITE, Resource.TOPIC, topic):
            codes |= {each: Code.TOPIC_AUTHORIZATION_FAILED for each in codes if each.topic == topic}
    refused = any(code is not Code.OPERATION_NOT_ATTEMPTED for code in codes.values())
    results = tuple((each, codes[each]) for each in event.partitions)
    return AddPartitionsReply(event.transactional_id, results) if refused else None


def _located(
    state: CoordinatorState, event: _Adding, *, pending_matters: bool = False
) -> tuple[Code, TransactionMetadata | None]:
    """The id, if this coordinator may serve it for the event's pair, or the refusal code, in Kafka's order."""
    if not event.transactional_id:
        return Code.INVALID_REQUEST, None
    metadata = state.get(event.transactional_id)
    if metadata is None:
        return Code.INVALID_PRODUCER_ID_MAPPING, None
    if pending_matters and metadata.pending is not None:
        return Code.CONCURRENT_TRANSACTIONS, None
    if metadata.client_pair.producer_id != event.producer_id:
        return Code.INVALID_PRODUCER_ID_MAPPING, None
    if metadata.client_pair.epoch != event.producer_epoch:
        return Code.PRODUCER_FENCED, None
    return Code.NONE, metadata


def _add(
    state: CoordinatorState, event: _Adding, partitions: frozenset[TopicPartition], reply: Reply, now_ms: int
) -> Plan:
    code, metadata = _located(state, event, pending_matters=True)
    if metadata is None:
        old = code is Code.PRODUCER_FENCED and event.version < _FENCED_CODE_VERSION
        return answer(reply.failed(Code.INVALID_PRODUCER_EPOCH if old else code))
    if metadata.producer_epoch == states.NO_EPOCH:
        # Only the append of the first InitProducerId can fail and leave this; Kafka throws IllegalArgumentException.
        code = Code.UNKNOWN_SERVER_ERROR
    elif metadata.kept:
        # KIP-939: 'the application is only allowed to call .commitTransaction, .abortTransaction, or
        # .completeTransaction'; data at the new epoch would also make the marker of the old one stale.
        code = Code.INVALID_TXN_STATE
    else:
        code = Code.CONCURRENT_TRANSACTIONS if metadata.state in states.DECIDED else Code.NONE
    if code:
        return answer(reply.failed(code))
    if metadata.state is StateId.ONGOING and partitions <= metadata.partitions:
        return answer(reply)
    implicit = isinstance(event, AddPartitionsToTxn) and event.version >= BATCH_VERSION
    after = metadata.moved_to(
        StateId.ONGOING,
        now_ms,
        partitions=metadata.partitions | partitions,
        start_ms=now_ms if metadata.state in states.AT_REST else metadata.start_ms,
        client_transaction_version=EPOCH_BUMP_VERSION if implicit else 0,
    )
    return change(state, metadata, after, reply=reply)


def produce_code(version: int, code: int) -> int:
    """The code for the producer, given the coordinator's; CONCURRENT_TRANSACTIONS only after the leader's retries."""
    if version >= PRODUCE_ADD_VERSION:
        return _PRODUCE_CODES.get(code, code)
    codes = _PRODUCE_VERIFY_CODES if version >= _PRODUCE_ABORTABLE_VERSION else _PRODUCE_OLD_CODES
    return codes.get(code, code)


def produce_message(client_code: int, code: int) -> str | None:
    """The error message returned with the code ``client_code``, given the coordinator's code (``ReplicaManager``)."""
    if client_code == Code.INVALID_TXN_STATE:
        return "Partition was not added to the transaction"
    if client_code == Code.NOT_ENOUGH_REPLICAS:
        underlying = Code(code).name
        return f"Unable to verify the partition has been added to the transaction. Underlying error: {underlying}"
    return None


def offsets_code(version: int, code: int) -> int:
    """The code for the client of TxnOffsetCommit, given the coordinator's or the append's."""
    return (_CODES if version >= _OFFSETS_ABORTABLE_VERSION else _OLD_CODES).get(code, code)
