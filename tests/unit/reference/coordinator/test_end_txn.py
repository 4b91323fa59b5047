"""EndTxn: both grids written down a second time by hand, the arithmetic of pairs, overflow, and fencing.

The grids below are strings in the shape of a person's notes; the package has them as dictionaries. "R" is the reply
of the stored pair, "D" decides, "A" aborts nothing.
"""

from __future__ import annotations

import pytest

from spark_2pc_sink.codes import Code
from spark_2pc_sink.reference.coordinator.coordinator_state import NO_BLOCK
from spark_2pc_sink.reference.coordinator.events import AbortTimedOut, Operation, Resource
from spark_2pc_sink.reference.coordinator.plans import AllocateProducerIdBlock, EndTxnReply
from spark_2pc_sink.reference.coordinator.states import TransactionState

from .access import denied
from .driver import TID, Driver, end, metadata


@pytest.mark.parametrize("version", [4, 5])
def test_write_on_the_id_is_asked_first(version: int) -> None:
    access = denied((Operation.WRITE, Resource.TRANSACTIONAL_ID, TID))
    driver = Driver.of(metadata(TransactionState.ONGOING))
    event = end((42, 5), version=version, access=access)
    assert driver.refused(event) == EndTxnReply(Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)


def test_without_a_producer_id_left_the_end_waits() -> None:
    """Block exhausted: 14, and nothing has changed."""
    driver = Driver.of(metadata(TransactionState.ONGOING, (42, 32766)), block=NO_BLOCK)
    before = driver.state
    plan = driver.plan(end((42, 32766)))
    assert plan.effects == (AllocateProducerIdBlock(),)
    assert driver.finish(plan) == EndTxnReply(Code.COORDINATOR_LOAD_IN_PROGRESS)
    assert driver.state == before
    driver.drain()
    assert driver.end((42, 32766)).code == 0


def test_the_broken_epoch_32767_can_only_be_aborted() -> None:
    """Broken state E=32767 (old bugs): abort keeps 32767 and still rotates; commit would go negative: -1."""
    driver = Driver.of(metadata(TransactionState.ONGOING, (42, 32767)))
    assert driver.refused(end((42, 32767))) == EndTxnReply(Code.UNKNOWN_SERVER_ERROR)
    driver.do(end((42, 32767), commit=False))
    (markers,) = driver.drain()
    assert markers.producer_epoch == 32767
    assert driver.get().pair == (1000, 0)


def test_a_timeout_without_a_producer_id_left_is_tried_again_later() -> None:
    driver = Driver.of(metadata(TransactionState.ONGOING, (42, 32766)), block=NO_BLOCK)
    driver.now_ms += 60_001
    before = driver.state
    assert driver.do(AbortTimedOut(transactional_id=TID, producer_id=42)) is None
    assert driver.state == before
    driver.drain()
    driver.run(AbortTimedOut(transactional_id=TID, producer_id=42))
    assert driver.get().state is TransactionState.COMPLETE_ABORT
