"""RESULTS.md: every figure comes from a result, each target has a verdict; and whose the CPU time of processes is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks import results
from benchmarks.processes import ProcessFacts, kinds_of, not_waited_for
from benchmarks.report import render
from benchmarks.results import Result
from benchmarks.targets import TARGETS

RECORDED = Path(results.__file__).parent / results.RECORDED_NAME
MACHINE: dict[str, Any] = {
    "cpu": "a processor",
    "cores": 2,
    "memory_gib": 8.0,
    "disk": "a disk",
    "system": "Linux",
    "load_before": 0.5,
    "versions": {"python": "3.11.7", "commit": "abc"},
}


#: What was recorded last, of each benchmark.
FIGURES: dict[str, Any] = {name: found.figures for name, found in results.newest(RECORDED).items()}


def result(name: str, **changed: Any) -> Result:
    given: dict[str, Any] = {"benchmark": name, "at": "2030-01-01T00:00:00+00:00", "seconds": 9.0, "quick": False}
    return Result(**{**given, "machine": MACHINE, "figures": FIGURES.get(name), **changed})


def targets_with(verdict: str) -> list[str]:
    return [target.what for target in TARGETS if target.verdict(FIGURES.get(target.benchmark))[1] == verdict]


def test_a_report_has_every_target_whatever_was_measured() -> None:
    text = render({"price": result("price")}, pictures=[], missed="Reasons.")
    assert all(target.what in text for target in TARGETS)
    assert text.count("not measured") == len(TARGETS) - 1
    assert "\n\n## Why targets are missed\n\nReasons.\n\n" in text


def test_each_target_that_the_recorded_results_miss_is_explained() -> None:
    """By its own words, as the table of targets has it."""
    explained = re.findall(r"^- \*\*(.+)\*\*$", (RECORDED.parent / "missed.md").read_text(), re.MULTILINE)
    assert sorted(explained) == sorted(targets_with("MISSED"))


def test_results_of_another_machine_are_marked() -> None:
    other = result("price", machine={**MACHINE, "cores": 64}, at="2029-01-01T00:00:00+00:00")
    text = render({"price": other, "latency": result("latency")}, pictures=[], missed="")
    assert text.count("on another machine") == 1


def test_what_is_recorded_stays_until_the_benchmark_runs_again(tmp_path: Path) -> None:
    """One benchmark can be measured again without the others."""
    recorded, file = tmp_path / "recorded.jsonl", tmp_path / "results.jsonl"
    results.record(recorded, {name: result(name, seconds=1.0) for name in ("price", "latency")})
    results.append(file, result("price", seconds=2.0, at="2030-01-02T00:00:00+00:00"))
    results.append(file, result("latency", seconds=0.5, at="2029-01-01T00:00:00+00:00"))
    found = results.newest(recorded, file)
    assert {name: each.seconds for name, each in found.items()} == {"price": 2.0, "latency": 1.0}
    results.record(recorded, found)
    assert results.newest(recorded) == found
    assert len(recorded.read_text().splitlines()) == 2


def facts(pid: int, parent: int, command: str = "", *, cpu_s: float = 1.0, gone_cpu_s: float = 0.0) -> ProcessFacts:
    return ProcessFacts(pid=pid, parent=parent, cpu_s=cpu_s, gone_cpu_s=gone_cpu_s, rss_bytes=0, command=command)


def by_pid(*processes: ProcessFacts) -> dict[int, ProcessFacts]:
    return {found.pid: found for found in processes}


def test_each_process_is_of_the_nearest_kind_above_it() -> None:
    """The workers are children of Spark's virtual machine, and the servers are children of the driver."""
    processes = [
        facts(1, 0, "python -m benchmarks"),
        facts(2, 1, "java org.apache.spark.deploy.SparkSubmit"),
        facts(3, 2, "python -m pyspark.daemon pyspark.worker"),
        facts(4, 3, "python -m pyspark.daemon pyspark.worker"),
        facts(5, 1, "java kafka.Kafka"),
        facts(6, 1, "postgres -D data"),
        facts(7, 6, "postgres: checkpointer"),
    ]
    kinds = kinds_of(by_pid(*processes), {5: "kafka", 6: "postgresql"}, driver=1)
    assert list(kinds.values()) == ["driver", "spark", "workers", "workers", "kafka", "postgresql", "postgresql"]


def test_time_that_no_parent_has_counted_is_told_by_the_ancestor_that_should_have() -> None:
    before = by_pid(
        facts(1, 0),
        facts(2, 1, gone_cpu_s=5.0),
        facts(3, 2, cpu_s=2.0, gone_cpu_s=0.5),
        facts(4, 3, cpu_s=0.25),
        facts(5, 1, cpu_s=3.0),
    )
    assert not_waited_for(before, before) == {}
    ended = by_pid(facts(1, 0, gone_cpu_s=3.0), facts(2, 1, gone_cpu_s=5.0))
    assert not_waited_for(before, ended) == pytest.approx({2: 2.75})
    partly = by_pid(facts(1, 0, gone_cpu_s=3.0), facts(2, 1, gone_cpu_s=7.0))
    assert not_waited_for(before, partly) == pytest.approx({2: 0.75})
