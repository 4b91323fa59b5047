"""InitProducerId: a new producer id, or the next epoch of a transactional id (KIP-98, KIP-360, KIP-939).

A plain request ends an open transaction and is answered CONCURRENT_TRANSACTIONS until it is ended; with keepPreparedTxn
the open transaction stays, and at most the client's pair changes (`Profile`). forceTerminateTransaction is the plain
request without a pair.
"""

from __future__ import annotations

from dataclasses import replace

from spark_2pc_sink.codes import Code
from spark_2pc_sink.ids import NO_PRODUCER_ID, TIMEOUT_NEVER_MS
from spark_2pc_sink.reference.coordinator import states
from spark_2pc_sink.reference.coordinator.end_txn import fence, following_pair, new_pair
from spark_2pc_sink.reference.coordinator.events import CLUSTER_NAME, AclOperation, InitProducerId, Resource
from spark_2pc_sink.reference.coordinator.plans import InitProducerIdReply, Plan, answer, change
from spark_2pc_sink.reference.coordinator.states import NO_EPOCH, CoordinatorState, Pair, StateId, TransactionMetadata

#: PRODUCER_FENCED exists from this version on; earlier versions use INVALID_PRODUCER_EPOCH.
_FENCED_CODE_VERSION = 4
#: Older clients treat other codes as fatal, so Kafka answers as if it were loading.
_NO_PRODUCER_ID = answer(InitProducerIdReply(Code.COORDINATOR_LOAD_IN_PROGRESS))


def init_producer_id(state: CoordinatorState, event: InitProducerId, now_ms: int) -> Plan:
    name = event.transactional_id
    # Other fields of the request, including flags, are not validated for an idempotent producer.
    refused = _request_refusal(event) or (Code.NONE if name is None else _checked(state, event))
    if refused:
        return answer(InitProducerIdReply(refused))
    metadata = None if name is None else state.get(name)
    if metadata is not None:
        return _continue(state, metadata, event, now_ms)
    taken = new_pair(state)
    if taken is None:
        return _NO_PRODUCER_ID
    pair, producer_ids = taken
    if name is None:
        return Plan(reply=InitProducerIdReply(Code.NONE, pair), producer_ids=producer_ids)
    created = TransactionMetadata(
        transactional_id=name,
        producer_id=pair.producer_id,
        producer_epoch=NO_EPOCH,
        timeout_ms=_timeout(event),
        state=StateId.EMPTY,
        last_update_ms=now_ms,
    )
    return replace(_renew(state, created, event, now_ms), producer_ids=producer_ids)


def _request_refusal(event: InitProducerId) -> Code:
    """KafkaApis.handleInitProducerIdRequest: authorisation; then producer id and epoch must both be set, or neither."""
    access, name = event.access, event.transactional_id
    if name is None:
        idempotent = access.allows(AclOperation.IDEMPOTENT_WRITE, Resource.CLUSTER, CLUSTER_NAME)
        if not idempotent and not access.allows_any(AclOperation.WRITE, Resource.TOPIC):
            return Code.CLUSTER_AUTHORIZATION_FAILED
    else:
        wanted = (AclOperation.WRITE, AclOperation.TWO_PHASE_COMMIT) if event.enable_2pc else (AclOperation.WRITE,)
        if not all(access.allows(operation, Resource.TRANSACTIONAL_ID, name) for operation in wanted):
            return Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if (event.producer_id == NO_PRODUCER_ID) != (event.producer_epoch == NO_EPOCH):
        return Code.INVALID_REQUEST
    return Code.NONE


def _checked(state: CoordinatorState, event: InitProducerId) -> Code:
    """TransactionCoordinator.handleInitProducerId: request errors that do not depend on the id's state."""
    if not event.transactional_id:
        return Code.INVALID_REQUEST
    if event.enable_2pc and not state.settings.two_phase_commit_enable:
        # KIP-939, Broker Configuration Changes: 'even if the ACL is set'.
        return Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if event.keep_prepared and not state.settings.keeps_prepared:
        return Code.UNSUPPORTED_VERSION
    if event.keep_prepared and not event.enable_2pc and state.settings.profile is states.Profile.KEEP_UNCHANGED:
        return Code.INVALID_REQUEST
    if not event.enable_2pc and not 0 < event.timeout_ms <= state.settings.transaction_max_timeout_ms:
        return Code.INVALID_TRANSACTION_TIMEOUT
    return Code.NONE


def _continue(state: CoordinatorState, metadata: TransactionMetadata, event: InitProducerId, now_ms: int) -> Plan:
    if metadata.pending is not None:
        return answer(InitProducerIdReply(Code.CONCURRENT_TRANSACTIONS))
    if event.keep_prepared and metadata.state is StateId.ONGOING:
        if state.settings.profile is not states.Profile.KEEP_UNCHANGED:
            return _keep(state, metadata, event, now_ms)
        if metadata.two_phase_commit and _is_own(metadata, event.held):
            # Nothing changes, so the producer that prepared the transaction can still end it, and add to it.
            return answer(InitProducerIdReply(Code.NONE, metadata.client_pair, metadata.pair))
    if not _is_own(metadata, event.held):
        return _fenced(event)
    if metadata.state in states.AT_REST:
        return _renew(state, metadata, event, now_ms)
    reply = InitProducerIdReply(Code.CONCURRENT_TRANSACTIONS)
    # The epoch is not checked: a stale caller's next request is refused, once the transaction is aborted.
    return fence(state, metadata, now_ms, reply) if metadata.state is StateId.ONGOING else answer(reply)


def _is_own(metadata: TransactionMetadata, held: Pair | None) -> bool:
    """True if the request is from a producer of this id, as far as the producer id shows."""
    # A kept transaction belongs only to the last pair handed out: an earlier holder that sends its own pair must not be
    # able to abort what a database may have decided to commit.
    if held is None or metadata.producer_epoch == NO_EPOCH:
        return True
    if metadata.kept:
        return held == metadata.client_pair
    previous = held.producer_id == metadata.previous_producer_id and states.exhausted(held.epoch)
    return held.producer_id == metadata.producer_id or previous


def _keep(state: CoordinatorState, metadata: TransactionMetadata, event: InitProducerId, now_ms: int) -> Plan:
    """Hand out the next pair and leave the transaction unchanged (KIP-939, Proposed Changes).

    The epoch is bumped on every call, and logged: two recoverers must never hold the same pair (KIP-939, Rejected
    Alternatives, "Skip Epoch Bump When KeepPreparedTxn=true").
    """
    client = metadata.client_pair
    if event.held not in (None, client):
        return _fenced(event)
    following = following_pair(state, client)
    if following is None:
        return _NO_PRODUCER_ID
    pair, producer_ids = following
    after = metadata.moved_to(
        StateId.ONGOING,
        now_ms,
        next_producer_id=pair.producer_id,
        next_producer_epoch=pair.epoch,
        **_timeouts_of_keeper(metadata, event),
    )
    reply = InitProducerIdReply(Code.NONE, pair, metadata.pair)
    return change(state, metadata, after, reply=reply, producer_ids=producer_ids)


def _timeouts_of_keeper(metadata: TransactionMetadata, event: InitProducerId) -> dict[str, int]:
    """Two-phase commit is a privilege of the client that holds the id, which is now this one.

    If it has the privilege, the transaction no longer expires, whichever client began it. If not, the transaction is
    left unchanged, prepared by a client that had it; later transactions expire after this client's timeout.
    """
    if event.enable_2pc:
        return {"timeout_ms": TIMEOUT_NEVER_MS, "timeout_after_keep_ms": states.SAME_TIMEOUT_MS}
    same = event.timeout_ms == metadata.timeout_ms
    return {"timeout_after_keep_ms": states.SAME_TIMEOUT_MS if same else event.timeout_ms}


def _renew(state: CoordinatorState, metadata: TransactionMetadata, event: InitProducerId, now_ms: int) -> Plan:
    """Hand out the next pair of an id at rest; the same one if the answer to an earlier request was lost (KIP-360)."""
    current, claimed = metadata.producer_epoch, event.producer_epoch
    # Without an epoch the id is new, or was created by a request whose append failed.
    if event.held is None or current in {NO_EPOCH, claimed}:
        following = following_pair(state, metadata.pair)
        if following is None:
            return _NO_PRODUCER_ID
        pair, producer_ids = following
        last = NO_EPOCH if event.held is None else current
    elif states.exhausted(current):
        # Kafka throws IllegalStateException out of prepareIncrementProducerEpoch.
        return answer(InitProducerIdReply(Code.UNKNOWN_SERVER_ERROR))
    elif claimed == metadata.last_producer_epoch:
        pair, producer_ids, last = metadata.pair, None, claimed
    else:
        return _fenced(event)
    after = metadata.moved_to(
        StateId.EMPTY,
        now_ms,
        producer_id=pair.producer_id,
        producer_epoch=pair.epoch,
        last_producer_epoch=last,
        timeout_ms=_timeout(event),
        partitions=frozenset(),
        start_ms=states.NO_TIMESTAMP,
    )
    return change(state, metadata, after, reply=InitProducerIdReply(Code.NONE, pair), producer_ids=producer_ids)


def _timeout(event: InitProducerId) -> int:
    return TIMEOUT_NEVER_MS if event.enable_2pc else event.timeout_ms


def _fenced(event: InitProducerId) -> Plan:
    old = event.version < _FENCED_CODE_VERSION
    return answer(InitProducerIdReply(Code.INVALID_PRODUCER_EPOCH if old else Code.PRODUCER_FENCED))
