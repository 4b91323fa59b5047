"""Beside Flink: which of its intervals counts, and where its figures are shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import flink_process
from benchmarks.charts import OVERVIEW, draw
from benchmarks.flink import latency_figures, quotient, throughput_figures
from benchmarks.flink_process import find_flink, flink_versions
from benchmarks.report import render
from tests.unit.benchmarks.test_report import figures, result, spread

BAR = "JDBC XA sinks,"
OURS = {"first": [50e3, 70e3], "warm": [200e3, 300e3, 400e3]}


def jobs(first: float, warm: float, long: float) -> dict[str, Any]:
    rates = {"first": first, "warm": warm, "long": long}
    return {**{f"{part}_rows_per_s": spread(rate) for part, rate in rates.items()}, "cpu_s": {"flink": 8.0, "all": 9.5}}


def delay(visible: float) -> dict[str, float]:
    return {f"{name}_{share}_s": visible for name in ("visible", "kafka", "table", "apart") for share in ("p50", "p99")}


def measured(**changed: Any) -> dict[str, Any]:
    found = {
        "rows": 1000,
        "warm_jobs": 5,
        "versions": {"flink-streaming-java": "2.0.2"},
        "ours_cpu_s": {"all": 4.5},
        **throughput_figures(OURS, {"1000": jobs(40e3, 100e3, 150e3), "10000": jobs(30e3, 120e3, 140e3)}),
        **latency_figures(delay(0.3), {"100": delay(0.25), "200": delay(0.125), "500": delay(0.5)}),
    }
    return {**found, **changed}


def test_the_interval_counts_whose_best_job_is_the_fastest() -> None:
    found = measured()
    assert found["interval_ms"] == 1000
    assert {part: found[part]["flink_rows_per_s"]["median"] for part in ("first", "warm", "long")} == {
        "first": 40e3,
        "warm": 100e3,
        "long": 150e3,
    }


def test_first_is_compared_with_first_and_what_runs_with_warm_batches() -> None:
    found = measured()
    assert found["first"]["ratio"]["median"] == pytest.approx(60 / 40)
    assert found["warm"]["ratio"] == pytest.approx({"median": 3.0, "low": 2.0, "high": 4.0})
    assert found["long"]["ratio"]["median"] == pytest.approx(2.0)


def test_a_quotient_has_the_ends_that_are_the_farthest_apart() -> None:
    first, second = {"median": 4.0, "low": 2.0, "high": 6.0}, {"median": 2.0, "low": 1.0, "high": 4.0}
    assert quotient(first, second) == {"median": 2.0, "low": 0.5, "high": 6.0}


def test_the_interval_counts_that_shows_rows_the_soonest() -> None:
    assert measured()["latency_interval_ms"] == 200


def test_no_jars_are_an_answer_that_says_how_to_get_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(flink_process.LIBS_VARIABLE, str(tmp_path))
    with pytest.raises(SystemExit, match="make flink"):
        find_flink()


def test_versions_are_read_from_the_names_of_the_jars(tmp_path: Path) -> None:
    for name in ("flink-streaming-java-2.0.2", "flink-connector-kafka-4.0.1-2.0", "other-1"):
        (tmp_path / f"{name}.jar").touch()
    assert flink_versions(tmp_path) == {"flink-streaming-java": "2.0.2", "flink-connector-kafka": "4.0.1-2.0"}


def report(*names: str, pictures: list[str]) -> str:
    found = {name: result(name, **({"figures": measured()} if name == "flink" else {})) for name in names}
    return render(found, pictures=pictures, missed="", tried="")


def test_the_report_has_both_sides_in_one_row() -> None:
    text = report("flink", pictures=[])
    assert "## Beside Flink\n" in text
    shown = "| warm batches | warm jobs of 1,000 rows | 300 (200 to 400) | 100 (100 to 100) | 3.00 (2.00 to 4.00) |"
    assert shown in text
    assert (
        "| warm batches | one job of 5,000 rows | 300 (200 to 400) | 150 (150 to 150) | 2.00 (1.33 to 2.67) |" in text
    )
    assert "That is with a checkpoint each 1,000 ms." in text
    assert "| 10,000 ms | 30 (30 to 30) | 120 (120 to 120) | 140 (140 to 140) |" in text
    assert "CPU seconds per million rows, warm: ours 4.50, Flink 9.50." in text


def test_the_report_has_the_latency_of_each_interval() -> None:
    text = report("flink", pictures=[])
    assert "the soonest with a checkpoint each 200 ms:" in text
    assert "| ours, default trigger | 0.300 |" in text
    assert "| Flink, a checkpoint each 200 ms | 0.125 |" in text


def test_a_report_without_flink_does_not_speak_of_it() -> None:
    assert "Flink" not in report("price", pictures=[OVERVIEW])
    assert "Flink's figures are of" not in report("flink", pictures=[])


def test_below_the_overview_it_says_where_the_figures_of_flink_are_from() -> None:
    text = report("price", "flink", pictures=[OVERVIEW])
    assert f"![overview]({OVERVIEW})\n\nFlink's figures are of the benchmark `flink`: one process," in text


def overview(folder: Path, **more: Any) -> str:
    pytest.importorskip("matplotlib")
    (file,) = draw({"cluster": figures(1.0)["cluster"], **more}, folder)
    return file.read_text()


def test_the_overview_has_a_bar_of_flink_between_the_pair_and_ours(tmp_path: Path) -> None:
    """Texts of the picture are in the order of its bars."""
    text = overview(tmp_path, flink=measured())
    assert text.index("not atomic") < text.index(BAR) < text.index("exactly once in both")


def test_a_long_job_stands_beside_a_query_that_runs_and_new_jobs_beside_a_new_query(tmp_path: Path) -> None:
    """First jobs of a process are in the section: first batches of the picture are of sessions that have run others."""
    changed = {"warm": {"flink_rows_per_s": spread(123e3)}, "first": {"flink_rows_per_s": spread(77e3)}}
    text = overview(tmp_path, flink=measured(**changed))
    assert [text.count(f">{rate}</text>") for rate in (150, 123, 77)] == [1, 1, 0]
    assert text.index(">150</text>") < text.index(">123</text>")


def test_without_flink_the_overview_has_three_bars(tmp_path: Path) -> None:
    assert BAR not in overview(tmp_path)
