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
    firing,
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


def fired_for(alert: str, number: int) -> set[str | None]:
    """The sinks for which an alert fires at a scrape; None for one that is about no sink."""
    return {dict(labels).get("transactional_id") for labels in firing(alert, recorded())[number]}


def scrapes_in(minutes: float) -> int:
    return round(minutes * 60 / recorded().interval_s)


def test_each_alert_is_tested() -> None:
    assert FIRES.keys() | {"SinkBehind"} == rules().keys()


def test_a_sink_that_does_not_keep_up_is_told(tmp_path: Path, needs_promtool: None) -> None:
    """The recorded incident has no watermark: these are minutes in which events get older, and recover."""
    labels = (("transactional_id", "orders"),)
    minutes = [5.0] * 3 + [900.0] * 8 + [5.0] * 3
    recording = Recording(60, {}, {("spark_2pc_sink_event_delay_seconds", labels): tuple(minutes)})
    fired = firing("SinkBehind", recording)
    assert [number for number, series in enumerate(fired) if series] == list(range(8, 11))
    every = {("SinkBehind", number): series for number, series in enumerate(fired)}
    assert promtool_says(tmp_path, recording, every) == ""


@pytest.mark.parametrize("alert", FIRES)
def test_an_alert_fires_when_it_should_and_not_before(alert: str) -> None:
    moment, minutes, sink = FIRES[alert]
    happened = recorded().moments[moment]
    due = happened + scrapes_in(minutes)
    assert sink in fired_for(alert, min(due, recorded().scrapes - 1))
    before = happened if moment != "the job starts again and again" else recorded().moments["Kafka is owed a batch"]
    assert not any(sink in fired_for(alert, number) for number in range(before))


@pytest.mark.parametrize("alert", ENDS)
def test_an_alert_ends_with_its_cause(alert: str) -> None:
    """Two scrapes later at the latest: the one that was under way, and the next."""
    sink = FIRES[alert][2]
    assert sink not in fired_for(alert, recorded().moments[ENDS[alert]] + 2)


def test_nothing_fires_while_all_is_well() -> None:
    """Batches are written meanwhile, each of which is in doubt for a moment."""
    calm = range(recorded().moments["drivers are killed"])
    assert {alert for alert in rules() for number in calm if fired_for(alert, number)} == set()


@pytest.mark.slow
def test_promtool_says_the_same(tmp_path: Path, needs_promtool: None) -> None:
    """At every minute; of an increase, which Prometheus extrapolates, far from its threshold alone."""
    every_minute = range(0, recorded().scrapes, scrapes_in(1))
    plain = [alert for alert, rule in rules().items() if "increase(" not in rule["expr"]]
    expected = {(alert, number): firing(alert, recorded())[number] for alert in plain for number in every_minute}
    last = recorded().moments["the exporter is gone"] - 1
    expected |= {(alert, last): firing(alert, recorded())[last] for alert in rules()}
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
