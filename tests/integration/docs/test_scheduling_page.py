"""docs/scheduling.md: the job ends with the exit codes of the page, which cron and Airflow go by; Spark's own pod."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from spark_2pc_sink.testing import run_job
from spark_2pc_sink.testing.errors import JobError
from spark_2pc_sink.testing.spark import spark_environment
from tests.conftest import MakeTopic
from tests.harness import ROOT, run_program
from tests.harness.page_blocks import blocks_of, run_block
from tests.harness.providers import Broker
from tests.harness.sql import run_sql

JOB, AIRFLOW = blocks_of("docs/scheduling.md")


@pytest.mark.spark
@pytest.mark.slow
def test_the_exit_codes_of_the_page(
    kafka: Broker, database: str, topic: MakeTopic, transactional_id: str, tmp_path: Path
) -> None:
    """The job is run_until_stopped's: 0 with all on both sides, 2 for a row, 3 for another checkpoint."""
    name = topic()
    run_sql(database, "CREATE TABLE orders (order_id bigint PRIMARY KEY, placed timestamptz)")
    (tmp_path / "orders").mkdir()
    text = JOB.text.replace("/data/", f"{tmp_path}/").replace("orders.toml", str(tmp_path / "orders.toml"))
    (tmp_path / "orders.py").write_text(text)
    (tmp_path / "orders.toml").write_text(
        f'transactional_id = "{transactional_id}"\ndatabase = "{database}"\ntopic = "{name}"\ntable = "orders"\n'
        f'key = "order_id"\n[kafka]\nbootstrap.servers = "{kafka.bootstrap}"\n'
    )
    add(tmp_path, 1)
    run_job(tmp_path / "orders.py")
    assert run_sql(database, "SELECT order_id FROM orders") == [(1,)]
    add(tmp_path, 2, order_id=1)
    assert status_of(tmp_path) == 2
    (tmp_path / "checkpoint").rename(tmp_path / "lost")
    assert status_of(tmp_path) == 3
    assert run_sql(database, "SELECT order_id FROM orders") == [(1,)]


def add(folder: Path, number: int, order_id: int | None = None) -> None:
    line = f'{{"order_id": {order_id or number}, "placed": "2026-11-24T12:00:00Z"}}'
    (folder / "orders" / f"{number}.json").write_text(line)


def status_of(folder: Path) -> int:
    """How the job ends that does not end well."""
    with pytest.raises(JobError, match=r"ended with status \d") as failed:
        run_job(folder / "orders.py")
    return int(str(failed.value).partition("ended with status ")[2].partition(".")[0])


@pytest.mark.parametrize(
    ("code", "ends"), [(0, None), (1, "RuntimeError"), (2, "Fail"), (3, "Fail"), (143, "RuntimeError")]
)
def test_airflow_tries_again_where_that_helps(
    code: int, ends: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AirflowFailException is what Airflow does not try again."""
    (tmp_path / "orders.py").write_text(f"raise SystemExit({code})")
    airflow = types.ModuleType("airflow.exceptions")
    fail: type[Exception] = type("Fail", (Exception,), {})
    vars(airflow)["AirflowFailException"] = fail
    monkeypatch.setitem(sys.modules, "airflow", types.ModuleType("airflow"))
    monkeypatch.setitem(sys.modules, "airflow.exceptions", airflow)
    raised = None
    try:
        run_block(AIRFLOW, {}, {"/opt/job": str(tmp_path), '"python"': repr(sys.executable)})
    except (RuntimeError, fail) as error:
        raised = type(error).__name__
    assert raised == ends


def test_cron_starts_no_second_run(tmp_path: Path) -> None:
    """The line of the page: a run that still has the lock is left alone."""
    [line] = re.findall(r"`\*/5 \* \* \* \* (.+?)`", (ROOT / "docs" / "scheduling.md").read_text())
    places = {"/run/orders.lock": str(tmp_path / "lock"), "/opt/job": str(tmp_path), "python": sys.executable}
    words = [re.sub("|".join(places), lambda found: places[found[0]], word) for word in shlex.split(line)]
    runs = tmp_path / "runs"
    # The first run calls cron's line again, as the next five minutes would, and ends with its exit code.
    job = f"import subprocess\nopen({str(runs)!r}, 'a').write('.')\nraise SystemExit(40 + subprocess.call({words!r}))\n"
    (tmp_path / "orders.py").write_text(job)
    assert subprocess.run(words, check=False).returncode == 41
    assert runs.read_text() == "."


@contextmanager
def api_server() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """An API server of Kubernetes that takes each object as it is; its address, and the objects."""
    made: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            taken = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
            if taken:
                made.append(taken)
            taken.setdefault("metadata", {})["uid"] = "1"
            body = json.dumps(taken).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *values: object) -> None:  # noqa: A002 - its name there
            """Say nothing."""

    for verb in ("POST", "PUT", "PATCH"):
        setattr(Handler, f"do_{verb}", Handler.do_GET)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", made
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.slow
@pytest.mark.java
def test_spark_submit_makes_the_pod_of_the_page(tmp_path: Path) -> None:
    """submit.sh with a real spark-submit: the driver's pod has what driver-pod.yaml adds, and a headless service."""
    (tmp_path / "spark-defaults.conf").write_text("spark.kubernetes.submission.waitAppCompletion false\n")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**os.environ, **spark_environment(tmp_path), "PATH": path, "SPARK_CONF_DIR": str(tmp_path)}
    with api_server() as (address, made):
        run_program("sh", str(ROOT / "examples" / "kubernetes" / "submit.sh"), address, env=env)
    pod = next(each["spec"] for each in made if each["kind"] == "Pod")
    [container] = pod["containers"]
    assert (container["name"], container["image"]) == ("spark-kubernetes-driver", "registry.example/orders:1")
    assert container["args"][-1] == "local:///opt/job/orders.py"
    assert {"name": "sink", "containerPort": 7100}.items() <= container["ports"][0].items()
    assert "pkill -TERM -x python3" in " ".join(container["lifecycle"]["preStop"]["exec"]["command"])
    assert container["envFrom"] == [{"secretRef": {"name": "orders"}}]
    assert "/data" in {each["mountPath"] for each in container["volumeMounts"]}
    assert (pod["terminationGracePeriodSeconds"], pod["serviceAccountName"]) == (60, "spark")
    assert [each["spec"]["clusterIP"] for each in made if each["kind"] == "Service"] == ["None"]
