"""The manifests of examples/kubernetes have fields that exist, and agree with the job, each other and the page."""

from __future__ import annotations

import json
import re
from typing import Any, Final

import pytest
import yaml
from jsonschema import Draft202012Validator

from tests.harness.page_blocks import ROOT

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
