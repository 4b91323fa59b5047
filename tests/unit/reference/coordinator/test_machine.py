"""The two steps of every change: pending while the append is under way, then in place or as if nothing had been."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_2pc_sink.codes import Code
from spark_2pc_sink.reference.coordinator import events
from spark_2pc_sink.reference.coordinator.events import AddPartitionsToTxn, InitProducerId, ListTransactions
from spark_2pc_sink.reference.coordinator.machine import settle, step
from spark_2pc_sink.reference.coordinator.plans import AddPartitionsReply, EndTxnReply, InitProducerIdReply, change
from spark_2pc_sink.reference.coordinator.states import NO_PAIR, StateId

from .driver import START_MS, T0, TID, Driver, end, metadata

ADD = AddPartitionsToTxn(transactional_id=TID, producer_id=42, producer_epoch=5, partitions=(T0,))
#: A change from each kind of request: event, state before, what it is pending as.
CHANGES = {
    "InitProducerId": (InitProducerId(transactional_id=TID), StateId.EMPTY, StateId.EMPTY),
    "fence": (InitProducerId(transactional_id=TID), StateId.ONGOING, StateId.PREPARE_ABORT),
    "AddPartitionsToTxn": (ADD, StateId.COMPLETE_ABORT, StateId.ONGOING),
    "EndTxn": (end((42, 5)), StateId.ONGOING, StateId.PREPARE_COMMIT),
    "EndTxn v4": (end((42, 5), version=4), StateId.ONGOING, StateId.PREPARE_COMMIT),
    "empty abort": (end((42, 5), commit=False), StateId.EMPTY, StateId.PREPARE_ABORT),
}


@pytest.mark.parametrize(("event", "before", "pending"), CHANGES.values(), ids=CHANGES.keys())
class TestEveryChange:
    def test_is_pending_until_it_is_durable(self, event: events.Event, before: StateId, pending: StateId) -> None:
        """`prepare` sets pendingState; everything else waits meanwhile."""
        known = metadata(before)
        driver = Driver.of(known)
        plan = driver.plan(event)
        assert driver.get() == replace(known, pending=pending)
        for other in (InitProducerId(transactional_id=TID), ADD, end((42, 5)), end((42, 5), version=4)):
            reply = driver.refused(other)
            code = reply.codes[T0] if isinstance(reply, AddPartitionsReply) else reply.code  # type: ignore[union-attr]
            assert code == Code.CONCURRENT_TRANSACTIONS
        driver.finish(plan)
        assert driver.get().state is pending

    @pytest.mark.parametrize(
        ("append_code", "code"),
        [(3, 15), (6, 16), (10, -1), (14, 14)],
    )
    def test_that_fails_leaves_nothing_behind(
        self, event: events.Event, before: StateId, pending: StateId, append_code: int, code: int
    ) -> None:
        """On append failure pending is cleared, nothing changes; 3/19/20/7 -> 15; 6/56 -> 16; too large -> -1."""
        driver = Driver.of(metadata(before))
        driver.append_code = append_code
        reply = driver.do(event)
        assert driver.get() == metadata(before)
        assert list(driver.effects) == []
        assert driver.log == []
        expected = {
            InitProducerIdReply: InitProducerIdReply(code),
            AddPartitionsReply: AddPartitionsReply(TID, ((T0, code),)),
            EndTxnReply: EndTxnReply(code),
        }
        assert reply == expected[type(reply)]


def test_an_id_whose_first_record_failed_stays_and_starts_at_epoch_0() -> None:
    """Unknown id: created in memory {newPid, E=-1}; the grid's row 'created now' serves the next attempt."""
    driver = Driver.of()
    driver.append_code = Code.NOT_ENOUGH_REPLICAS
    assert driver.init() == InitProducerIdReply(Code.COORDINATOR_NOT_AVAILABLE, NO_PAIR)
    assert (driver.get().pair, driver.get().pending) == ((1000, -1), None)
    driver.append_code = 0
    assert driver.init(producer_id=3, producer_epoch=3).pair == (1000, 0)


def test_a_plan_without_records_settles_whatever_the_log_says() -> None:
    driver = Driver.of()
    listing = step(driver.state, ListTransactions(), driver.now_ms)
    assert settle(driver.state, listing, Code.NOT_ENOUGH_REPLICAS).reply == listing.reply


def test_a_transition_that_the_table_does_not_have_is_a_bug() -> None:
    """As Kafka's IllegalStateException in prepareTransitionTo."""
    before = metadata(StateId.EMPTY)
    with pytest.raises(AssertionError, match="Empty -> CompleteCommit"):
        change(Driver.of().state, before, before.moved_to(StateId.COMPLETE_COMMIT, START_MS))
