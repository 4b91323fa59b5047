"""docs/cluster.md and docs/connect.md: what brings the package and its packages to other machines, typed as it stands.

The job is the tutorial's, on Spark's local master: a cluster of several machines is in tests/integration/sink. What pip
would download comes from this environment.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pyspark
import pytest

from spark_2pc_sink.testing import ReferenceCoordinator, read_topic
from spark_2pc_sink.testing.java import find_java_home
from tests.conftest import or_skip
from tests.harness import ROOT
from tests.harness.page_blocks import blocks
from tests.harness.page_commands import who_runs
from tests.harness.sql import run_sql

DEADLINE_S: Final = 120
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
    [job] = [block for block in blocks("python") if block.page == "docs/tutorial.md" and "SparkSession" in block.text]
    (folder / "orders.py").write_text(job.text)
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
                done = subprocess.run(
                    ["bash", "-c", typed(command, folder)],
                    cwd=folder,
                    env=environment | ({"SPARK_HOME": str(spark_home)} if "$SPARK_HOME" in command else {}),
                    capture_output=True,
                    text=True,
                    timeout=DEADLINE_S,
                    check=False,
                )
                assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr[-3000:]}"
                if command.endswith("--copies environment"):
                    lend_packages(folder / "environment")
                jobs += command.endswith("orders.py")
                assert len(read_topic(kafka.bootstrap, "orders")) == 100 * jobs, command
    assert jobs == 3
    assert run_sql(database, "SELECT count(*), count(DISTINCT order_id) FROM orders") == [(300, 300)]
