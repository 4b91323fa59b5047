"""Commands of README and of the manual, run on both sides; RUNBOOK.md's and the tutorial's have tests of their own.

`tests/harness/page_commands.py` has which test runs which command.
"""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from spark_2pc_sink import DualWriteSink, cli
from spark_2pc_sink.ids import ProducerIdAndEpoch, TopicPartition
from spark_2pc_sink.testing import ReferenceCoordinator, free_port, wait_until
from tests.conftest import or_skip
from tests.harness import ROOT, run_program
from tests.harness.kafka_cluster import KafkaCluster
from tests.harness.kafka_tools import make_scripts
from tests.harness.page_blocks import block_of, blocks, run_block
from tests.harness.page_commands import who_runs
from tests.harness.sql import run_sql
from tests.integration.docs.conftest import Reader
from tests.integration.transactions_tool.hanging import VERIFIES_NOTHING, produce_raw
from tests.integration.writer.writers import table_of, writer_on

DEADLINE_S = 60
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
DATABASE = "postgresql://ops@db/shop"


def commands_of(test: str) -> list[tuple[str, str]]:
    """The commands that a test here runs, with their pages, in the order of the pages; each once."""
    name = f"{Path(__file__).relative_to(ROOT)}::{test}"
    found = {
        (block.page, command): None
        for block in blocks("", "console")
        for command in block.commands
        if name in who_runs(block.page, command)
    }
    assert found, name
    return list(found)


def filled(command: str, places: Mapping[str, str]) -> list[str]:
    """The words of a command, with what is here in place of the page's; what it is piped into is left out."""
    text = command.partition(" | ")[0]
    for shown, here in places.items():
        text = re.sub(rf"(?<![\w-]){re.escape(shown)}(?![\w-])", here.replace("\\", r"\\"), text)
    return shlex.split(text)


def places_of(reader: Reader) -> dict[str, str]:
    """What pages name, and what it is here."""
    sides = f"--bootstrap-server {reader.broker.bootstrap} --database {reader.database}"
    return {
        "broker:9092": reader.broker.bootstrap,
        DATABASE: reader.database,
        "orders.toml": reader.file(),
        "…": sides,
    }


#: Runs a command in this process: the command, what is here in place of the page's, its exit code; what it prints.
Run = Callable[..., str]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setattr("sys.stdin", io.StringIO())

    def call(command: str, places: Mapping[str, str], code: int = 0) -> str:
        program, *words = filled(command, places)
        assert program == "spark-2pc", command
        capsys.readouterr()
        ended = cli.main(words)
        said = capsys.readouterr()
        assert ended == code, f"{command}: exit code {ended}\n{said.out}\n{said.err}"
        return said.out

    return call


def test_what_is_asked_about_a_sink(reader: Reader, run: Run) -> None:
    """Of a sink that has written a batch; nothing is wrong."""
    # The records have the fields that some page takes its columns from.
    value = "to_json(struct(order_id, order_id AS id, name, event_time, total))"
    with closing(DualWriteSink(**reader.options(value=value))) as sink:
        reader.stream.run(sink)
    places = places_of(reader)
    for _, command in commands_of("test_what_is_asked_about_a_sink"):
        if "| jq " in command:
            shown = json.loads(run(command, places))["sinks"][0].keys()
            assert set(re.findall(r"\w+", command.partition("{")[2].partition("}")[0])) <= shown
        else:
            run(command, places)


@pytest.mark.thorough
def test_a_check_with_a_schema(reader: Reader) -> None:
    """As a process: it starts and stops a Spark, and in this one that would be the Spark of all tests."""
    places = places_of(reader)
    for _, command in commands_of("test_a_check_with_a_schema"):
        run_program(sys.executable, "-m", "spark_2pc_sink.cli", *filled(command, places)[1:], cwd=reader.folder)


def test_one_table_of_several(reader: Reader, run: Run) -> None:
    """docs/verify.md asks about a table of docs/outputs.md."""
    for topic in ("order-lines", "paid-orders"):
        reader.broker.create_topic(topic, partitions=1)
    run_sql(
        reader.database,
        "DROP TABLE orders; CREATE TABLE orders (id bigint PRIMARY KEY, name text, paid boolean, lines jsonb);"
        "CREATE TABLE order_lines (order_id bigint, sku text, n int); CREATE TABLE paid_orders (id bigint, name text)",
    )
    names: dict[str, Any] = {}
    run_block(block_of("docs/outputs.md"), names)
    options = {name: reader.options()[name] for name in ("transactional_id", "kafka", "database")}
    orders = reader.stream.frame().selectExpr(
        "order_id AS id",
        "name",
        "order_id > 1 AS paid",
        "array(named_struct('sku', 'a', 'n', 1), named_struct('sku', 'b', 'n', 2)) AS lines",
    )
    with closing(DualWriteSink(**options, writes=names["writes"])) as sink:
        reader.stream.run(sink, orders)
    for _, command in commands_of("test_one_table_of_several"):
        assert "both sides are the same" in run(command, places_of(reader))


def test_a_transaction_that_hangs(run: Run, transactional_id: str) -> None:
    """docs/hanging-transactions.md, in its order: found, ended; then one of an id that nobody will continue."""
    with ReferenceCoordinator(properties=VERIFIES_NOTHING) as kafka:
        kafka.create_topic("orders", partitions=1)
        produce_raw(kafka.bootstrap, TopicPartition("orders", 0), ProducerIdAndEpoch(4711, 0))
        places = {"host:9092": kafka.bootstrap, "T": "orders", "P": "0", "N": "0", "ID": transactional_id}
        find, abort, list_long, terminate = (command for _, command in commands_of("test_a_transaction_that_hangs"))
        assert "orders" in run(find, places, code=3)
        run(abort, places)
        run(find, places)
        run(list_long, places)
        with writer_on(kafka.bootstrap, transactional_id, "orders", two_phase_commit=True) as writer:
            writer.begin_transaction()
            writer.append(table_of(1))
            writer.prepare_transaction()
            run(terminate, places)


@contextmanager
def served(command: list[str], folder: Path) -> Iterator[None]:
    """A command that serves until it is told to stop; it is ready when it says where it listens."""
    out = folder / "out"
    with out.open("wb") as file:
        words = [sys.executable, "-m", "spark_2pc_sink.cli", *command]
        process = subprocess.Popen(words, cwd=folder, env=ENVIRONMENT, stdout=file, stderr=subprocess.STDOUT)
    try:
        yield
        wait_until(
            lambda: b"listening on" in out.read_bytes() or process.poll() is not None, what=f"{command} to listen"
        )
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0, out.read_text()


def test_what_serves(database: str, tmp_path: Path) -> None:
    """Exporter, dashboard and the coordinator; all of them start at once, and each ends in order."""
    properties = block_of("docs/reference-coordinator.md", language="properties")
    with ReferenceCoordinator() as kafka, ExitStack() as running:
        config = tmp_path / "orders.toml"
        config.write_text(
            f'transactional_id = "orders"\ndatabase = "{database}"\ntopic = "orders"\ntable = "orders"\n'
            f'[kafka]\nbootstrap.servers = "{kafka.bootstrap}"\n'
        )
        for number, (_, command) in enumerate(commands_of("test_what_serves")):
            folder = tmp_path / str(number)
            folder.mkdir()
            address = f"127.0.0.1:{free_port()}"
            (folder / "coordinator.properties").write_text(properties.text.replace("127.0.0.1:9092", address))
            places = {
                "127.0.0.1:9092": address,
                "127.0.0.1:9939": address,
                "broker:9092": kafka.bootstrap,
                DATABASE: database,
                "orders.toml": str(config),
                "/var/lib/coordinator": str(folder / "data"),
            }
            words = filled(command, places)[1:]
            if words[0] in {"exporter", "dashboard"} and "--listen" not in words:
                words += ["--listen", address]
            running.enter_context(served(words, folder))


def test_the_targets() -> None:
    """``make help`` names each target that a page names."""
    [(_, help_of_make)] = commands_of("test_the_targets")
    said = run_program(*shlex.split(help_of_make), cwd=ROOT).stdout
    named = {command.split()[1] for block in blocks("") for command in block.commands if command.startswith("make ")}
    assert [target for target in named if f"  make {target} " not in said] == []


@pytest.mark.thorough
def test_what_pip_installs(tmp_path: Path) -> None:
    """It has all that a line asks for, and would install the package: an extra that there is not is only a warning."""
    source = tmp_path / "source"
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(".*", "build", "tests", "__pycache__", "*.egg-info"))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    dry = ["--dry-run", "--no-index", "--no-build-isolation", "--disable-pip-version-check"]
    for _, command in commands_of("test_what_pip_installs"):
        done = run_program(sys.executable, "-m", *shlex.split(command), *dry, cwd=source, env=environment)
        assert "Would install spark-2pc-sink" in done.stdout
        assert "WARNING" not in done.stderr, f"{command}\n{done.stderr}"


@pytest.mark.thorough
@pytest.mark.java
def test_tools_of_kafka(pytestconfig: pytest.Config, tmp_path: Path) -> None:
    """Kafka's own scripts, on three brokers: the page wants as many copies."""
    authorizer = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    programs = [str(tmp_path), str(Path(sys.executable).parent), os.environ["PATH"]]
    env = {**os.environ, "PATH": os.pathsep.join(programs)}
    with or_skip(pytestconfig, lambda: KafkaCluster(properties=authorizer)) as cluster:
        make_scripts(tmp_path)
        for _, command in commands_of("test_tools_of_kafka"):
            run_program(*filled(command, {"broker:9092": cluster.bootstrap}), env=env)
