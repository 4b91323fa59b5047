"""The times of the steps of a batch."""

from __future__ import annotations

from spark_2pc_sink.recipe.steps import Step
from spark_2pc_sink.sink.driver.step_observer import StepTimes
from tests.unit.fakes.clock import FakeClock


def test_each_step_has_the_time_since_the_one_before_it() -> None:
    """Of a batch that ran twice: steps that were reached twice have the sum, and the times add up to the whole."""
    clock = FakeClock()
    times = StepTimes(clock)
    clock.now += 100
    times.begin()
    reached = [(Step.PLACE, 1.0), (Step.PRODUCE, 2.0), (Step.RECOVER, 4.0), (Step.PLACE, 8.0), (Step.PRODUCE, 16.0)]
    for step, seconds in reached:
        clock.now += seconds
        times(step)
    assert times.by_step == {"place": 9.0, "produce": 18.0, "recover": 4.0}
    assert times.total_s == 31.0
    assert times.figures == {"seconds": 31.0, "step_seconds": times.by_step}
    times.begin(source_lag=4)
    assert times.figures == {"seconds": 0, "step_seconds": {}, "source_lag": 4}
    assert (times.by_step, times.total_s) == ({}, 0.0)
