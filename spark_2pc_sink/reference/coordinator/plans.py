"""Plans: the coordinator's actions for one event, with its reply, its record and its effects.

The order is the contract, as in etcd's raft (``Ready``)::

    plan = step(state, event, now_ms)
    state = reserve(state, plan)            # at once, before any other event is stepped
    code = ...                              # append plan.records, wait until they are durable; 0 or a Kafka code
    settled = settle(state, plan, code)     # applies, or clears what was reserved
    state = settled.state
    ...                                     # only now: send settled.reply, then carry out settled.effects

A plan without records may be settled at once; so may that of a leader which adds its partition itself (KIP-890,
implicit add), once its record is written, because the leader waits for the producer's records instead. When a crash
leaves only those, `machine.unrecorded` finds them.

The records are those of ``__transaction_state``: TransactionLogKey and TransactionLogValue as bytes. The layout follows
the schema in Kafka 4.4.0 (``TransactionLogValue.json``), not KIP-939: NextProducerEpoch is tag 3 there, because tag 2
was already ClientTransactionVersion. A tag at its default is not written. Partitions are null for Empty and only for
Empty, and are written in order of topic and partition, so that equal states have equal bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import LocalProtocolError, RemoteProtocolError
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.reference import internal_topics as schemas
from spark_2pc_sink.reference.coordinator import states
from spark_2pc_sink.reference.coordinator.states import NO_PAIR, Pair, StateId, TransactionMetadata

#: The only version of TransactionLogKey, "coordinator-key" 0.
KEY_VERSION = 0
_PEER: Final = "the transaction state log"
#: Fields of an id and their names in Kafka's schema, in its order, tags last; the partitions are encoded separately.
_NAMES: Final = {
    "producer_id": "producer_id",
    "producer_epoch": "producer_epoch",
    "timeout_ms": "transaction_timeout_ms",
    "state": "transaction_status",
    "last_update_ms": "transaction_last_update_timestamp_ms",
    "start_ms": "transaction_start_timestamp_ms",
    "previous_producer_id": "previous_producer_id",
    "next_producer_id": "next_producer_id",
    "client_transaction_version": "client_transaction_version",
    "next_producer_epoch": "next_producer_epoch",
    "timeout_after_keep_ms": "timeout_after_keep_ms",
}


def fits(metadata: TransactionMetadata, version: int) -> bool:
    """False if ``version`` would lose data of a client on transaction.version 2 (UNSUPPORTED_VERSION) or a kept one."""
    tagged = metadata.client_transaction_version, metadata.next_producer_epoch, metadata.timeout_after_keep_ms
    return version >= states.FLEXIBLE_VERSION or tagged == (0, states.NO_EPOCH, states.SAME_TIMEOUT_MS)


def encode_value(metadata: TransactionMetadata, version: int) -> bytes:
    if not fits(metadata, version):
        raise LocalProtocolError(
            operation=f"TransactionLogValue v{version}", state=metadata.state.label, rule="tagged fields need version 1"
        )
    by_topic = groupby(sorted(metadata.partitions), key=lambda each: each.topic)
    kind = schemas.TransactionLogValue.PartitionsSchema
    partitions = [kind(topic=topic, partition_ids=[each.partition for each in members]) for topic, members in by_topic]
    value = schemas.TransactionLogValue(
        transaction_partitions=None if metadata.state is StateId.EMPTY else partitions,
        **{theirs: getattr(metadata, ours) for ours, theirs in _NAMES.items()},
    )
    return schemas.encode(value, version)


def decode_value(transactional_id: str, data: bytes) -> TransactionMetadata:
    found = schemas.decode_value(schemas.TransactionLogValue, data, peer=_PEER)
    if found.transaction_status not in set(StateId) - states.TRANSIENT:
        raise RemoteProtocolError(peer=_PEER, detail=f"state {found.transaction_status} is never stored")
    given = {ours: getattr(found, theirs) for ours, theirs in _NAMES.items()}
    state = StateId(found.transaction_status)
    topics = found.transaction_partitions or ()
    partitions = frozenset(TopicPartition(each.topic, index) for each in topics for index in each.partition_ids)
    fields = {**given, "state": state, "partitions": partitions, "pending": states.COMPLETION.get(state)}
    return TransactionMetadata(transactional_id=transactional_id, **fields)


@dataclass(frozen=True, kw_only=True)
class LogRecord:
    """One record for one partition of ``__transaction_state``; without a value a tombstone, which removes the id.

    The bytes lack what exists in memory only, and in version 0 the tagged fields.
    """

    partition: int
    transactional_id: str
    value: TransactionMetadata | None
    version: int = states.FLEXIBLE_VERSION

    @property
    def key_bytes(self) -> bytes:
        return schemas.encode(schemas.TransactionLogKey(transactional_id=self.transactional_id))

    @property
    def value_bytes(self) -> bytes | None:
        return None if self.value is None else encode_value(self.value, self.version)

    @classmethod
    def decode(cls, partition: int, key: bytes, value: bytes | None) -> LogRecord:
        """Decode a record whose key has KEY_VERSION."""
        name = schemas.decode(schemas.TransactionLogKey, key, version=KEY_VERSION, peer=_PEER).transactional_id
        if value is None:
            return cls(partition=partition, transactional_id=name, value=None)
        version = schemas.prefix_of(value, peer=_PEER)
        return cls(partition=partition, transactional_id=name, value=decode_value(name, value), version=version)


def key_version(data: bytes) -> int:
    """The version of a record's key. Records with any but KEY_VERSION are skipped."""
    return schemas.prefix_of(data, peer=_PEER)


#: What a coordinator answers when the append to its log failed
#: (TransactionStateManager.appendTransactionToLog: a client should look for the coordinator again, or retry).
_APPEND_ERRORS: dict[int, Code] = {
    Code.KAFKA_STORAGE_ERROR: Code.NOT_COORDINATOR,
    Code.MESSAGE_TOO_LARGE: Code.UNKNOWN_SERVER_ERROR,
    Code.RECORD_LIST_TOO_LARGE: Code.UNKNOWN_SERVER_ERROR,
}


def append_error(code: int) -> int:
    """The client's code for an append that failed with ``code``; an unlisted code is returned unchanged."""
    return _APPEND_ERRORS.get(code, code)


@dataclass(frozen=True)
class CodeReply:
    """Every reply is sent only AFTER the plan's records are durable: what it says must survive a crash."""

    code: int

    def failed(self, code: int) -> CodeReply:
        return type(self)(code)


@dataclass(frozen=True)
class InitProducerIdReply(CodeReply):
    """``ongoing`` is the kept transaction's pair, or (-1, -1) (v6)."""

    pair: Pair = NO_PAIR
    ongoing: Pair = NO_PAIR


@dataclass(frozen=True)
class AddPartitionsReply:
    transactional_id: str
    results: tuple[tuple[TopicPartition, int], ...]

    def failed(self, code: int) -> AddPartitionsReply:
        return AddPartitionsReply(self.transactional_id, tuple((partition, code) for partition, _ in self.results))

    @property
    def codes(self) -> dict[TopicPartition, int]:
        return dict(self.results)


class AddOffsetsReply(CodeReply): ...


@dataclass(frozen=True)
class EndTxnReply(CodeReply):
    """``pair`` is for the next transaction (v5); (-1, -1) in errors and below v5, where the message lacks it."""

    pair: Pair = NO_PAIR


#: Each defines its own reply for a failed append.
Reply = CodeReply | AddPartitionsReply


@dataclass(frozen=True)
class EndMarker:
    """How a transaction ends, as its coordinator tells a partition leader (WriteTxnMarkers)."""

    producer_id: int
    producer_epoch: int
    commit: bool
    coordinator_epoch: int
    #: That of the transaction's client; 0 if the request does not say.
    transaction_version: int = 0


@dataclass(frozen=True, kw_only=True)
class SendMarkers(EndMarker):
    """Write end markers to these partitions, perhaps none, AFTER the plan's records are durable (WriteTxnMarkers v2).

    Report the answers as `MarkersAnswered`; partitions to retry are returned as a further effect. The caller chooses
    the pause between attempts. Sending twice is harmless: leaders accept the same marker again.
    """

    transactional_id: str
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, kw_only=True)
class Plan:
    reply: Reply | None = None
    #: At most one for an event.
    records: tuple[LogRecord, ...] = ()
    #: Applies from `reserve` on, pending while the append is in progress.
    reserved: TransactionMetadata | None = None
    #: Set by `apply` without a record (received markers).
    unwritten: TransactionMetadata | None = None
    #: The ids left; applied by `reserve`, so that no two plans use the same id.
    producer_ids: range | None = None
    effects: tuple[SendMarkers, ...] = ()


#: Nothing happens.
NOTHING = Plan()


def answer(reply: Reply) -> Plan:
    return Plan(reply=reply)


def next_effect(state: states.CoordinatorState, decided: TransactionMetadata) -> SendMarkers:
    """What a decided transaction still needs: its markers; without partitions their answer closes it at once."""
    return SendMarkers(
        **decided.ids,
        coordinator_epoch=state.partitions[state.partition_of(decided.transactional_id)].coordinator_epoch,
        commit=decided.state is StateId.PREPARE_COMMIT,
        transaction_version=decided.client_transaction_version,
        partitions=tuple(sorted(decided.partitions)),
    )


def change(
    state: states.CoordinatorState,
    before: TransactionMetadata,
    after: TransactionMetadata,
    *,
    reply: Reply | None = None,
    producer_ids: range | None = None,
) -> Plan:
    """A plan that moves an id from ``before`` to ``after``, if the table allows it and the log can store it.

    If the log version cannot store ``after``, ``reply`` becomes UNSUPPORTED_VERSION and nothing changes; an id that
    began above transaction.version 0 is exempt. ``producer_ids`` are the ids left, if one was taken.
    """
    fences = before.pending is StateId.PREPARE_EPOCH_FENCE and after.state is StateId.PREPARE_ABORT
    source = StateId.PREPARE_EPOCH_FENCE if fences else before.state
    if source not in states.PREDECESSORS[after.state]:
        raise AssertionError(f"{before.state.label} -> {after.state.label} is not in the table of transitions")
    version = state.settings.log_version
    if not fits(before, version):
        # An id that needed tags before a downgrade keeps them. Kafka 4.4.0 fails to write such an id after a downgrade
        # to 0, and leaves it pending (CONCURRENT_TRANSACTIONS) until its log partition is loaded again.
        version = states.FLEXIBLE_VERSION
    value = None if after.state is StateId.DEAD else after
    if reply is not None and value is not None and not fits(value, version):
        return answer(reply.failed(Code.UNSUPPORTED_VERSION))
    index = state.partition_of(before.transactional_id)
    record = LogRecord(partition=index, transactional_id=before.transactional_id, value=value, version=version)
    return Plan(
        reply=reply,
        records=(record,),
        # A second report of the last marker must not close the transaction a second time.
        reserved=replace(
            before,
            pending=after.state,
            marking=states.Marking.DONE if before.state in states.DECIDED else states.Marking.SENDING,
        ),
        producer_ids=producer_ids,
        effects=(next_effect(state, after),) if after.state in states.DECIDED else (),
    )
