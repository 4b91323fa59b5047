"""What no row of the conformance tests can ask for: a coordinator without producer ids, and other rare states."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_2pc_sink.codes import Code
from spark_2pc_sink.reference.coordinator.coordinator_state import NO_BLOCK, ProducerIdBlock, ProducerIds, partition_for
from spark_2pc_sink.reference.coordinator.events import AbortTimedOut, AddPartitionsToTxn, Event, InitProducerId
from spark_2pc_sink.reference.coordinator.plans import (
    AddPartitionsReply,
    AllocateProducerIdBlock,
    EndTxnReply,
    InitProducerIdReply,
    Reply,
)
from spark_2pc_sink.reference.coordinator.states import StateId, TransactionMetadata

from .driver import KEEPING, T0, TID, Driver, end, metadata

LOADING = Code.COORDINATOR_LOAD_IN_PROGRESS
FULL = {state: metadata(state, (42, 32766)) for state in (StateId.EMPTY, StateId.ONGOING)}


@pytest.mark.parametrize(
    ("known", "event", "reply"),
    [
        (None, InitProducerId(transactional_id=None), InitProducerIdReply(LOADING)),
        (None, InitProducerId(transactional_id=TID), InitProducerIdReply(LOADING)),
        (FULL[StateId.EMPTY], InitProducerId(transactional_id=TID), InitProducerIdReply(LOADING)),
        (
            FULL[StateId.ONGOING],
            InitProducerId(transactional_id=TID, keep_prepared=True),
            InitProducerIdReply(LOADING),
        ),
        (FULL[StateId.ONGOING], end((42, 32766)), EndTxnReply(LOADING)),
        (FULL[StateId.ONGOING], AbortTimedOut(transactional_id=TID, producer_id=42), None),
    ],
    ids=["no id", "new id", "rotation", "kept", "end", "timeout"],
)
def test_without_a_producer_id_nothing_changes_until_the_next_block_is_there(
    known: TransactionMetadata | None, event: Event, reply: Reply | None
) -> None:
    """Block exhausted: 14; also at start-up until the first block arrives."""
    driver = Driver.of(*([] if known is None else [known]), settings=KEEPING, block=NO_BLOCK)
    driver.now_ms += 60_001
    before = driver.state
    plan = driver.plan(event)
    assert plan.effects == (AllocateProducerIdBlock(),)
    assert (driver.finish(plan), driver.state) == (reply, before)
    driver.drain()
    again = driver.run(event)
    assert getattr(again, "code", 0) == 0
    assert driver.state.producer_ids.taken == 1


@pytest.mark.parametrize("tid", [None, TID])
def test_the_next_block_is_fetched_ahead(tid: str | None) -> None:
    driver = Driver.of(block=ProducerIdBlock(0, 1))
    plan = driver.plan(InitProducerId(transactional_id=tid))
    assert plan.effects == (AllocateProducerIdBlock(),)
    driver.finish(plan)
    driver.drain()
    assert driver.init("another").pair == (1000, 0)


def test_an_id_that_never_got_an_epoch_takes_nothing() -> None:
    """Left by a first InitProducerId whose append failed."""
    event = AddPartitionsToTxn(transactional_id=TID, producer_id=42, producer_epoch=-1, partitions=(T0,))
    driver = Driver.of(metadata(StateId.EMPTY, (42, -1)))
    assert driver.refused(event) == AddPartitionsReply(TID, ((T0, Code.UNKNOWN_SERVER_ERROR),))


@pytest.mark.parametrize(
    ("name", "expected"),
    # String.hashCode of Java 17: orders -1008770331, '' 0, "polygenelubricants" Integer.MIN_VALUE, a😀 1866116.
    [("orders", 31), ("", 0), ("polygenelubricants", 0), ("a\U0001f600", 16)],
)
def test_an_id_lives_where_kafka_puts_it(name: str, expected: int) -> None:
    """abs(java String.hashCode(tid)) mod N, abs(MIN_INT) = 0."""
    assert partition_for(name, 50) == expected


def test_a_block_is_wanted_when_nine_tenths_are_used() -> None:
    ids = ProducerIds(ProducerIdBlock(0, 10), taken=8)
    assert not ids.wants_block
    assert replace(ids, taken=9).wants_block
    assert not replace(ids, taken=9).with_block(ProducerIdBlock(10, 10)).wants_block
    assert ProducerIds(NO_BLOCK).wants_block


@pytest.mark.parametrize("again", [ProducerIdBlock(0, 10), ProducerIdBlock(10, 10), ProducerIdBlock(20, 10)])
def test_a_block_that_is_here_or_not_needed_changes_nothing(again: ProducerIdBlock) -> None:
    """No id is handed out twice because an allocation was reported twice."""
    ids = ProducerIds(ProducerIdBlock(0, 10)).with_block(ProducerIdBlock(10, 10))
    assert ids.with_block(again) == ids
    assert ProducerIds(ProducerIdBlock(0, 10)).with_block(ProducerIdBlock(0, 10)).following is None
