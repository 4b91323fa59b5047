"""Quantiles by nearest rank, and what a step of a curve leaves of the point before."""

from __future__ import annotations

import pytest

from benchmarks.figures import Spread, falls, quantile, slope


@pytest.mark.parametrize(("share", "expected"), [(0.01, 1), (0.5, 50), (0.501, 51), (0.99, 99), (1, 100)])
def test_a_quantile_is_the_value_that_so_many_do_not_exceed(share: float, expected: int) -> None:
    assert quantile([float(value) for value in range(100, 0, -1)], share) == expected


@pytest.mark.parametrize(("values", "share"), [([], 0.5), ([1.0], 0), ([1.0], 1.1)])
def test_a_quantile_of_nothing_or_of_no_share_is_refused(values: list[float], share: float) -> None:
    with pytest.raises(ValueError, match="a quantile of"):
        quantile(values, share)


def test_a_spread_has_middle_and_ends() -> None:
    assert Spread.of([3.0, 1.0, 2.0]) == Spread(median=2.0, low=1.0, high=3.0, count=3)


def test_a_fall_is_what_is_left_and_a_rise_is_none() -> None:
    assert falls([4.0, 2.0, 6.0]) == [0.5, 1.0]


def test_a_slope_is_growth_for_each_unit() -> None:
    assert slope((0.1, 1.0), (1.1, 4.0)) == pytest.approx(3.0)
