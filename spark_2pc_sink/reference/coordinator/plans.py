"""Plans: the coordinator's actions for one event, with its reply and its effects.

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
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

from spark_2pc_sink.codes import Code
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.reference.coordinator.coordinator_state import CoordinatorState
from spark_2pc_sink.reference.coordinator.records import FLEXIBLE_VERSION, LogRecord, fits
from spark_2pc_sink.reference.coordinator.states import (
    DECIDED,
    NO_PAIR,
    PREDECESSORS,
    Marking,
    Pair,
    StateId,
    TransactionMetadata,
)

_Coded = TypeVar("_Coded", bound="CodeReply")


@dataclass(frozen=True)
class CodeReply:
    """Every reply is sent only AFTER the plan's records are durable: what it says must survive a crash."""

    code: int

    def failed(self: _Coded, code: int) -> _Coded:  # noqa: PYI019 - typing.Self is Python 3.11
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
Reply = InitProducerIdReply | AddPartitionsReply | AddOffsetsReply | EndTxnReply


@dataclass(frozen=True)
class EndMarker:
    """How a transaction ends, as its coordinator tells a partition leader (WriteTxnMarkers).

    ``transaction_version`` is the one used by the transaction's client; 0 if the request does not say.
    """

    producer_id: int
    producer_epoch: int
    commit: bool
    coordinator_epoch: int
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
    """The outcome of one event. Without a transactional id nothing except ``producer_ids`` changes."""

    reply: Reply | None = None
    transactional_id: str | None = None
    #: At most one.
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


def change(
    state: CoordinatorState,
    before: TransactionMetadata,
    after: TransactionMetadata,
    *,
    reply: Reply | None = None,
    effects: tuple[SendMarkers, ...] = (),
    producer_ids: range | None = None,
) -> Plan:
    """A plan that moves an id from ``before`` to ``after``, if the table allows it and the log can store it.

    If the log version cannot store ``after``, ``reply`` becomes UNSUPPORTED_VERSION and nothing changes; an id that
    began above transaction.version 0 is exempt. ``producer_ids`` are the ids left, if one was taken.
    """
    fences = before.pending is StateId.PREPARE_EPOCH_FENCE and after.state is StateId.PREPARE_ABORT
    source = StateId.PREPARE_EPOCH_FENCE if fences else before.state
    if source not in PREDECESSORS[after.state]:
        raise AssertionError(f"{before.state.label} -> {after.state.label} is not in the table of transitions")
    version = state.settings.log_version
    if not fits(before, version):
        # An id that needed tags before a downgrade keeps them. Kafka 4.4.0 fails to write such an id after a downgrade
        # to 0, and leaves it pending (CONCURRENT_TRANSACTIONS) until its log partition is loaded again.
        version = FLEXIBLE_VERSION
    value = None if after.state is StateId.DEAD else after
    if reply is not None and value is not None and not fits(value, version):
        return answer(reply.failed(Code.UNSUPPORTED_VERSION))
    index = state.partition_of(before.transactional_id)
    record = LogRecord(partition=index, transactional_id=before.transactional_id, value=value, version=version)
    return Plan(
        reply=reply,
        transactional_id=before.transactional_id,
        records=(record,),
        # A second report of the last marker must not close the transaction a second time.
        reserved=replace(
            before, pending=after.state, marking=Marking.DONE if before.state in DECIDED else Marking.SENDING
        ),
        producer_ids=producer_ids,
        effects=effects,
    )
