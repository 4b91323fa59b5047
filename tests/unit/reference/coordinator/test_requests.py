"""What no row of the conformance tests can ask for: a coordinator without producer ids, and other rare states."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_2pc_sink.codes import Code
from spark_2pc_sink.reference.coordinator.coordinator_state import NO_BLOCK, ProducerIdBlock
from spark_2pc_sink.reference.coordinator.events import (
    AbortTimedOut,
    AddPartitionsToTxn,
    Event,
    InitProducerId,
    ListTransactions,
)
from spark_2pc_sink.reference.coordinator.plans import (
    AddPartitionsReply,
    AllocateProducerIdBlock,
    EndTxnReply,
    InitProducerIdReply,
    ListTransactionsReply,
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


def test_a_malicious_pattern_takes_linear_time() -> None:
    """Python's re needs 2**N steps here; the timeout of the test suite would end it."""
    driver = Driver.of(replace(metadata(StateId.EMPTY), transactional_id="a" * 5000 + "b"))
    assert driver.refused(ListTransactions(pattern="(a+)+$")) == ListTransactionsReply(0)
