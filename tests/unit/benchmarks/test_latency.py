"""Latency: what is made of the moments that the probe saw, beside counting alone and beside the pair."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.latency import figures_of
from benchmarks.report import render
from tests.unit.benchmarks.test_report import result

OURS = {"kafka_s": [0.2, 0.3, 0.4], "table_s": [0.25, 0.28, 0.5]}
COUNTED = [0.1, 0.2, 0.3]


def pair(visible: float) -> dict[str, list[float]]:
    return {"kafka_s": [visible / 2] * 3, "table_s": [visible] * 3}


def found(**pairs: float) -> dict[str, Any]:
    return figures_of(OURS, COUNTED, {name == "kept": pair(visible) for name, visible in pairs.items()})


def test_a_row_is_visible_when_both_sides_show_it() -> None:
    figures = found(read_twice=0.5, kept=0.6)
    assert figures["visible_p50_s"] == pytest.approx(0.3)
    assert figures["apart_p50_s"] == pytest.approx(0.05)
    assert figures["beyond_p50_s"] == pytest.approx(0.3 - 0.2)
    assert figures["rows"] == 3


@pytest.mark.parametrize(("read_twice", "kept", "persists"), [(0.5, 0.6, False), (0.6, 0.5, True)])
def test_the_pair_counts_that_shows_rows_sooner(read_twice: float, kept: float, persists: bool) -> None:
    figures = found(read_twice=read_twice, kept=kept)
    assert figures["pair_persists"] is persists
    assert (figures["pair_visible_p50_s"], figures["pair_apart_p50_s"]) == pytest.approx((0.5, 0.25))


def test_the_report_names_the_pair_beside_ours() -> None:
    measured = result("latency", figures=found(read_twice=0.5, kept=0.6))
    text = render({"latency": measured}, pictures=[], missed="", tried="")
    assert "| visible | 0.300 |" in text
    assert "| the pair, not persisted: visible | 0.500 |" in text
    assert "| the pair: apart | 0.250 |" in text
