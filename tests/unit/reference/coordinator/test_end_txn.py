"""EndTxn: both grids written down a second time by hand, the arithmetic of pairs, overflow, and fencing.

The grids below are strings in the shape of a person's notes; the package has them as dictionaries. "R" is the reply
of the stored pair, "D" decides, "A" aborts nothing.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_2pc_sink.codes import Code
from spark_2pc_sink.reference.coordinator.coordinator_state import NO_BLOCK
from spark_2pc_sink.reference.coordinator.events import AbortTimedOut, Operation, Resource
from spark_2pc_sink.reference.coordinator.plans import AllocateProducerIdBlock, EndTxnReply, SendMarkers
from spark_2pc_sink.reference.coordinator.states import NO_PAIR, Pair, TransactionState

from .access import denied
from .driver import RELEASED, T0, TID, Driver, end, metadata


def check(state: TransactionState, commit: bool, epoch: int, word: str, version: int) -> None:
    driver = Driver.of(metadata(state))
    event = end((42, epoch), commit=commit, version=version)
    bumped = version >= 5
    if word in "DA":
        plan = driver.plan(event)
        assert plan.reply == EndTxnReply(Code.NONE, Pair(42, 6) if bumped else NO_PAIR)
        (record,) = plan.records
        assert record.value is not None
        assert record.value.state is (TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT)
        assert record.value.producer_epoch == (6 if bumped else 5)
        assert record.value.client_transaction_version == (2 if bumped else 0)
    elif word == "R":
        assert driver.refused(event) == EndTxnReply(Code.NONE, Pair(42, 5) if bumped else NO_PAIR)
    else:
        assert driver.refused(event) == EndTxnReply(int(word))


@pytest.mark.parametrize("version", [4, 5])
def test_write_on_the_id_is_asked_first(version: int) -> None:
    access = denied((Operation.WRITE, Resource.TRANSACTIONAL_ID, TID))
    driver = Driver.of(metadata(TransactionState.ONGOING))
    event = end((42, 5), version=version, access=access)
    assert driver.refused(event) == EndTxnReply(Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)


@pytest.mark.parametrize(("version", "marker_epoch", "transaction_version"), [(5, 6, 2), (4, 5, 0)])
def test_what_markers_and_records_carry(version: int, marker_epoch: int, transaction_version: int) -> None:
    """TV2: Prepare, markers and Complete at E + 1; TV0/1: the epoch is unchanged throughout."""
    driver = Driver.of(metadata(TransactionState.ONGOING))
    driver.do(end((42, 5), version=version))
    assert driver.drain() == [
        SendMarkers(
            transactional_id=TID,
            producer_id=42,
            producer_epoch=marker_epoch,
            coordinator_epoch=0,
            commit=True,
            transaction_version=transaction_version,
            partitions=(T0,),
        )
    ]
    assert driver.get() == metadata(
        TransactionState.COMPLETE_COMMIT,
        (42, marker_epoch),
        last_producer_epoch=5 if version == 5 else -1,
        client_transaction_version=transaction_version,
    )


@pytest.mark.parametrize("commit", [True, False])
def test_the_last_epoch_ends_in_a_new_producer_id(commit: bool) -> None:
    """Prepare (P, 32767, NP=new), Complete (new, 0, PP=old), LE stays 32766; clients never see 32767."""
    driver = Driver.of(metadata(TransactionState.ONGOING, (42, 32766)))
    assert driver.end((42, 32766), commit=commit) == EndTxnReply(0, Pair(1000, 0))
    prepare, complete = (each.value for each in driver.log)
    assert prepare is not None
    assert complete is not None
    assert (prepare.producer_id, prepare.producer_epoch, prepare.next_producer_id) == (42, 32767, 1000)
    assert (complete.producer_id, complete.producer_epoch, complete.next_producer_id) == (1000, 0, -1)
    assert (complete.previous_producer_id, complete.next_producer_epoch) == (42, -1)
    assert driver.get().last_producer_epoch == 32766
    # KIP-890, COMPLETE: 'If we retry and see epoch max - 1 + ID in last seen fields ... we can return'.
    assert driver.end((42, 32766), commit=commit) == EndTxnReply(0, Pair(1000, 0))
    assert driver.refused(end((42, 32766), commit=not commit)) == EndTxnReply(Code.INVALID_TXN_STATE)
    assert driver.refused(end((42, 32765), commit=commit)) == EndTxnReply(Code.INVALID_PRODUCER_ID_MAPPING)


def test_the_epoch_before_the_last_does_not_overflow() -> None:
    driver = Driver.of(metadata(TransactionState.ONGOING, (42, 32765)))
    assert driver.end((42, 32765)) == EndTxnReply(0, Pair(42, 32766))
    assert driver.get().next_producer_id == -1


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


@pytest.mark.parametrize(
    ("level", "after_abort", "after_retry"), [(2, (1000, 0), (1000, 1)), (1, (42, 32767), (1000, 0))]
)
def test_fencing_the_last_epoch(level: int, after_abort: tuple[int, int], after_retry: tuple[int, int]) -> None:
    """At E=32766, TV2: PrepareAbort 32767 -> CompleteAbort (newPid,0) -> retry (newPid,1); TV0/1: the retry rotates."""
    known = metadata(TransactionState.ONGOING, (42, 32766), client_transaction_version=0)
    driver = Driver.of(known, settings=replace(RELEASED, transaction_version=level))
    assert driver.init().code == Code.CONCURRENT_TRANSACTIONS
    assert driver.log[0].value is not None
    assert driver.log[0].value.producer_epoch == 32767
    assert driver.get().pair == after_abort
    assert driver.init().pair == after_retry


def test_a_timeout_without_a_producer_id_left_is_tried_again_later() -> None:
    driver = Driver.of(metadata(TransactionState.ONGOING, (42, 32766)), block=NO_BLOCK)
    driver.now_ms += 60_001
    before = driver.state
    assert driver.do(AbortTimedOut(transactional_id=TID, producer_id=42)) is None
    assert driver.state == before
    driver.drain()
    driver.run(AbortTimedOut(transactional_id=TID, producer_id=42))
    assert driver.get().state is TransactionState.COMPLETE_ABORT
