"""Figures of runs that took turns in a cluster: ratios of turns, and the pair's better way in each."""

from __future__ import annotations

import pytest

from benchmarks.cluster import figures, ratio_of_turns
from benchmarks.runs import BatchFigures, RunFigures


def of(*seconds: float) -> RunFigures:
    first, *warm = (BatchFigures(each, {"spark": 2 * each}) for each in seconds)
    return RunFigures(first, tuple(warm), None)


def test_a_ratio_is_of_one_turn_and_the_median_of_the_turns_counts() -> None:
    """A minute in which the machine was slow for both sides changes nothing."""
    found = ratio_of_turns([[200.0, 100.0, 300.0], [20.0], [900.0]], [[100.0], [10.0], [300.0]])
    assert found == {"median": 2.0, "low": 2.0, "high": 3.0, "count": 3}


def test_first_batches_and_warm_ones_are_compared_by_themselves_with_the_faster_pair_of_each() -> None:
    runs = {
        "ours": [of(4.0, 2.0, 2.0), of(4.0, 2.0, 2.0)],
        "pair": [of(8.0, 6.0, 6.0), of(8.0, 6.0, 6.0)],
        "pair_persisted": [of(9.0, 5.0, 5.0), of(9.0, 5.0, 5.0)],
        "copy": [of(2.0, 1.0, 1.0), of(2.0, 1.0, 1.0)],
    }
    steps = {"first": [{"outside": 1.0, "produce": 3.0}], "warm": [{"produce": 2.0}, {"outside": 0.5, "produce": 1.0}]}
    found = figures(runs, steps, 1_000_000)
    first, warm = found["first"], found["warm"]
    assert (first["ratio"]["median"], first["pair_persists"]) == (2.0, False)
    assert (warm["ratio"]["median"], warm["pair_persists"], warm["ratio"]["count"]) == (2.5, True, 2)
    assert (first["copy_ratio"]["median"], warm["copy_ratio"]["median"]) == (0.5, 0.5)
    assert warm["ours_cpu_s"] == pytest.approx({"spark": 4.0, "all": 4.0})
    assert (first["steps_s"], warm["steps_s"]) == ({"outside": 1.0, "produce": 3.0}, {"produce": 1.5, "outside": 0.25})
