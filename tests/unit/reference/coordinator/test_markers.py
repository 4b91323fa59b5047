"""What leaders answer to markers, and the closing of a decided transaction."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from spark_2pc_sink.codes import Code
from spark_2pc_sink.reference.coordinator.plans import EndTxnReply, SendMarkers
from spark_2pc_sink.reference.coordinator.states import Marking, StateId

from .driver import T0, T1, T2, Driver, answered, end, metadata

ALL = frozenset({T0, T1, T2})


def decided(**changes: Any) -> tuple[Driver, SendMarkers]:
    """A committed transaction of three partitions whose markers are to be sent."""
    driver = Driver.of(metadata(StateId.ONGOING, partitions=ALL, **changes))
    driver.do(end((42, 5)))
    (effect,) = driver.effects
    driver.effects.clear()
    assert isinstance(effect, SendMarkers)
    assert effect.partitions == (T0, T1, T2)
    return driver, effect


def test_the_last_marker_closes_the_transaction() -> None:
    """Kafka, TransactionState: 'received acks from all partitions => CompleteCommit'."""
    driver, effect = decided()
    for index, partition in enumerate((T1, T0)):
        plan = driver.plan(answered(effect, {partition: 0}))
        assert (plan.records, plan.effects) == ((), ())
        driver.finish(plan)
        assert len(driver.get().partitions) == 2 - index
        assert driver.refused(end((42, 5))) == EndTxnReply(Code.CONCURRENT_TRANSACTIONS)
    driver.do(answered(effect, {T2: 0}))
    assert (driver.get().state, driver.get().pending) == (StateId.COMPLETE_COMMIT, None)
    assert (driver.get().partitions, driver.get().start_ms) == (
        frozenset(),
        metadata(StateId.ONGOING).start_ms,
    )


@pytest.mark.parametrize("code", [0, 43, 35])
def test_codes_that_finish_a_partition(code: int) -> None:
    """0 or UNSUPPORTED_(FOR_MESSAGE_FORMAT|VERSION) -> partition done."""
    driver, effect = decided()
    driver.do(answered(effect, {T0: code}))
    assert driver.get().partitions == {T1, T2}


@pytest.mark.parametrize("code", [3, 6, 7, 19, 20, 56])
def test_codes_that_are_tried_again(code: int) -> None:
    """3, 6, 7, 19, 20, storage error -> retry, with the same marker."""
    driver, effect = decided()
    plan = driver.plan(answered(effect, {T0: 0, T1: code}))
    assert plan.effects == (replace(effect, partitions=(T1,)),)
    driver.finish(plan)
    assert driver.get().partitions == {T1, T2}
    driver.do(answered(effect, {T2: 0}))
    driver.effects.clear()
    driver.do(answered(effect, {T1: 0}))
    assert driver.get().state is StateId.COMPLETE_COMMIT


@pytest.mark.parametrize("code", [47, 52, 2, 99])
def test_codes_that_give_up(code: int) -> None:
    """47 or 52 -> give up: Prepare* (answers 51) until the coordinator partition is reloaded."""
    driver, effect = decided()
    plan = driver.plan(answered(effect, {T0: 0, T1: code, T2: 6}))
    assert (plan.records, plan.effects) == ((), ())
    driver.finish(plan)
    assert driver.get().marking is Marking.GIVEN_UP
    assert driver.refused(end((42, 5))) == EndTxnReply(Code.CONCURRENT_TRANSACTIONS)
    driver.refused(answered(effect, {T1: 0, T2: 0}))
    assert driver.get().state is StateId.PREPARE_COMMIT
    reloaded = driver.crashed()
    assert reloaded.drain() == [replace(effect, coordinator_epoch=1)]
    assert reloaded.get().state is StateId.COMPLETE_COMMIT


def test_a_partition_that_is_gone_is_dropped() -> None:
    """Leader unknown in metadata (deleted topic) -> partition dropped; B18."""
    driver, effect = decided()
    driver.do(answered(effect, {T0: 0}, gone=frozenset({T1})))
    assert driver.get().partitions == {T2}
    driver.do(answered(effect, {}, gone=frozenset({T2})))
    assert driver.get().state is StateId.COMPLETE_COMMIT


def test_the_last_answer_twice_closes_the_transaction_once() -> None:
    """B5: a late second completion must not undo what the next transaction did."""
    driver, effect = decided()
    event = answered(effect, dict.fromkeys(ALL, 0))
    first = driver.plan(event)
    driver.refused(event)
    driver.finish(first)
    assert driver.add((42, 6)) == {0}
    driver.refused(event)
    assert driver.get().state is StateId.ONGOING


@pytest.mark.parametrize(("commit", "code"), [(True, 51), (False, 48)])
def test_a_log_that_is_lost_leaves_the_decision_without_anything_pending(commit: bool, code: int) -> None:
    """Prepare* with pending unset: EndTxn v5 with E = e + 1 answers 51 for the same result, 48 for the other."""
    driver, effect = decided()
    driver.append_code = Code.NOT_LEADER_OR_FOLLOWER
    driver.do(answered(effect, dict.fromkeys(ALL, 0)))
    assert (driver.get().pending, list(driver.effects)) == (None, [])
    assert driver.refused(end((42, 5), commit=commit)) == EndTxnReply(code)


def test_the_record_that_closes_a_transaction_is_tried_again_while_the_log_may_recover() -> None:
    driver, effect = decided()
    driver.append_code = Code.NOT_ENOUGH_REPLICAS
    driver.do(answered(effect, dict.fromkeys(ALL, 0)))
    assert (driver.get().state, driver.get().pending) == (StateId.PREPARE_COMMIT, StateId.COMPLETE_COMMIT)
    driver.append_code = 0
    driver.drain()
    assert (driver.get().state, driver.get().pending) == (StateId.COMPLETE_COMMIT, None)
