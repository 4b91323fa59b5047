"""The examples without servers: the comparison of orders, the manifests for Kubernetes, and one's own automation."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, Final
from unittest import mock

import pytest
import yaml
from jsonschema import Draft202012Validator

import recovery_runbook
from orders_compare import EXIT_DIFFERENT, Comparison, compare_orders, expect, record_text, row_text
from orders_events import order_events
from recovery_runbook import EXIT_LEFT, run
from spark_2pc_sink import HaltCause
from spark_2pc_sink.errors import DualWriteError, TakeOverRefusedError
from spark_2pc_sink.recovery.report import StatusReport, UnreadableSink
from tests.harness.page_blocks import ROOT
from tests.unit.runbook.fake_sides import halted, in_doubt, owed

EXPECTED = expect(order_events(300, seed=7))

EVENT: dict[str, Any] = {
    "order_id": "7-1",
    "sequence": 2,
    "status": "paid",
    "event_time": "2026-01-01T01:00:00.000001+01:00",
    "customer": {"id": 5, "name": "さくら 🌸", "country": "JP"},
    "currency": "JPY",
    "items": [
        {"sku": "a", "title": "דפתר", "quantity": 3, "unit_price": "0.10"},
        {"sku": "b", "title": "x", "quantity": 1, "unit_price": 7.5},
        {"sku": "c", "title": "y", "quantity": 2, "unit_price": None},
    ],
    "note": None,
}
# The same order, as Spark writes it and as the database returns it.
RECORD = """{"order_id":"7-1","sequence":2,"status":"paid","event_time":"2026-01-01T00:00:00.000001+00:00",
  "customer_id":5,"customer_name":"さくら 🌸","country":"JP","region":"Asia","currency":"JPY","total":7.80,
  "items":[{"sku":"a","title":"דפתר","quantity":3,"unit_price":0.10,"line_total":0.30},
           {"sku":"b","title":"x","quantity":1,"unit_price":7.50,"line_total":7.50},
           {"sku":"c","title":"y","quantity":2}]}"""
ROW: dict[str, Any] = {
    "order_id": "7-1",
    "sequence": 2,
    "status": "paid",
    "event_time": datetime(2026, 1, 1, 9, 0, 0, 1, tzinfo=timezone(timedelta(hours=9))),
    "customer_id": 5,
    "customer_name": "さくら 🌸",
    "country": "JP",
    "region": "Asia",
    "currency": "JPY",
    "total": Decimal("7.80"),
    "items": json.loads(RECORD, parse_float=str)["items"],
    "note": None,
}

#: What may have gone wrong with the records or rows of one side, and the counts of duplicates, missing and foreign.
FAULTS: dict[str, tuple[Callable[[list[str]], list[str]], tuple[int, int, int]]] = {
    "another order": (lambda texts: texts[::-1], (0, 0, 0)),
    "one twice": (lambda texts: [*texts, texts[7]], (1, 0, 0)),
    "one changed": (lambda texts: [texts[0].replace('"placed"', '"paid"'), *texts[1:]], (0, 1, 1)),
    "one that was never sent": (lambda texts: [*texts, "{}"], (0, 0, 1)),
    "all missing": (lambda texts: texts[:0], (0, -1, 0)),
}


def counts(comparison: Comparison) -> list[tuple[int, int, int]]:
    return [
        (side.duplicated.total(), side.missing.total(), side.foreign.total())
        for side in (comparison.topic, comparison.table)
    ]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("side", ["records", "rows"])
def test_a_planted_fault_is_found_on_its_side_only(side: str, fault: str) -> None:
    change, wrong = FAULTS[fault]
    sides = {"records": EXPECTED.records, "rows": EXPECTED.rows}
    wrong = tuple(len(sides[side]) if count < 0 else count for count in wrong)  # type: ignore[assignment]
    if fault == "one changed":
        sides[side] = sorted(sides[side], key=lambda text: '"placed"' not in text)
    comparison = compare_orders(EXPECTED, **{**sides, side: change(sides[side])})
    found = counts(comparison)
    assert found == ([wrong, (0, 0, 0)] if side == "records" else [(0, 0, 0), wrong])
    assert comparison.exit_code == (EXIT_DIFFERENT if any(wrong) else 0)


def test_record_and_row_say_what_the_event_makes() -> None:
    expected = expect([EVENT])
    assert expected.records == expected.rows == [record_text(b"7-1", RECORD.encode())] == [row_text(ROW)]


def test_the_last_event_of_an_order_is_its_row_wherever_it_comes() -> None:
    later = {**EVENT, "sequence": 10, "status": "returned"}
    for events in ([EVENT, later], [later, EVENT]):
        assert expect(events).rows == expect([later]).rows


FOLDER: Final = ROOT / "examples" / "kubernetes"
JOB: Final = (FOLDER / "orders.py").read_text()
PORT: Final = int(re.findall(r"driver_port=(\d+)", JOB)[0])
GRACE_S: Final = int(re.findall(r"grace_s=(\d+)", JOB)[0])


SCHEMA: Final = json.loads((ROOT / "tests" / "vectors" / "kubernetes.json").read_text())


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def pods() -> dict[str, dict[str, Any]]:
    """What each way gives to the pod of the driver."""
    _, deployment = documents("driver.yaml")
    (template,), (application,) = documents("driver-pod.yaml"), documents("spark-application.yaml")
    return {
        "driver.yaml": deployment["spec"]["template"]["spec"],
        "driver-pod.yaml": template["spec"],
        "spark-application.yaml": {**application["spec"]["driver"], "containers": [application["spec"]["driver"]]},
    }


def wrong_in(document: dict[str, Any]) -> list[str]:
    """What the API server, or the definition of the operator's resource, would refuse."""
    validator = Draft202012Validator({**SCHEMA, "$ref": f"#/$defs/{document['kind']}"})
    return [f"{found.json_path}: {found.message}" for found in validator.iter_errors(document)]


@pytest.mark.parametrize("name", list(pods()))
def test_the_api_server_takes_it(name: str) -> None:
    for document in documents(name):
        assert wrong_in(document) == []
        assert wrong_in({**document, "spek": {}}) != []


@pytest.mark.parametrize("name", list(pods()))
def test_sigterm_reaches_python_and_it_has_time(name: str) -> None:
    """As the first process, or by a hook; Kubernetes kills later than the job ends."""
    pod = pods()[name]
    assert pod["terminationGracePeriodSeconds"] >= GRACE_S + 15
    (container,) = pod["containers"]
    hook = " ".join(container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", []))
    assert container.get("command", [""])[0] == "python3" or "pkill -TERM -x python3" in hook


def test_executors_find_the_port_of_the_sink() -> None:
    """By a headless service, which leads to the pod itself."""
    service, deployment = documents("driver.yaml")
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == deployment["spec"]["template"]["metadata"]["labels"]
    ports = {each["name"]: each["port"] for each in service["spec"]["ports"]}
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    arguments = next(each["value"] for each in container["env"] if each["name"] == "PYSPARK_SUBMIT_ARGS")
    settings = dict(re.findall(r"--conf (\S+?)=(\S+)", arguments))
    assert settings["spark.driver.host"] == service["metadata"]["name"]
    assert [settings["spark.driver.port"], settings["spark.driver.blockManager.port"]] == [
        str(ports["driver"]),
        str(ports["blocks"]),
    ]
    assert ports["sink"] == PORT
    for name in ("driver-pod.yaml", "spark-application.yaml"):
        (container,) = pods()[name]["containers"]
        assert [each["containerPort"] for each in container["ports"]] == [PORT]


def test_all_use_one_image_and_one_version_of_spark() -> None:
    """Driver and executors with other versions are refused."""
    texts = {path.name: path.read_text() for path in FOLDER.iterdir() if path.is_file()}
    images = {found for text in texts.values() for found in re.findall(r"registry\.example/[\w:.-]+", text)}
    assert len(images) == 1
    versions = re.findall(r"(?:sparkVersion: |apache/spark:|pyspark==)([\d.]+)", "".join(texts.values()))
    assert len(versions) == 3
    assert len(set(versions)) == 1
    job = {found for text in texts.values() for found in re.findall(r"/opt/job/\S+\.py", text)}
    assert job == {"/opt/job/orders.py"}


def nightly(monkeypatch: pytest.MonkeyPatch, found: StatusReport, recover: mock.Mock) -> int:
    """One round of the example, with a status as found."""
    line = {"at": "2026-11-24T03:07:00+00:00", "action": "claim", "os_user": "me", "host": "here", "reason": None}
    history = mock.Mock(as_json=lambda: [line])
    answers = {"status": mock.Mock(return_value=found), "history": mock.Mock(return_value=history), "recover": recover}
    for name, answer in answers.items():
        monkeypatch.setattr(recovery_runbook, name, answer)
    return run({"bootstrap.servers": "h:9092"}, "postgresql://h/d")


def sinks(found: Any) -> StatusReport:
    return StatusReport(sinks=(found.report,))


@pytest.mark.parametrize(
    ("found", "section"),
    [
        (sinks(halted(HaltCause.DATABASE_BEHIND)), "RUNBOOK.md#database_behind"),
        (sinks(owed()), "RUNBOOK.md#owed"),
        (StatusReport(kafka_problem="refused"), ""),
        (
            StatusReport(unreadable=(UnreadableSink(transactional_id="newer", side="database", problem="status 'x'"),)),
            "",
        ),
    ],
)
def test_what_needs_a_decision_or_cannot_be_read_is_left_to_a_person(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], found: StatusReport, section: str
) -> None:
    recover = mock.Mock()
    assert nightly(monkeypatch, found, recover) == EXIT_LEFT
    assert recover.call_count == 0
    told = capsys.readouterr().out
    assert section in told
    assert ("2026-11-24T03:07:00+00:00 claim by me on here" in told) is bool(section)


def test_a_living_driver_is_left_alone(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    refused: DualWriteError = TakeOverRefusedError(
        transactional_id="orders", driver="it lives", remedies=(), report=None
    )
    assert nightly(monkeypatch, sinks(in_doubt()), mock.Mock(side_effect=refused)) == EXIT_LEFT
    assert "it lives" in capsys.readouterr().out
