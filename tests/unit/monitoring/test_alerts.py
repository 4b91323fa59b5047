"""Alert rules and the Grafana dashboard: they fire in a recorded incident when they should, and name what there is."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from spark_2pc_sink.monitoring.exporter import SinkCounts, families
from spark_2pc_sink.testing import CapabilityError
from tests.conftest import or_skip
from tests.harness import ROOT
from tests.unit.monitoring.samples import EVERYTHING, FIGURES, lines

RULES = ROOT / "docker" / "prometheus" / "alerts.yml"
RECORDED = ROOT / "tests" / "unit" / "monitoring" / "incident.json"
UNITS_S = {"s": 1, "m": 60, "h": 3600}
BOARD = ROOT / "docker" / "grafana" / "dashboards" / "sinks.json"
RUNBOOK = ROOT / "RUNBOOK.md"
#: When each alert has to fire: after a moment of the incident, before another, within so many minutes; for which sink.
FIRES = {
    "SinkInDoubt": ("drivers are killed", 4, "orders"),
    "SinkPreparedTooLong": ("drivers are killed", 16, "payments"),
    "SinkNeedsDecision": ("drivers are killed", 3, "clicks"),
    "SinkNotRunning": ("drivers are killed", 6, "orders"),
    "UnreadableRows": ("drivers are killed", 6, None),
    "ExporterCannotReachKafka": ("Kafka is gone", 2.5, None),
    "ExporterCannotReachDatabase": ("the database is gone", 2.5, None),
    "SinkOwed": ("Kafka is owed a batch", 5.5, "orders"),
    "ResendsHappen": ("the batch is sent again", 1, "orders"),
    "GenerationChangesOften": ("the job starts again and again", 1, "orders"),
    "ExporterDown": ("the exporter is gone", 3, None),
}
#: What ends it: no alert of this name fires then.
ENDS = {
    "SinkInDoubt": "the batch is sent again",
    "SinkOwed": "the job starts again and again",
    "ExporterCannotReachKafka": "Kafka is back",
    "ExporterCannotReachDatabase": "the database is back",
}


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
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def metrics_of(expression: str) -> set[str]:
    return set(re.findall(r"\bspark_2pc_[a-z_]+", expression))


def seconds(text: str) -> int:
    """``15s``, ``2m`` or ``1h`` in seconds."""
    return int(text[:-1]) * UNITS_S[text[-1]]


def promtool_says(folder: Path, recording: Recording, expected: Mapping[tuple[str, int], bool]) -> str:
    """Have promtool evaluate the rules over the series; '' where it finds what is expected, else what it says."""
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
            "series": sample_of(name, dict(labels)),
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


def sample_of(name: str, labels: Mapping[str, str]) -> str:
    inside = ", ".join(f'{label}="{value}"' for label, value in sorted(labels.items()))
    return f"{name}{{{inside}}}" if inside else name


def exposed() -> set[str]:
    counts = SinkCounts()
    counts.add(lines(FIGURES)[0])
    found = families(EVERYTHING, {each.transactional_id: counts for each in EVERYTHING.sinks}, took_s=0)
    return {sample.name for family in found for sample in family.samples}


def fires(alert: str, sink: str | None, *, within: str = "") -> str:
    """The series of an alert that fires for a sink, or for none; perhaps at any time within so long."""
    series = f'ALERTS{{alertname="{alert}",alertstate="firing",transactional_id="{sink or ""}"}}'
    return f"count_over_time({series}[{within}])" if within else series


def scrapes_in(minutes: float) -> int:
    return round(minutes * 60 / recorded().interval_s)


def test_each_alert_is_tested() -> None:
    assert FIRES.keys() | {"SinkBehind"} == rules().keys()


def test_a_sink_that_does_not_keep_up_is_told(tmp_path: Path, needs_promtool: None) -> None:
    """The recorded incident has no watermark: these are minutes in which events get older, and recover."""
    minutes = [5.0] * 3 + [900.0] * 8 + [5.0] * 3
    series = ("spark_2pc_sink_event_delay_seconds", (("transactional_id", "orders"),))
    expected = {(fires("SinkBehind", "orders"), number): number in range(8, 11) for number in range(len(minutes))}
    assert promtool_says(tmp_path, Recording(60, {}, {series: tuple(minutes)}), expected) == ""


def test_alerts_fire_when_they_should_and_end_with_their_cause(tmp_path: Path, needs_promtool: None) -> None:
    """None before its cause, and none two scrapes behind it: the one that was under way, and the next."""
    moments, last = recorded().moments, recorded().scrapes - 1
    # Batches are written before that, each of which is in doubt for a moment.
    expected = {('count_over_time(ALERTS{alertstate="firing"}[1d])', moments["drivers are killed"] - 1): False}
    for alert, (moment, minutes, sink) in FIRES.items():
        expected[fires(alert, sink), min(moments[moment] + scrapes_in(minutes), last)] = True
        before = "Kafka is owed a batch" if moment == "the job starts again and again" else moment
        expected[fires(alert, sink, within="1d"), moments[before] - 1] = False
    for alert, moment in ENDS.items():
        expected[fires(alert, FIRES[alert][2]), moments[moment] + 2] = False
    assert promtool_says(tmp_path, recorded(), expected) == ""


def test_promtool_finds_the_rules_right(needs_promtool: None) -> None:
    done = subprocess.run(["promtool", "check", "rules", str(RULES)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    config = ["promtool", "check", "config", str(RULES.parent / "prometheus.yml")]
    done = subprocess.run(config, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def needs_promtool(pytestconfig: pytest.Config) -> None:
    """Skips where Prometheus' tool is not installed, or fails where nothing may be skipped."""

    def find() -> None:
        if shutil.which("promtool") is None:
            raise CapabilityError("promtool is not installed; on Debian: apt-get install prometheus")

    or_skip(pytestconfig, find)


@pytest.mark.parametrize("alert", rules())
def test_an_alert_says_what_it_means_and_where_to_read_on(alert: str) -> None:
    rule = rules()[alert]
    assert rule["labels"]["severity"] in {"critical", "warning"}
    assert set(rule["annotations"]) == {"summary", "description", "runbook"}
    assert rule["annotations"]["runbook"] == f"RUNBOOK.md#{alert.lower()}"
    assert seconds(rule.get("for", "0s")) <= 600
    headings = {re.sub(r"[^\w -]", "", line.strip("# ")).lower() for line in RUNBOOK.read_text().splitlines()}
    assert alert.lower() in {heading.replace(" ", "-") for heading in headings}


def test_rules_and_dashboard_name_what_the_exporter_has() -> None:
    asked = {name for rule in rules().values() for name in metrics_of(rule["expr"])}
    asked |= metrics_of(BOARD.read_text())
    assert asked - exposed() == set()
