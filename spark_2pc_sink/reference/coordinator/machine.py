"""The coordinator as a machine: `step`, `reserve`, `settle`, and `apply`, which recovery uses too.

Nothing here waits, reads a clock, draws a number or keeps anything: all that is known is in `CoordinatorState`, all
that happens is an `Event`, all that shall be done is in the `Plan`. The order of calls is in `plans`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from spark_2pc_sink.codes import Code
from spark_2pc_sink.ids import NO_PRODUCER_ID
from spark_2pc_sink.reference.coordinator import events
from spark_2pc_sink.reference.coordinator.add_partitions import add_offsets, add_partitions
from spark_2pc_sink.reference.coordinator.coordinator_state import CoordinatorState, Leadership
from spark_2pc_sink.reference.coordinator.end_txn import abort_timed_out, end_txn
from spark_2pc_sink.reference.coordinator.expiry import expire
from spark_2pc_sink.reference.coordinator.init_producer_id import block_allocated, init_producer_id
from spark_2pc_sink.reference.coordinator.leader_answers import append_error
from spark_2pc_sink.reference.coordinator.markers import complete, markers_answered
from spark_2pc_sink.reference.coordinator.plans import (
    DescribeTransactionsReply,
    Effect,
    ListTransactionsReply,
    Plan,
    Reply,
    StepNext,
)
from spark_2pc_sink.reference.coordinator.queries import describe_transactions, list_transactions
from spark_2pc_sink.reference.coordinator.records import LogRecord
from spark_2pc_sink.reference.coordinator.states import COMPLETION, Marking, TransactionMetadata

_Handler = Callable[[CoordinatorState, Any, int], Plan]

#: Which function carries out which event.
HANDLERS: dict[type, _Handler] = {
    events.InitProducerId: init_producer_id,
    events.AddPartitionsToTxn: add_partitions,
    events.AddOffsetsToTxn: add_offsets,
    events.EndTxn: end_txn,
    events.ListTransactions: list_transactions,
    events.DescribeTransactions: describe_transactions,
    events.MarkersAnswered: markers_answered,
    events.CompleteTransaction: complete,
    events.AbortTimedOut: abort_timed_out,
    events.ExpireTransactionalId: expire,
    events.ProducerIdBlockAllocated: block_allocated,
}


def step(state: CoordinatorState, event: events.Event, now_ms: int) -> Plan:
    """What the event leads to; ``state`` is only read.

    Args:
        state: what is known.
        event: what happened.
        now_ms: milliseconds since 1970, by the caller's clock.
    """
    return HANDLERS[type(event)](state, event, now_ms)


def reserve(state: CoordinatorState, plan: Plan) -> CoordinatorState:
    """Note that the plan is under way: its id is pending, the producer ids it took are gone.

    Must come right after `step`, before any other event is stepped.
    """
    reserved = state if plan.producer_ids is None else replace(state, producer_ids=plan.producer_ids)
    if plan.reserved is None:
        return reserved
    return reserved.with_metadata(plan.reserved.transactional_id, plan.reserved)


def apply(state: CoordinatorState, plan: Plan) -> CoordinatorState:
    """Put the plan's outcome in place, once its records are durable.

    What is put in place is read from the record, not from anything that led to it, so that a recovery from the log
    comes to the same state.
    """
    for record in plan.records:
        state = state.with_metadata(record.transactional_id, _restored(record, plan))
    if plan.unwritten is not None:
        state = state.with_metadata(plan.unwritten.transactional_id, plan.unwritten)
    return state


@dataclass(frozen=True)
class Settled:
    """A plan that is over: the state after it, then the reply to send, then the effects to carry out."""

    state: CoordinatorState
    reply: Reply | None
    effects: tuple[Effect, ...]


def settle(state: CoordinatorState, plan: Plan, append_code: int = Code.NONE) -> Settled:
    """End a plan that was reserved.

    Args:
        state: as it is now, other plans may have come and gone.
        plan: the plan.
        append_code: 0 when the plan's records are durable, or have not to be; else Kafka's code of the failed append.
    """
    if overtaken(state, plan):
        # The partition was loaded again, by this or another coordinator: what was reserved is no longer there.
        return Settled(state, _failed(plan, Code.NOT_COORDINATOR), ())
    if append_code == Code.NONE:
        return Settled(apply(state, plan), plan.reply, plan.effects)
    return _refused(state, plan, append_error(append_code))


def overtaken(state: CoordinatorState, plan: Plan) -> bool:
    """True where the leadership of the plan's log partition changed since the plan was made."""
    partitions = (state.partitions[record.partition] for record in plan.records)
    return any(
        (each.leadership, each.coordinator_epoch) != (Leadership.OWNED, plan.coordinator_epoch) for each in partitions
    )


def _refused(state: CoordinatorState, plan: Plan, code: int) -> Settled:
    """Clear what was pending; nothing else has changed, and the producer ids that were taken stay unused.

    The record that closes a transaction is owed whatever happens, so while the log may come back it is tried again.
    """
    before = plan.reserved
    if before is None:
        return Settled(state, _failed(plan, code), ())
    effects: tuple[Effect, ...] = ()
    pending = None
    if before.marking is Marking.DONE and code == Code.COORDINATOR_NOT_AVAILABLE:
        pending = COMPLETION[before.state]
        again = events.CompleteTransaction(
            transactional_id=before.transactional_id,
            producer_id=before.producer_id,
            producer_epoch=before.producer_epoch,
            coordinator_epoch=plan.coordinator_epoch,
        )
        effects = (StepNext(again),)
    cleared = replace(before, pending=pending, marking=Marking.SENDING)
    return Settled(state.with_metadata(before.transactional_id, cleared), _failed(plan, code), effects)


def _failed(plan: Plan, code: int) -> Reply | None:
    if plan.reply is None or isinstance(plan.reply, ListTransactionsReply | DescribeTransactionsReply):
        return plan.reply
    return plan.reply.failed(code)


def _restored(record: LogRecord, plan: Plan) -> TransactionMetadata | None:
    value = record.value
    if value is None:
        return None
    return TransactionMetadata(
        transactional_id=record.transactional_id,
        producer_id=value.producer_id,
        producer_epoch=value.producer_epoch,
        timeout_ms=value.timeout_ms,
        state=value.state,
        last_update_ms=value.last_update_ms,
        previous_producer_id=plan.previous_producer_id
        if value.previous_producer_id == NO_PRODUCER_ID
        else value.previous_producer_id,
        next_producer_id=value.next_producer_id,
        next_producer_epoch=value.next_producer_epoch,
        timeout_after_keep_ms=value.timeout_after_keep_ms,
        last_producer_epoch=plan.last_producer_epoch,
        partitions=value.partitions or frozenset(),
        start_ms=value.start_ms,
        client_transaction_version=value.client_transaction_version,
        pending=COMPLETION.get(value.state),
    )
