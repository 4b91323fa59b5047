"""The sink on a real Spark Connect server: the client is another process, and so is the one that writes batches."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeAlias

import pytest

from spark_2pc_sink.testing import assert_same_multiset, read_topic, wait_until
from spark_2pc_sink.testing.processes import CapabilityError
from tests.conftest import MakeTopic
from tests.harness import ROOT, run_program
from tests.harness.connect_server import ConnectServer
from tests.harness.other_pythons import CLIENT, other_python, packages_beside_spark
from tests.harness.page_blocks import block_of, without_dots
from tests.harness.providers import Broker
from tests.harness.secrets_main import SITE
from tests.harness.sql import ChangingRole, changing_role
from tests.integration.postgres.database_tables import rows

pytestmark = [pytest.mark.spark, pytest.mark.thorough, pytest.mark.timeout(300)]

EXAMPLE: Final = ROOT / "examples" / "connect_orders.py"
ENVIRONMENT: Final = {**os.environ, "PYTHONPATH": str(ROOT)}
JOB_DEADLINE_S: Final = 240
#: Spark gives the Python beside the server ten seconds for its imports, which a busy machine needs more for.
STARTS_MAX: Final = 3


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    with ConnectServer(tmp_path_factory.mktemp("connect")) as started:
        yield started


class Orders:
    """A job of the example, and what it is to write."""

    def __init__(self, remote: str, directory: Path, kafka: Broker, database: str, topic: str, name: str) -> None:
        self.directory, self.kafka, self.database, self.topic, self.name = directory, kafka, database, topic, name
        self.remote = remote
        self.expected: list[tuple[str, int]] = []
        (directory / "events").mkdir()

    def add(self, count: int) -> None:
        first = len(self.expected)
        events = [{"order_id": f"order-{n}", "sequence": n, "status": "paid"} for n in range(first, first + count)]
        path = self.directory / "events" / f"{first:08}.json"
        path.write_text("\n".join(json.dumps(event) for event in events), encoding="utf-8")
        self.expected += [(f"order-{n}", n) for n in range(first, first + count)]

    @property
    def arguments(self) -> list[str]:
        return [
            "--remote",
            self.remote,
            "--events",
            str(self.directory / "events"),
            "--checkpoint",
            str(self.directory / "checkpoint"),
            "--kafka",
            self.kafka.bootstrap,
            "--database",
            self.database,
            "--topic",
            self.topic,
            "--table",
            "orders",
            "--transactional-id",
            self.name,
            "--max-files-per-trigger",
            "1",
        ]

    def run(self, python: str = sys.executable) -> None:
        """Run the job to its good end; again where Spark has not waited for the Python beside the server."""
        for start in range(1, STARTS_MAX + 1):
            done = subprocess.run(
                [python, str(EXAMPLE), *self.arguments],
                env=ENVIRONMENT,
                capture_output=True,
                text=True,
                timeout=JOB_DEADLINE_S,
                check=False,
            )
            if done.returncode == 0:
                return
            busy = "Python worker failed to connect back" in done.stderr
            assert busy and start < STARTS_MAX, done.stderr[-3000:]  # noqa: PT018 - one claim

    def check(self) -> None:
        """Both sides have every event once."""
        sent: list[Any] = [json.loads(record.value or b"") for record in read_topic(self.kafka.bootstrap, self.topic)]
        assert_same_multiset([(e["order_id"], e["sequence"]) for e in sent], self.expected, what="records")
        assert_same_multiset(rows(self.database, "SELECT order_id, sequence FROM orders"), self.expected, what="rows")


@pytest.fixture
def orders(
    server: ConnectServer, tmp_path: Path, kafka: Broker, database: str, topic: MakeTopic, transactional_id: str
) -> Orders:
    return Orders(server.remote, tmp_path, kafka, database, topic(), transactional_id)


def test_the_example_writes_both_sides_and_goes_on_after_a_restart(orders: Orders, server: ConnectServer) -> None:
    """By tasks that stage their rows, and by the driver where a batch is small; what is not checked is said once."""

    def said() -> int:  # by the server, which other jobs use too
        return server.log.read_text(errors="replace").count("Spark Connect shows no plans")

    before = said()
    for count in (2_000, 10, 10):
        orders.add(count)
    orders.run()
    orders.check()
    orders.add(10)
    orders.run()
    orders.check()
    assert said() - before == 2
    assert rows(orders.database, "SELECT query_id, batch_id, status FROM kafka_transaction_state") == [
        (f"query {orders.name!r}", 3, "done")
    ]


def test_a_full_refresh_under_the_same_name_writes_nothing(orders: Orders, server: ConnectServer) -> None:
    """A28: the checkpoint is new, and the query has the name that the state row knows."""
    for count in (10, 10):
        orders.add(count)
    orders.run()
    shutil.rmtree(orders.directory / "checkpoint")
    with pytest.raises(AssertionError):
        orders.run()
    assert "batch ids of this query start at 0 again" in server.log.read_text(errors="replace")
    orders.check()


@pytest.mark.parametrize("named", [True, False])
def test_the_job_of_the_page(orders: Orders, server: ConnectServer, named: bool) -> None:
    """docs/connect.md, with a stream of the reader's, and a place to wait until it has written what is there.

    Without a name the query is found, and its progress says how old events are: from the second batch on.
    """
    block = block_of("docs/connect.md", "SparkSession")
    for _ in range(2):
        orders.add(10)
    option = ', query_name="orders"'
    assert option in block.text
    text = block.text if named else block.text.replace(option, "")
    lines = ast.unparse(without_dots(text.replace("sc://spark.internal:15002", server.remote))).splitlines()
    [at] = [number for number, line in enumerate(lines) if line.startswith("spark = ")]
    given = {
        "transactional_id": orders.name,
        "kafka": {"bootstrap.servers": orders.kafka.bootstrap},
        "database": orders.database,
        "topic": orders.topic,
        "table": "orders",
        "create_table": True,
    }
    schema = "order_id STRING, sequence BIGINT, status STRING"
    lines[at + 1 : at + 1] = [
        f"path = {str(orders.directory / 'checkpoint')!r}",
        f"files = spark.readStream.schema({schema!r}).option('maxFilesPerTrigger', 1)",
        f"timed = files.json({str(orders.directory / 'events')!r}).selectExpr('*', 'current_timestamp() AS at')",
        "orders = timed.withWatermark('at', '1 hour').drop('at')",
        f"_given = {given!r}",
    ]
    program = orders.directory / "page.py"
    program.write_text("\n".join([*lines, "query.processAllAvailable()", "query.stop()"]))
    run_program(sys.executable, str(program))
    orders.check()
    history = "FROM kafka_transaction_state_history WHERE event = 'decided' ORDER BY decision"
    found = rows(orders.database, f"SELECT figures ? 'event_delay_s' {history}")
    assert found == [(False,), (not named,)]


@pytest.fixture(scope="module")
def pure_client() -> str:
    """The Python of a client that was installed as docs/connect.md says: `pyspark-client`, and no `pyspark`."""
    try:
        return str(other_python(CLIENT) / "bin" / "python")
    except CapabilityError as error:
        pytest.skip(str(error))


def test_the_page_has_every_dependency_but_spark() -> None:
    """`pip install spark-2pc-sink` would bring all of PySpark into a client that has done without."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    declared = re.findall(
        r'^    "([^";]+)"', project.partition("\ndependencies = [")[2].partition("\n]")[0], re.MULTILINE
    )
    needed = [package for package in declared if not package.startswith("pyspark")]
    assert packages_beside_spark() == needed


Job: TypeAlias = "subprocess.Popen[bytes]"


def run_until_death(python: str, victim: str, orders: Orders, dead: Callable[[Job], bool]) -> None:
    """Run a job in whose second batch, when it is decided, the server or the client dies; again as in `Orders.run`."""
    command = [python, "-m", "tests.harness.connect_job", victim, "DECIDE", *orders.arguments]
    for _ in range(STARTS_MAX):
        if dies(subprocess.Popen(command, env=ENVIRONMENT), dead):
            return
    pytest.fail(f"{STARTS_MAX} jobs have ended, and no {victim} has died")


def dies(job: Job, dead: Callable[[Job], bool]) -> bool:
    """Wait for a death, or for the end of a job without one."""
    try:
        wait_until(lambda: dead(job) or job.poll() is not None, deadline_s=JOB_DEADLINE_S, what="a death")
        return dead(job)
    finally:
        # A client asks for minutes whether its server comes back.
        job.kill()
        job.wait(JOB_DEADLINE_S)


@pytest.mark.timeout(900)
def test_a_server_that_is_killed_in_a_batch_and_a_pure_client(
    tmp_path: Path, kafka: Broker, database: str, topic: MakeTopic, transactional_id: str, pure_client: str
) -> None:
    """SIGKILL of the server and the Python beside it in the second batch; the same job once more finishes."""
    with ConnectServer(tmp_path) as server:
        orders = Orders(server.remote, tmp_path, kafka, database, topic(), transactional_id)
        for count in (3_000, 2_000, 10):
            orders.add(count)
        run_until_death(pure_client, "server", orders, lambda _: not server.running)
        server.kill()
        server.start()
        orders.run(pure_client)
        orders.check()


@pytest.mark.timeout(600)
def test_a_pure_client_that_is_killed_in_a_batch(orders: Orders, pure_client: str) -> None:
    """SIGKILL of the client in the second batch (A27); the server goes on, and so does the same job later."""
    for count in (3_000, 2_000, 10):
        orders.add(count)
    run_until_death(pure_client, "client", orders, lambda job: job.poll() == -signal.SIGKILL)
    orders.add(10)
    orders.run(pure_client)
    orders.check()


@pytest.fixture
def role(database: str) -> Iterator[ChangingRole]:
    with changing_role(database) as made:
        yield made


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
    for each in (logs, site):
        each.mkdir()
    (site / "sitecustomize.py").write_text(SITE)
    monkeypatch.setenv("PLANTED_LOGS", str(logs))
    monkeypatch.setenv("SPARK_CONNECT_LOG_LEVEL", "debug")
    monkeypatch.setenv("PYTHONPATH", f"{site}{os.pathsep}{ROOT}")
    written = role.url.set(password=role.password).render_as_string(hide_password=False)
    with ConnectServer(tmp_path, settings={"spark.log.level": "DEBUG"}) as server:
        orders = Orders(server.remote, tmp_path, kafka, written, topic(), transactional_id)
        orders.add(2_000)
        done = run_program(sys.executable, str(EXAMPLE), *orders.arguments, env=None, errors="replace")
    shown = {path.name: path.read_bytes() for path in [*logs.iterdir(), server.log]}
    shown["client"] = (done.stdout + done.stderr).encode()
    assert [name for name, content in shown.items() if role.password.encode() in content] == []
    # It would find one: the client has logged the request, and both sides what is no secret.
    requests = [line for line in shown["client"].splitlines() if b"write_stream_operation_start" in line]
    assert any(b"characters of bytes" in line for line in requests)
    assert sum(transactional_id.encode() in content for content in shown.values()) >= 2
