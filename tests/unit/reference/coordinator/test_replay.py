"""Recovery from the log, and what a reload forgets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_2pc_sink.codes import Code
from spark_2pc_sink.reference.coordinator.coordinator_state import CoordinatorState, Leadership
from spark_2pc_sink.reference.coordinator.machine import finish_loading, redrive, replay, start_loading
from spark_2pc_sink.reference.coordinator.plans import SendMarkers, StepNext
from spark_2pc_sink.reference.coordinator.states import TransactionState

from .driver import RELEASED, T0, T1, TID, Driver, answered, end, in_log_order, metadata


def test_a_life_can_be_replayed() -> None:
    driver = Driver.of()
    pair = driver.init().pair
    driver.add(pair, T0, T1)
    pair = driver.end(pair).pair
    driver.add(pair, T1)
    fresh = CoordinatorState.new(RELEASED, partition_count=3)
    replayed = replay(fresh, driver.log)
    assert replayed.get(TID) == replace(driver.get(), last_producer_epoch=-1)
    assert replayed == in_log_order(fresh, driver.log)


@pytest.mark.parametrize("commit", [True, False])
def test_a_decided_transaction_is_driven_to_its_end_with_a_second_marker_everywhere(commit: bool) -> None:
    """Any Prepare* is immediately re-driven; marker progress is memory-only, so every partition gets a second one."""
    driver = Driver.of(metadata(TransactionState.ONGOING, partitions=frozenset({T0, T1})))
    driver.do(end((42, 5), commit=commit))
    (effect,) = driver.effects
    assert isinstance(effect, SendMarkers)
    driver.effects.clear()
    driver.do(answered(effect, {T0: 0}))
    reloaded = driver.crashed()
    assert list(reloaded.effects) == [replace(effect, coordinator_epoch=1)]
    assert reloaded.end((42, 5), commit=commit).code == Code.CONCURRENT_TRANSACTIONS
    reloaded.drain()
    assert reloaded.end((42, 5), commit=commit).pair == (42, 6)


def test_a_decision_without_partitions_is_completed_at_once() -> None:
    driver = Driver.of(metadata(TransactionState.EMPTY))
    driver.do(end((42, 5), commit=False))
    driver.effects.clear()
    reloaded = driver.crashed()
    assert [type(effect) for effect in reloaded.effects] == [StepNext]
    reloaded.drain()
    assert reloaded.get().pair == (42, 6)


def test_the_retry_of_an_end_survives_a_reload() -> None:
    """EndTxn v5 retry detection uses E and PP only, and survives; so does the retry after an overflow."""
    for epoch, after in ((5, (42, 6)), (32766, (1000, 0))):
        driver = Driver.of(metadata(TransactionState.ONGOING, (42, epoch)))
        driver.end((42, epoch))
        assert driver.crashed().end((42, epoch)).pair == after


def test_loading_answers_that_it_loads_until_it_is_done() -> None:
    driver = Driver.of(metadata(TransactionState.ONGOING))
    index = driver.state.partition_of(TID)
    loading = start_loading(driver.state, index)
    assert loading.find(TID) == (Code.COORDINATOR_LOAD_IN_PROGRESS, None)
    driver.do(end((42, 5)))
    loaded, effects = finish_loading(loading, index, coordinator_epoch=4, records=driver.log)
    assert loaded.partitions[index].leadership is Leadership.OWNED
    assert loaded.partitions[index].coordinator_epoch == 4
    assert effects == redrive(loaded, index)
    assert len(effects) == 1


def test_a_loaded_partition_holds_nothing_of_before() -> None:
    driver = Driver.of(metadata(TransactionState.ONGOING))
    loaded, effects = finish_loading(
        driver.state, driver.state.partition_of(TID), coordinator_epoch=1, records=driver.log
    )
    assert (loaded.get(TID), effects) == (None, ())


@pytest.mark.parametrize("level", [0, 1])
def test_logs_of_older_feature_levels_are_read(level: int) -> None:
    """TV0: log value version 0, no tags; TV1: version 1."""
    driver = Driver.of(settings=replace(RELEASED, transaction_version=level))
    pair = driver.init().pair
    driver.add(pair, T0, version=3)
    driver.end(pair, version=4)
    assert {record.version for record in driver.log} == {level}
    reloaded = driver.crashed()
    assert (reloaded.get().state, reloaded.get().pair) == (TransactionState.COMPLETE_COMMIT, pair)
    assert reloaded.get().previous_producer_id == (-1 if level == 0 else pair.producer_id)
