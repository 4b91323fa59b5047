"""Alert rules and the Grafana dashboard: they fire in a recorded incident when they should, and name what there is."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from spark_2pc_sink.monitoring.exporter import SinkCounts, families
from spark_2pc_sink.testing import CapabilityError
from tests.conftest import or_skip
from tests.harness import ROOT
from tests.unit.monitoring.alert_rules import (
    RULES,
    Recording,
    metrics_of,
    promtool_says,
    recorded,
    rules,
    seconds,
)
from tests.unit.monitoring.samples import EVERYTHING, FIGURES, lines

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


def exposed() -> set[str]:
    """The names of all series that the exporter has."""
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
