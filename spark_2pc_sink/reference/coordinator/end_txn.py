"""The end of a transaction: EndTxn, timeouts and expiry, the markers, and the record that closes it.

The grid of state, epoch and outcome that Kafka keeps as nested cases in ``TransactionCoordinator.endTransaction`` is
data here: `END_WITH_BUMP` for EndTxn v5, `END_WITHOUT_BUMP` below. The pair that ends a transaction is the client's
(`TransactionMetadata.client_pair`), which differs from the transaction's own only after keepPreparedTxn.

The shell asks `due_timeouts` and `due_expirations` at the intervals of the broker properties (every 10 s and every
hour by default) and steps the resulting events, one plan each.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum

from spark_2pc_sink.codes import Code
from spark_2pc_sink.ids import EPOCH_BUMP_VERSION, EPOCH_LIMIT, EPOCH_MAX, NO_PRODUCER_ID
from spark_2pc_sink.reference.coordinator import events, states
from spark_2pc_sink.reference.coordinator.events import AbortTimedOut, EndTxn, ExpireTransactionalId, MarkersAnswered
from spark_2pc_sink.reference.coordinator.plans import NOTHING, EndTxnReply, Plan, Reply, answer, change, next_effect
from spark_2pc_sink.reference.coordinator.states import NO_EPOCH, CoordinatorState, Pair, StateId, TransactionMetadata

#: First version of EndTxn whose answer contains a pair, so that the epoch can be bumped (KIP-890; Kafka: 5, not 4).
BUMPING_VERSION = 5
#: PRODUCER_FENCED exists from this version of EndTxn on; earlier versions use INVALID_PRODUCER_EPOCH.
_FENCED_CODE_VERSION = 2


class Ending(Enum):
    #: Decide the outcome of an open transaction.
    DECIDE = "decide"
    #: Abort nothing: the epoch is bumped anyway, because the client may not know this.
    ABORT_NOTHING = "abort nothing"
    #: Already done: return the stored pair again.
    REPEAT = "repeat"


_S = StateId
_FENCED = Code.PRODUCER_FENCED
_INVALID = Code.INVALID_TXN_STATE
_WAIT = Code.CONCURRENT_TRANSACTIONS
_DECISIONS = {True: StateId.PREPARE_COMMIT, False: StateId.PREPARE_ABORT}

#: EndTxn v5: state and whether to commit -> what follows for the current epoch, and for a retry with the one before;
#: any other epoch is fenced.
END_WITH_BUMP: dict[StateId, dict[bool, tuple[Code | Ending, Code | Ending]]] = {
    _S.ONGOING: {True: (Ending.DECIDE, _FENCED), False: (Ending.DECIDE, _FENCED)},
    # A commit with nothing to commit is a client that lost track; it recovers by aborting.
    _S.EMPTY: {True: (_INVALID, _FENCED), False: (Ending.ABORT_NOTHING, _FENCED)},
    _S.COMPLETE_COMMIT: {True: (_INVALID, Ending.REPEAT), False: (Ending.ABORT_NOTHING, _INVALID)},
    _S.COMPLETE_ABORT: {True: (_INVALID, _INVALID), False: (Ending.ABORT_NOTHING, Ending.REPEAT)},
    # KIP-890 answers a retry during PREPARE with success; Kafka answers CONCURRENT_TRANSACTIONS until it is complete.
    _S.PREPARE_COMMIT: {True: (_FENCED, _WAIT), False: (_FENCED, _INVALID)},
    _S.PREPARE_ABORT: {True: (_FENCED, _INVALID), False: (_FENCED, _WAIT)},
}

#: EndTxn v0 to v4, once the pair matched the current one: (state, commit) -> what follows.
END_WITHOUT_BUMP: dict[StateId, dict[bool, Code | Ending]] = {
    _S.ONGOING: {True: Ending.DECIDE, False: Ending.DECIDE},
    _S.EMPTY: {True: _INVALID, False: _INVALID},
    _S.COMPLETE_COMMIT: {True: Code.NONE, False: _INVALID},
    _S.COMPLETE_ABORT: {True: _INVALID, False: Code.NONE},
    _S.PREPARE_COMMIT: {True: _WAIT, False: _INVALID},
    _S.PREPARE_ABORT: {True: _INVALID, False: _WAIT},
}


def end_txn(state: CoordinatorState, event: EndTxn, now_ms: int) -> Plan:
    if not event.access.allows(events.AclOperation.WRITE, events.Resource.TRANSACTIONAL_ID, event.transactional_id):
        return answer(EndTxnReply(Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
    metadata = state.get(event.transactional_id) if event.transactional_id else None
    if metadata is None:
        return answer(EndTxnReply(Code.INVALID_PRODUCER_ID_MAPPING if event.transactional_id else Code.INVALID_REQUEST))
    bumps = event.version >= BUMPING_VERSION
    outcome = _outcome_with_bump(state, metadata, event) if bumps else _outcome_without_bump(state, metadata, event)
    if isinstance(outcome, Code):
        return answer(EndTxnReply(outcome))
    if outcome is Ending.REPEAT:
        return answer(EndTxnReply(Code.NONE, metadata.pair))
    if bumps:
        following = following_pair(state, metadata.client_pair)
        reply = EndTxnReply(Code.NONE, metadata.client_pair if following is None else following[0])
    elif metadata.kept:
        # The client has since learnt of a level below 2: a kept transaction must always be ended. The markers fence
        # the producer that prepared it. The client keeps its pair: the answer has no room for another one, and a
        # repeated request must be recognised.
        reply, following = EndTxnReply(Code.NONE), (metadata.client_pair, None)
    else:
        after = metadata.moved_to(_DECISIONS[event.commit], now_ms, client_transaction_version=0)
        return change(state, metadata, after, reply=EndTxnReply(Code.NONE))
    return _decide_with_bump(state, metadata, following, commit=event.commit, now_ms=now_ms, reply=reply)


def _outcome_without_bump(state: CoordinatorState, metadata: TransactionMetadata, event: EndTxn) -> Code | Ending:
    if metadata.state in states.DECIDED and metadata.sealed:
        # As EndTxn v5: until it is complete, its client does not hold the current pair.
        return _WAIT
    client = metadata.client_pair
    if event.producer_id != client.producer_id:
        return Code.INVALID_PRODUCER_ID_MAPPING
    if event.producer_epoch != client.epoch:
        return Code.INVALID_PRODUCER_EPOCH if event.version < _FENCED_CODE_VERSION else _FENCED
    if metadata.pending is not None:
        return _WAIT
    # A client that keeps knows level 2, and so the request that hands out the next pair.
    refused = metadata.kept and state.settings.transaction_version >= EPOCH_BUMP_VERSION
    return _INVALID if refused else END_WITHOUT_BUMP[metadata.state][event.commit]


def _outcome_with_bump(state: CoordinatorState, metadata: TransactionMetadata, event: EndTxn) -> Code | Ending:
    client, commit = metadata.client_pair, event.commit
    overflowed = event.pair == (metadata.previous_producer_id, EPOCH_MAX) and metadata.producer_epoch == 0
    if metadata.pending is not None:
        return _WAIT
    if event.producer_id != client.producer_id and not overflowed:
        return Code.INVALID_PRODUCER_ID_MAPPING
    current, retry = END_WITH_BUMP[metadata.state][commit]
    # KIP-890, PREPARE and COMPLETE: 'If we retry and see epoch - 1', or after an overflow 'epoch max - 1'.
    if event.producer_epoch + 1 == client.epoch or overflowed:
        # KAFKA-20785 (apache/kafka#23204, in no release up to 4.4.0): overtaken by the coordinator's own abort.
        late = state.settings.fences_late_commits and commit and metadata.state is StateId.COMPLETE_ABORT
        return _FENCED if late else retry
    return current if event.producer_epoch == client.epoch else _FENCED


def fence(state: CoordinatorState, metadata: TransactionMetadata, now_ms: int, reply: Reply | None = None) -> Plan:
    """Abort an Ongoing transaction that has no change pending, on behalf of the coordinator.

    With transaction.version 2 this is an abort like the client's, with one bump; below, the epoch is bumped first and
    the markers carry the bumped one. A kept transaction is always aborted with the bump: its client's pair moves.
    ``reply`` is the answer to the request that causes the abort; None if a timeout does.
    """
    fencing = replace(metadata, pending=StateId.PREPARE_EPOCH_FENCE)
    if metadata.kept or state.settings.transaction_version >= EPOCH_BUMP_VERSION:
        following = following_pair(state, metadata.client_pair)
        return _decide_with_bump(state, fencing, following, commit=False, now_ms=now_ms, reply=reply)
    after = fencing.moved_to(
        StateId.PREPARE_ABORT,
        now_ms,
        producer_epoch=min(metadata.producer_epoch + 1, EPOCH_LIMIT),
        last_producer_epoch=NO_EPOCH,
        # Not the cluster's level: Kafka 4.4.0 omits the tag, whatever version the client used before.
        client_transaction_version=0,
    )
    return change(state, fencing, after, reply=reply)


def abort_timed_out(state: CoordinatorState, event: AbortTimedOut, now_ms: int) -> Plan:
    """Abort a transaction that was open for too long, unless it has changed since it was found."""
    metadata = state.get(event.transactional_id)
    if metadata is None or metadata.producer_id != event.producer_id or not timed_out(metadata, now_ms):
        return NOTHING
    return fence(state, metadata, now_ms)


def timed_out(metadata: TransactionMetadata, now_ms: int) -> bool:
    """True for a transaction open for longer than its timeout; never with two-phase commit (KIP-939)."""
    idle = metadata.state is StateId.ONGOING and metadata.pending is None
    return idle and not metadata.two_phase_commit and metadata.start_ms + metadata.timeout_ms < now_ms


def _decide_with_bump(
    state: CoordinatorState,
    before: TransactionMetadata,
    following: tuple[Pair, range | None] | None,
    *,
    commit: bool,
    now_ms: int,
    reply: Reply | None,
) -> Plan:
    """Write the decision at E + 1 (KIP-890, PREPARE), together with the client's next pair if that differs."""
    client = before.client_pair
    if following is None:
        return NOTHING if reply is None else answer(reply.failed(Code.COORDINATOR_LOAD_IN_PROGRESS))
    if commit and before.producer_epoch >= EPOCH_LIMIT:
        # Left by bugs of old brokers: there is no epoch for the marker.
        return NOTHING if reply is None else answer(reply.failed(Code.UNKNOWN_SERVER_ERROR))
    next_pair, producer_ids = following
    after = before.moved_to(
        _DECISIONS[commit],
        now_ms,
        producer_epoch=min(before.producer_epoch + 1, EPOCH_LIMIT),
        previous_producer_id=client.producer_id,
        next_producer_id=next_pair.producer_id if before.kept or states.exhausted(client.epoch) else NO_PRODUCER_ID,
        next_producer_epoch=next_pair.epoch if before.kept else NO_EPOCH,
        last_producer_epoch=client.epoch,
        start_ms=now_ms if before.state in states.AT_REST else before.start_ms,
        client_transaction_version=EPOCH_BUMP_VERSION,
    )
    return change(state, before, after, reply=reply, producer_ids=producer_ids)


def following_pair(state: CoordinatorState, client: Pair) -> tuple[Pair, range | None] | None:
    """The client's next pair, and the ids left if a new one was taken; None if no id is available."""
    return new_pair(state) if states.exhausted(client.epoch) else (Pair(client.producer_id, client.epoch + 1), None)


def new_pair(state: CoordinatorState) -> tuple[Pair, range] | None:
    """A pair with a new id, and the ids left; None if the next block could not be allocated."""
    ids = state.producer_ids
    return (Pair(ids[0], 0), ids[1:]) if ids else None


def due_timeouts(state: CoordinatorState, now_ms: int) -> tuple[AbortTimedOut, ...]:
    due = (each for each in state if timed_out(each, now_ms))
    return tuple(AbortTimedOut(transactional_id=each.transactional_id, producer_id=each.producer_id) for each in due)


def due_expirations(state: CoordinatorState, now_ms: int) -> tuple[ExpireTransactionalId, ...]:
    due = (each for each in state if _expired(state, each, now_ms))
    return tuple(ExpireTransactionalId(transactional_id=each.transactional_id) for each in due)


def expire(state: CoordinatorState, event: ExpireTransactionalId, now_ms: int) -> Plan:
    metadata = state.get(event.transactional_id)
    if metadata is None or not _expired(state, metadata, now_ms):
        return NOTHING
    return change(state, metadata, metadata.moved_to(StateId.DEAD, now_ms, partitions=frozenset()))


def _expired(state: CoordinatorState, metadata: TransactionMetadata, now_ms: int) -> bool:
    unused = metadata.state in states.AT_REST and metadata.pending is None
    return unused and metadata.last_update_ms <= now_ms - state.settings.transactional_id_expiration_ms


#: Codes of a partition that needs no marker any more. This node leads every partition, so one that it does not know was
#: deleted.
_WRITTEN = frozenset({Code.NONE, Code.UNKNOWN_TOPIC_OR_PARTITION})


def markers_answered(state: CoordinatorState, event: MarkersAnswered, now_ms: int) -> Plan:
    metadata = state.get(event.transactional_id)
    if metadata is None or metadata.state not in states.DECIDED or metadata.pair != event.pair:
        return NOTHING
    if metadata.marking is not states.Marking.SENDING:
        return NOTHING
    failed = {each: code for each, code in event.results.items() if code not in _WRITTEN}
    left = replace(metadata, partitions=metadata.partitions - (event.results.keys() - failed.keys()))
    if any(code != Code.KAFKA_STORAGE_ERROR for code in failed.values()):
        # A newer producer or coordinator has taken over: the transaction stays as it is until the log is loaded again.
        return Plan(unwritten=replace(left, marking=states.Marking.GIVEN_UP))
    if not left.partitions:
        return _closing(state, left, now_ms)
    again = left.partitions & failed.keys()
    effects = (next_effect(state, replace(left, partitions=again)),) if again else ()
    return Plan(unwritten=left, effects=effects)


def _closing(state: CoordinatorState, metadata: TransactionMetadata, now_ms: int) -> Plan:
    """KIP-890, COMPLETE: the next pair replaces the transaction's own. Kafka keeps the start time; KIP-664 wants -1."""
    moved = metadata.next_producer_id != NO_PRODUCER_ID and metadata.client_transaction_version >= EPOCH_BUMP_VERSION
    kept = metadata.next_producer_epoch != NO_EPOCH
    pair = Pair(metadata.next_producer_id, metadata.next_producer_epoch if kept else 0) if moved else metadata.pair
    same_timeout = metadata.timeout_after_keep_ms == states.SAME_TIMEOUT_MS
    after = metadata.moved_to(
        states.COMPLETION[metadata.state],
        now_ms,
        producer_id=pair.producer_id,
        producer_epoch=pair.epoch,
        previous_producer_id=metadata.previous_producer_id if kept else metadata.producer_id,
        next_producer_id=NO_PRODUCER_ID,
        next_producer_epoch=NO_EPOCH,
        partitions=frozenset(),
        timeout_ms=metadata.timeout_ms if same_timeout else metadata.timeout_after_keep_ms,
        timeout_after_keep_ms=states.SAME_TIMEOUT_MS,
    )
    return change(state, metadata, after)
