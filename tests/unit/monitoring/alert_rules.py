"""Alert rules over recorded series, by promtool."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

from tests.harness import ROOT

RULES: Final = ROOT / "docker" / "prometheus" / "alerts.yml"
RECORDED: Final = ROOT / "tests" / "unit" / "monitoring" / "incident.json"
_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600}
#: The labels of a series in order: they name it.
Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Recording:
    """Series as they were scraped.

    Attributes:
        interval_s: between two scrapes.
        moments: what happened, by the number of the first scrape that can show it.
        series: values by metric and labels; None where a scrape had none.
    """

    interval_s: int
    moments: Mapping[str, int]
    series: Mapping[tuple[str, Labels], tuple[float | None, ...]]

    @property
    def scrapes(self) -> int:
        """How many there are."""
        return len(next(iter(self.series.values())))


@cache
def recorded() -> Recording:
    """An incident of four sinks on real servers: what the exporter said to a scrape every 15 seconds."""
    said = json.loads(RECORDED.read_text())
    series = {}
    for text, values in said["series"].items():
        name, _, inside = text.partition("{")
        # A target that does not answer is known by its job.
        labels = {"job": "spark-2pc"} if name == "up" else {}
        labels |= dict(re.findall(r'([a-z_]+)="([^"]*)"', inside))
        numbers = tuple(None if value == "stale" else float(value) for value in values.split())
        series[name, tuple(sorted(labels.items()))] = numbers
    return Recording(said["interval_s"], said["moments"], series)


@cache
def rules() -> dict[str, dict[str, Any]]:
    """The rules by the names of their alerts."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def metrics_of(expression: str) -> set[str]:
    """The names of metrics in an expression of PromQL."""
    return set(re.findall(r"\bspark_2pc_[a-z_]+", expression))


def seconds(text: str) -> int:
    """``15s``, ``2m`` or ``1h`` in seconds."""
    return int(text[:-1]) * _UNITS_S[text[-1]]


def promtool_says(folder: Path, recording: Recording, expected: Mapping[tuple[str, int], bool]) -> str:
    """Have promtool evaluate the rules over the series; '' where it finds what is expected, else what it says.

    Args:
        folder: for its file.
        recording: the series.
        expected: whether an expression has any series, by expression and number of the scrape.
    """
    tests = [
        {
            "expr": f"count({expression}) > bool 0",
            "eval_time": f"{number * recording.interval_s}s",
            "exp_samples": [{"labels": "{}", "value": 1}] if there else [],
        }
        for (expression, number), there in expected.items()
    ]
    series = [
        {
            "series": _sample(name, dict(labels)),
            "values": " ".join("stale" if value is None else f"{value:.10g}" for value in values),
        }
        for (name, labels), values in recording.series.items()
    ]
    interval = f"{recording.interval_s}s"
    file = folder / "alerts.test.yml"
    file.write_text(
        yaml.safe_dump(
            {
                "rule_files": [str(RULES)],
                "evaluation_interval": interval,
                "tests": [{"interval": interval, "input_series": series, "promql_expr_test": tests}],
            }
        )
    )
    done = subprocess.run(["promtool", "test", "rules", str(file)], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def _sample(name: str, labels: Mapping[str, str]) -> str:
    inside = ", ".join(f'{label}="{value}"' for label, value in sorted(labels.items()))
    return f"{name}{{{inside}}}" if inside else name
