"""docs/tutorial.md as it is typed: its programs, its commands, and what they print; its job on other machines.

docs/cluster.md and docs/connect.md have what brings the package and its packages there. The job is on Spark's local
master: a cluster of several machines is in tests/integration/sink. What pip would download comes from this environment.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyspark
import pytest

from spark_2pc_sink.testing import ReferenceCoordinator, read_topic, wait_until
from spark_2pc_sink.testing.processes import find_java_home
from tests.conftest import or_skip
from tests.harness import ROOT, run_program
from tests.harness.page_blocks import block_of, blocks
from tests.harness.page_commands import who_runs
from tests.harness.sql import run_sql

PAGE = (ROOT / "docs" / "tutorial.md").read_text()
START_DEADLINE_S = 60
#: With the PATH of an environment that is activated.
ENVIRONMENT = {**os.environ, "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}


def programs() -> dict[str, str]:
    """What the reader saves, by the name under which: the one that is named last before the block."""
    found = {}
    before = ""
    for part in re.split(r"(```python\n.*?```)", PAGE, flags=re.DOTALL):
        if part.startswith("```python\n"):
            name = re.findall(r"`(\w+\.py)`", before)[-1]
            found[name] = part.removeprefix("```python\n").removesuffix("```")
        before = part
    return found


def commands() -> Iterator[tuple[str, str]]:
    """Each command of the second terminal, and what the page says that it prints."""
    for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL):
        for part in block.split("$ ")[1:]:
            command, _, printed = part.partition("\n")
            yield command, printed.strip()


def pattern(printed: str) -> str:
    """A regular expression of what a page shows, where "…" is anything."""
    return ".*".join(re.escape(part.strip()) for part in printed.split("…"))


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The reader's directory, while the servers of the first terminal run."""
    for name, text in programs().items():
        (tmp_path / name).write_text(text)
    with (tmp_path / "servers.out").open("wb") as out:
        servers = subprocess.Popen(
            [sys.executable, "servers.py"],
            cwd=tmp_path,
            env=ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    wait_until(
        lambda: b"Both servers run" in (tmp_path / "servers.out").read_bytes(), what="the servers of the tutorial"
    )
    yield tmp_path
    servers.communicate(b"\n", timeout=START_DEADLINE_S)
    assert servers.returncode == 0


@pytest.mark.thorough
@pytest.mark.spark
@pytest.mark.java
@pytest.mark.timeout(900)
def test_the_tutorial_does_what_it_says(folder: Path) -> None:
    for command, printed in commands():
        done = subprocess.run(command.split(), cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False)
        assert re.match(pattern(printed), done.stdout.strip(), re.DOTALL), f"{command}\n{done.stdout}\n{done.stderr}"


# - on other machines -------------------------------------------------------------------------------------------------

#: Of a machine of the cluster.
OPT: Final = "/opt/spark-python"
ARCHIVE: Final = Path("python", "lib", "pyspark.zip")
#: What keeps pip from the network.
OFFLINE: Final = {"pip wheel": "--no-build-isolation --no-index", "pip install": "--no-deps --no-index"}
FILE: Final = """
transactional_id = "orders"
database = "{database}"
topic = "orders"
key = "order_id"
table = "orders"

[kafka]
bootstrap.servers = "{bootstrap}"
"""


def lend_packages(environment: Path) -> None:
    """Let an environment import what this one has, behind what is its own."""
    [own] = environment.glob("lib/python3*/site-packages")
    ours = Path(pyspark.__file__).parents[1]
    (own / "lent.pth").write_text(f"{ours}\n")


def typed(command: str, folder: Path) -> str:
    """The command, offline and with this folder's Python of the cluster."""
    for words, more in OFFLINE.items():
        command = command.replace(words, f"{words} {more}")
    return command.replace(OPT, str(folder / "opt"))


@pytest.mark.thorough
@pytest.mark.spark
@pytest.mark.java
@pytest.mark.timeout(900)
def test_what_brings_the_package_to_executors(pytestconfig: pytest.Config, tmp_path: Path, database: str) -> None:
    """Each of the three jobs writes a batch of a hundred rows to both sides."""
    name = f"{Path(__file__).relative_to(ROOT)}::test_what_brings_the_package_to_executors"
    java = or_skip(pytestconfig, find_java_home)
    folder = tmp_path / "project"
    shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(".*", "build", "tests", "__pycache__", "*.egg-info"))
    (folder / "orders.py").write_text(block_of("docs/tutorial.md", "SparkSession").text)
    subprocess.run([sys.executable, "-m", "venv", "--copies", str(folder / "opt")], check=True)
    lend_packages(folder / "opt")
    spark_home = tmp_path / "spark"
    (spark_home / ARCHIVE).parent.mkdir(parents=True)
    shutil.copy(Path(pyspark.__file__).parent / ARCHIVE, spark_home / ARCHIVE)
    kept = {key: value for key, value in os.environ.items() if key not in {"PYTHONPATH", "VIRTUAL_ENV", "SPARK_HOME"}}
    environment = kept | {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "JAVA_HOME": str(java),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    run_sql(database, "CREATE TABLE orders (order_id bigint PRIMARY KEY, placed timestamptz)")
    jobs = 0
    with ReferenceCoordinator() as kafka:
        kafka.create_topic("orders", partitions=2)
        (folder / "orders.toml").write_text(FILE.format(database=database, bootstrap=kafka.bootstrap))
        for block in blocks(""):
            for command in [each for each in block.commands if name in who_runs(block.page, each)]:
                home = {"SPARK_HOME": str(spark_home)} if "$SPARK_HOME" in command else {}
                run_program("bash", "-c", typed(command, folder), cwd=folder, env=environment | home)
                if command.endswith("--copies environment"):
                    lend_packages(folder / "environment")
                jobs += command.endswith("orders.py")
                assert len(read_topic(kafka.bootstrap, "orders")) == 100 * jobs, command
    assert jobs == 3
    assert run_sql(database, "SELECT count(*), count(DISTINCT order_id) FROM orders") == [(300, 300)]
