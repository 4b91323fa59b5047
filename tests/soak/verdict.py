"""Whether a series of samples grows. The judgement is arithmetic alone.

Only the second half of a run is judged: a process that has just started fills caches, pools and compiled code. The
growth of a measure is the Theil-Sen slope of that half (the median of the slopes between all pairs of samples) times
its length. A median does not follow single samples, so a peak in a few of them is not taken for growth, and a leak
is not hidden by one low sample at the end. What grows by more than the bound of its measure is a leak.

What has a natural limit, such as one state row for each sink, has a level as well, which no sample of the whole run
may exceed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import Final

#: Fewer samples in the judged half prove nothing.
JUDGED_SAMPLES_MIN: Final = 8


@dataclass(frozen=True)
class Measure:
    """Something that must not grow.

    Attributes:
        name: for the table; the same in `Sample.values`.
        growth_max: by how much the judged half may grow: the noise of the measure, and no more.
        level_max: what no sample may exceed; None where only growth matters.
        unit: '' for a count, 'MiB' for memory.
    """

    name: str
    growth_max: float
    level_max: float | None = None
    unit: str = ""


@dataclass(frozen=True)
class Sample:
    """What was seen at one time.

    Attributes:
        batches: how many each load had written by then.
        values: by the name of the measure; one that could not be taken is missing.
    """

    at_s: float
    batches: Mapping[str, int]
    values: Mapping[str, float]


@dataclass(frozen=True)
class Verdict:
    """What became of one measure.

    Attributes:
        first, last, largest: of all samples; None where there is none.
        growth: of the judged half; None where it has too few samples.
        reason: why it fails; '' when nothing is wrong.
    """

    measure: Measure
    first: float | None
    last: float | None
    largest: float | None
    growth: float | None
    reason: str

    @property
    def passed(self) -> bool:
        return not self.reason


def judged_half(samples: Sequence[Sample]) -> list[Sample]:
    if not samples:
        return []
    middle_s = (samples[0].at_s + samples[-1].at_s) / 2
    return [sample for sample in samples if sample.at_s >= middle_s]


def slope(points: Sequence[tuple[float, float]]) -> float:
    """The Theil-Sen slope: the median over all pairs of points."""
    return median((y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in combinations(points, 2) if x1 != x2)


def judge(measure: Measure, samples: Sequence[Sample]) -> Verdict:
    name = measure.name
    values = [sample.values[name] for sample in samples if name in sample.values]
    points = [(sample.at_s, sample.values[name]) for sample in judged_half(samples) if name in sample.values]
    growth = slope(points) * (points[-1][0] - points[0][0]) if len(points) >= JUDGED_SAMPLES_MIN else None
    return Verdict(
        measure=measure,
        first=values[0] if values else None,
        last=values[-1] if values else None,
        largest=max(values, default=None),
        growth=growth,
        reason=_reason(measure, max(values, default=None), growth, len(points)),
    )


def _reason(measure: Measure, largest: float | None, growth: float | None, points: int) -> str:
    if largest is None or growth is None:
        return f"only {points} samples in the second half; at least {JUDGED_SAMPLES_MIN} are needed"
    if measure.level_max is not None and largest > measure.level_max:
        return f"above {measure.level_max:g}"
    if growth > measure.growth_max:
        return f"grows by more than {measure.growth_max:g}"
    return ""


def judged_batches(samples: Sequence[Sample], load: str) -> int:
    half = judged_half(samples)
    return half[-1].batches[load] - half[0].batches[load] if half else 0


_COLUMNS: Final = ("first", "last", "largest", "growth", "bound")


def table(verdicts: Sequence[Verdict]) -> list[str]:
    numbers = "".join(f"{name:>9}" for name in _COLUMNS)
    return [f"{'measure':46}{numbers}  verdict", *map(_row, verdicts)]


def _row(verdict: Verdict) -> str:
    measure = verdict.measure
    values = (verdict.first, verdict.last, verdict.largest, verdict.growth, measure.growth_max)
    numbers = "".join(f"{'-' if value is None else format(value, '.1f'):>9}" for value in values)
    name = f"{measure.name} ({measure.unit})" if measure.unit else measure.name
    return f"{name:46}{numbers}  {'ok' if verdict.passed else f'FAILED: {verdict.reason}'}"
