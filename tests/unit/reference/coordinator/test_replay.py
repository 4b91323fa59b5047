"""Recovery from the log, and what a reload forgets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_2pc_sink.codes import Code
from spark_2pc_sink.reference.coordinator.plans import SendMarkers, StepNext
from spark_2pc_sink.reference.coordinator.states import TransactionState

from .driver import RELEASED, T0, T1, Driver, answered, end, metadata


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
