"""What a job on a real Spark Connect server shows at its loudest: the client, the server, and the Python beside it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.harness import ROOT
from tests.harness.changing_role import ChangingRole, changing_role
from tests.harness.connect_server import ConnectServer
from tests.harness.secrets_main import SITE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import MakeTopic
    from tests.harness.providers import Broker

EXAMPLE: Final = ROOT / "examples" / "connect_orders.py"
JOB_DEADLINE_S: Final = 240


@pytest.fixture
def role(database: str) -> Iterator[ChangingRole]:
    with changing_role(database) as made:
        yield made


@pytest.mark.spark
@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_no_log_of_client_or_server_has_a_secret(
    tmp_path: Path,
    role: ChangingRole,
    kafka: Broker,
    topic: MakeTopic,
    transactional_id: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The client sends the whole sink, and logs what it sends; the server's Python sends it on to tasks."""
    logs, site = tmp_path / "logs", tmp_path / "site"
    for each in (logs, site, tmp_path / "events"):
        each.mkdir()
    (site / "sitecustomize.py").write_text(SITE)
    (tmp_path / "events" / "1.json").write_text('{"order_id": "o", "sequence": 1, "status": "paid"}\n' * 2_000)
    monkeypatch.setenv("PLANTED_LOGS", str(logs))
    monkeypatch.setenv("SPARK_CONNECT_LOG_LEVEL", "debug")
    monkeypatch.setenv("PYTHONPATH", f"{site}{os.pathsep}{ROOT}")
    written = role.url.set(password=role.password).render_as_string(hide_password=False)
    with ConnectServer(tmp_path, settings={"spark.log.level": "DEBUG"}) as server:
        done = subprocess.run(
            [
                *(sys.executable, str(EXAMPLE), "--remote", server.remote, "--events", str(tmp_path / "events")),
                *("--checkpoint", str(tmp_path / "checkpoint"), "--kafka", kafka.bootstrap, "--topic", topic()),
                *("--database", written, "--transactional-id", transactional_id),
            ],
            env={**os.environ},
            capture_output=True,
            timeout=JOB_DEADLINE_S,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-3_000:]
    shown = {path.name: path.read_bytes() for path in [*logs.iterdir(), server.log]}
    shown["client"] = done.stdout + done.stderr
    assert [name for name, content in shown.items() if role.password.encode() in content] == []
    # It would find one: the client has logged the request, and both sides what is no secret.
    requests = [line for line in shown["client"].splitlines() if b"write_stream_operation_start" in line]
    assert any(b"characters of bytes" in line for line in requests)
    assert sum(transactional_id.encode() in content for content in shown.values()) >= 2
