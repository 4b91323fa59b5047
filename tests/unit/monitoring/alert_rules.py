"""Alert rules over recorded series: which alerts fire at each scrape, by promtool, or by reading the rules here.

The reading here knows the few forms that the rules have: ``metric OP number``, ``increase(metric[time]) OP number`` and
``… and metric OP number``, each with ``for``. It needs no Prometheus, and says the same as promtool.
"""

from __future__ import annotations

import itertools
import json
import operator
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

from tests.harness import ROOT

RULES: Final = ROOT / "docker" / "prometheus" / "alerts.yml"
RECORDED: Final = ROOT / "tests" / "unit" / "monitoring" / "incident.json"
_OPERATORS: Final[dict[str, Callable[[float, float], bool]]] = {">": operator.gt, "==": operator.eq}
_COMPARISON: Final = re.compile(
    r"(?P<increase>increase\()?(?P<metric>[a-z_0-9]+)(?P<labels>\{[^}]*\})?(?:\[(?P<window>[0-9a-z]+)\]\))? "
    r"(?P<operator>>|==) (?P<number>[0-9.]+)"
)
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

    def of(self, metric: str) -> Iterator[tuple[Labels, tuple[float | None, ...]]]:
        """The series of a metric."""
        return ((labels, values) for (name, labels), values in self.series.items() if name == metric)


@cache
def recorded() -> Recording:
    """The incident of ``tests/integration/monitoring/incident.py``."""
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


def firing(alert: str, recording: Recording) -> list[set[Labels]]:
    """The series for which an alert fires, for each scrape."""
    rule = rules()[alert]
    wait = seconds(rule.get("for", "0s")) // recording.interval_s
    held: dict[Labels, int] = {}
    found = []
    for number in range(recording.scrapes):
        true = _true_at(rule["expr"], recording, number)
        held = {labels: held.get(labels, -1) + 1 for labels in true}
        found.append({labels for labels, times in held.items() if times >= wait})
    return found


def seconds(text: str) -> int:
    """``15s``, ``2m`` or ``1h`` in seconds."""
    return int(text[:-1]) * _UNITS_S[text[-1]]


def _true_at(expression: str, recording: Recording, number: int) -> set[Labels]:
    parts = [_comparison(part, recording, number) for part in expression.split(" and ")]
    return set.intersection(*parts)


def _comparison(text: str, recording: Recording, number: int) -> set[Labels]:
    said = _COMPARISON.fullmatch(text)
    assert said is not None, f"a form that is not known here: {text}"
    found = set()
    for labels, values in recording.of(said["metric"]):
        value = values[number]
        if said["increase"] and value is not None:
            first = max(0, number - seconds(said["window"]) // recording.interval_s)
            value = _increase([each for each in values[first : number + 1] if each is not None])
        if value is not None and _OPERATORS[said["operator"]](value, float(said["number"])):
            found.add(labels)
    return found


def _increase(values: list[float]) -> float:
    """What a counter has counted; a value below the one before is a counter that began anew."""
    return sum(after - before if after >= before else after for before, after in itertools.pairwise(values))


def promtool_says(folder: Path, recording: Recording, expected: Mapping[tuple[str, int], set[Labels]]) -> str:
    """Have promtool evaluate the rules over the series; '' where it finds what is expected, else what it says.

    Args:
        folder: for its file.
        recording: the series.
        expected: the series for which an alert fires, by alert and number of the scrape.
    """
    tests = []
    for (alert, number), fires in expected.items():
        of_all = {"alertname": alert, "alertstate": "firing", "severity": rules()[alert]["labels"]["severity"]}
        samples = [_sample("ALERTS", {**of_all, **dict(labels)}) for labels in fires]
        tests.append(
            {
                "expr": f'ALERTS{{alertname="{alert}",alertstate="firing"}}',
                "eval_time": f"{number * recording.interval_s}s",
                "exp_samples": [{"labels": sample, "value": 1} for sample in samples],
            }
        )
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
